"""What `placement` is made of: compiled search over several memories, and its exact model."""
