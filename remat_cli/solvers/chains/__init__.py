"""Training steps as chains of blocks: the view, checkpoints on it, tables of best plans, and their clean-up."""
