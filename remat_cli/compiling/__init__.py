"""The road of one compile, in the order of its steps; its searches, the process, and learning from runs in folders."""
