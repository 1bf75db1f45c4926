"""Running plans that are cut into sessions."""
