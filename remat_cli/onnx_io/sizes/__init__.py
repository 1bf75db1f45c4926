"""Which sizes a model leaves open: names for them, what binds them, shapes that say as much as is known."""
