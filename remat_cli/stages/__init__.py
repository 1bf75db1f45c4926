"""The steps of one compile, in their order."""
