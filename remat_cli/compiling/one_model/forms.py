"""A model in the forms that several targets plan: each is read, optimised and looked at once."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from remat_cli.base.progress import Progress
from remat_cli.compiling.beyond import prepare_at_any
from remat_cli.compiling.prepare import Prepared
from remat_cli.core.values.conditions import Conditions


@dataclass(frozen=True)
class Forms:
    """The forms of a model that were prepared so far: the first in the folder `work`, others in folders inside it.

    What outputs are compared with is watched in the same runs where verification `watches` a process of it.
    """

    model: Path
    work: Path
    watches: bool = False
    found: list[tuple[Conditions, Prepared]] = field(default_factory=list)

    def prepared(self, conditions: Conditions, progress: Progress) -> Prepared:
        """The model as it is planned under conditions; one for another target is the same, only planned otherwise.

        Raises:
            ModelError: the model or the inputs file cannot be used, or ONNX Runtime refuses them.
            RuntimeFailure: the machine has too little memory, time or disk for them, at any size.
        """
        of_target = {"target": conditions.target, "heap_bytes": conditions.heap_bytes}
        for asked, each in self.found:
            if msgspec.structs.replace(asked, **of_target) == conditions:
                return replace(each, conditions=msgspec.structs.replace(each.conditions, **of_target))
        work = self.work / f"form_{len(self.found)}" if self.found else self.work
        work.mkdir(exist_ok=True)
        known = self.found[0][1].original if self.found else None
        found = prepare_at_any(self.model, conditions, work, progress, known, watches=self.watches)
        self.found.append((conditions, found))
        return found
