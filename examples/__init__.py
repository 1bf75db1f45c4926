"""Short scripts to start from."""
