"""One story per command, on one page."""
