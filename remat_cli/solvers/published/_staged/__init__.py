"""Schedules in stages, as Checkmate writes them: the program, its relaxation, and rounding."""
