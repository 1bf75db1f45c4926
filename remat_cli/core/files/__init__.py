"""The plan as a file: written, read, checked."""
