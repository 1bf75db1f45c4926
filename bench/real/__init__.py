"""The bench of record: models that users name when they run out of memory, exported by their own libraries."""
