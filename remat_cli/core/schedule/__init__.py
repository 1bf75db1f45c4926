"""A graph, a problem, a schedule, and the judge."""
