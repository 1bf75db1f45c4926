"""Which splits are tried, for one size and for many: built, compared, measured, planned, and the best is kept."""
