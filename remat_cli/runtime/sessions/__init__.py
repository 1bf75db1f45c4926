"""Opening sessions: providers, options, feeds, packing, and runs that may be ended."""
