"""What `partition` and `run` of a schedule found, as values with their text and pictures."""
