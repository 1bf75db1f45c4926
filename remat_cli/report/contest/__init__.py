"""What solvers beside each other came to."""
