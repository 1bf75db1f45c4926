"""A wing: models in stages for several devices.

A row in each of three tables, and a public function, are all that is said of it elsewhere.
"""
