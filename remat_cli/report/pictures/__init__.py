"""Reports that are seen: charts in the terminal and as SVG."""
