"""Proved lower bounds on the time of any plan, for one memory and for several."""
