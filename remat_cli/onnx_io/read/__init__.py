"""From a file to a graph: checked, repaired, understood."""
