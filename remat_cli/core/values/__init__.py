"""What was asked, measured, promised and found, as plain data."""
