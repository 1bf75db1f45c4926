"""What runs show, kept and used: planned again until what was promised holds."""
