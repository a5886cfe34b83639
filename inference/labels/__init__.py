"""Labels: doubtful ones found and decided, and the pictures to label next."""
