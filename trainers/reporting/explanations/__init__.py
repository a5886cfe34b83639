"""Heat maps of what spoke for a class, for every model, and how faithful they are. Tensors in, tensors out."""
