"""Stages in sessions, here or on actors of a cluster; the only part of the wing that knows Ray."""
