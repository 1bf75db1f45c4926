"""What an op that runs a body holds beside what kernels of the body show."""

import msgspec


class BodyRules(msgspec.Struct, frozen=True, kw_only=True):
    """`copies_results` are ops that copy what the last round of their body made: both are there at the end."""

    copies_results: frozenset[str]

    def end_bytes(self, op_type: str, last_bytes: int, results_bytes: int) -> int:
        """What is in use when the results of an op are there, and `last_bytes` were when its last kernel ended."""
        return last_bytes + (results_bytes if op_type in self.copies_results else 0)
