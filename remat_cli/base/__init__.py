"""What everything stands on: errors, files, progress, units."""
