"""Runs a compiled file beside its original wherever a command starts a Python: elsewhere than on this machine."""
