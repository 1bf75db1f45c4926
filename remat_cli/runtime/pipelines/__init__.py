"""Running stages of a pipeline, here or on a cluster."""
