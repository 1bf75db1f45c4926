"""Plans that page: lists, a fluid bound and CP-SAT for steps in a given order, and the search that all pagers share."""
