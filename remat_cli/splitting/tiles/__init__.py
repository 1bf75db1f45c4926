"""Regions of consecutive ops in tiles: found, estimated, built, and put in order."""
