"""A budget on the process: what a process holds that loads and runs a file, foretold and seen."""
