"""remat under fire: ONNX's own node tests, broken models, broken plans and kills; what became of each is a row.

`python -m tests.fuzz` runs what is missing, in shards; `python -m tests.fuzz.report --write` makes a table of the rows.
The
tests beside it run small seeded samples.
"""
