"""Chains, schedules of stages and the file that holds one; the judge."""
