"""From a plan to a file: ops, gates, guard, form, weights."""
