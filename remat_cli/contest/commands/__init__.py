"""The stories of `bench` and `compare`."""
