"""Heat maps of the evidence for a class, for every model, and how faithful they are. Tensors in, tensors out."""
