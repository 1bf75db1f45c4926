"""The stories of `partition` and of `run` of a schedule, and what they are asked."""
