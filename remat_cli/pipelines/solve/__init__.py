"""Planners of pipelines: layers of a chain to devices under a memory limit, and periodic schedules of them."""
