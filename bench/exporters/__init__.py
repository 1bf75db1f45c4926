"""Small models that many exporters write, compiled at one size and for ranges of sizes."""
