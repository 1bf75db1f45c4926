"""Plain data and the judge; imports nothing else of remat."""
