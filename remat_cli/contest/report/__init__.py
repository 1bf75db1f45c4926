"""What `bench` and `compare` found, as values with their tables and pictures."""
