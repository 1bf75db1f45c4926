"""Whole models in bands: along which axes, how many, what is made again."""
