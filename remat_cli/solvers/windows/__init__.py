"""Large-neighbourhood search with CP-SAT: parts of a schedule cut open and solved exactly."""
