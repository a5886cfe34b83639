"""Pictures: arrays in, figures and PNG out."""
