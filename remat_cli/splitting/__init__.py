"""Model to model: ops replaced by tiles of themselves, so that large tensors in between never exist whole."""
