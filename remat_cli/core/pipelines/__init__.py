"""Stages on several devices: their plan, their judge."""
