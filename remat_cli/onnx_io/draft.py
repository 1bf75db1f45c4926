"""The rewritten graph as plain data: one draft per node to be, in execution order, joined by names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from remat_cli.onnx_io.default_order import EARLY_OPS, Wiring


@dataclass(frozen=True)
class Draft:
    """One node to be.

    `reads` and `makes` are value names by position, "" where an optional one is left out. `captured` maps names that
    the subgraphs of the op read to the values they get. `source` is the node of the reference model that it copies,
    None for a gate helper. `clone` counts the earlier runs of the same op; `step` is the plan's step, -1 for a helper.
    `attributes` are those of a helper; other nodes have those of their source, `changed` ones replaced. `notes` are
    added to the metadata of the node.
    """

    name: str
    op_type: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    domain: str = ""
    captured: tuple[tuple[str, str], ...] = ()
    source: ir.Node | None = None
    clone: int = 0
    step: int = -1
    attributes: tuple[tuple[str, int], ...] = ()
    changed: tuple[ir.Attr, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()

    @property
    def all_reads(self) -> tuple[str, ...]:
        """Names of the values that must exist before it runs, each once."""
        names = (*self.reads, *(new for _, new in self.captured))
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def wiring(self) -> Wiring:
        """What the order of execution depends on."""
        made = tuple(name for name in self.makes if name)
        return Wiring(self.all_reads, made, self.op_type in EARLY_OPS and self.domain in ("", "ai.onnx"))

    def reading(self, new: Mapping[str, str]) -> Draft:
        """The same op, reading other values."""
        reads = tuple(new.get(name, name) for name in self.reads)
        captured = tuple((outer, new.get(name, name)) for outer, name in self.captured)
        return replace(self, reads=reads, captured=captured)
