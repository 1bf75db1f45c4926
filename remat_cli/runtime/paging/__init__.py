"""Running plans whose values and weights wait elsewhere."""
