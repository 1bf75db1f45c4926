"""A benchmark instance while it is made, and its file: the format of published instances, one output per op."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remat_cli.core.schedule.floor import working_set_floor
from remat_cli.core.schedule.instance import AbstractInstance, Node, instance_problem
from remat_cli.core.schedule.simulate import baseline

BUDGETS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5)


@dataclass
class Draft:
    """Ops in their order; `source` says in words where the instance comes from, `cost_kind` the unit of costs.

    `fixed_memory_bytes` are weights, which no budget counts.
    """

    name: str
    source: str
    cost_kind: str
    seed: int | None = None
    fixed_memory_bytes: int = 0
    nodes: list[Node] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)

    def add(self, name: str, size: tuple[int, int], inputs: Iterable[int], backward: bool = False) -> int:
        """Append an op of `size` (cost, bytes of its output) that reads the outputs of these ops; its id."""
        op = len(self.nodes)
        cost, memory = size
        self.nodes.append(Node(op, max(0, int(cost)), max(1, int(memory)), name, backward))
        self.edges += [(source, op) for source in dict.fromkeys(inputs)]
        return op

    def instance(self) -> AbstractInstance:
        """What a solver sees."""
        return AbstractInstance(tuple(self.nodes), tuple(sorted(self.edges)), self.name)

    def write(self, folder: Path) -> Path:
        """Write `NAME.json` with the figures that its readers expect; the path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(self._values(), separators=(",", ":")) + "\n", encoding="utf-8")
        return path

    def _values(self) -> dict[str, Any]:
        instance = self.instance()
        problem = instance_problem(instance)
        peak, floor = baseline(problem).peak, working_set_floor(problem).bytes[0]
        values = {
            "name": self.name,
            "source": self.source,
            "cost_kind": self.cost_kind,
            "n": len(instance.nodes),
            "m": len(instance.edges),
            "nodes": [
                {"id": n.id, "name": n.name, "cost": n.cost, "memory": n.memory, "backward": n.backward}
                for n in instance.nodes
            ],
            "edges": [list(edge) for edge in instance.edges],
            "order": "topological (node ids are the input topological order)",
            "fixed_memory_bytes": self.fixed_memory_bytes,
            "peak_no_remat": peak,
            "cost_no_remat": sum(node.cost for node in instance.nodes),
            "working_set_lower_bound": floor,
            "budgets": [fraction for fraction in BUDGETS if fraction * peak >= floor] or [1.0],
        }
        return values if self.seed is None else values | {"seed": self.seed}
