"""How the runtime optimises a model before it is planned: with which sizes in sight, how often, and by which hash."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from remat_cli.compiling.facts import known_facts_of
from remat_cli.core.values.conditions import Conditions
from remat_cli.onnx_io.read.interface import Interface
from remat_cli.onnx_io.read.load import prepare_optimized, save_hashed
from remat_cli.onnx_io.sizes.open_sizes import with_only_these_sizes
from remat_cli.runtime.sessions.session import optimize

MOST_PASSES = 6


@dataclass(frozen=True)
class OptimisedAs:
    """How the runtime optimises a model and all that is made of it.

    With `ports` it is told these sizes of inputs and outputs and no others; else those that the model has, which bound
    dimensions and splitting wrote there. `passes` are the most it makes; with none the model is left as it is.
    `hides_sizes`: it refuses the model where it knows the sizes of inputs, so that what is written hides them.
    """

    ports: Interface | None = None
    passes: int = MOST_PASSES
    hides_sizes: bool = False

    @property
    def for_tiles(self) -> "tuple[OptimisedAs, ...]":
        """How models are optimised whose ops were split, until one has the bits of the whole.

        Where sizes are open the runtime may know more of tiles than of the whole, and fuse what it left alone there;
        ops that are tiles of optimised ones need no optimiser.
        """
        return (self,) if self.ports is None else (self, replace(self, passes=0))


AS_BOUND = OptimisedAs()
REFERENCE = "reference.onnx"
"""The file of an optimised model, in its folder."""


@dataclass(frozen=True)
class Optimised:
    """A reference model on disk, and the hash of its contents."""

    path: Path
    sha256: str


def optimise(model: Any, conditions: Conditions, work: Path, optimised_as: OptimisedAs = AS_BOUND) -> Optimised:
    """The reference model on disk, in canonical form: optimised until the runtime finds nothing more to change.

    One pass may leave something for the next, and a default session would do that to the rewritten model, plan or not.
    """
    current, raw, reference = work / "normalised.onnx", work / "optimised.onnx", work / REFERENCE
    known = save_hashed(
        model if optimised_as.ports is None else with_only_these_sizes(model, optimised_as.ports), current
    )
    if not optimised_as.passes:
        known = save_hashed(prepare_optimized(current, model), reference)
    for _ in range(optimised_as.passes):
        optimize(
            current,
            raw,
            conditions.optimization,
            conditions.intra_op_threads,
            conditions.custom_ops,
            conditions.run_seconds,
        )
        current, before, known = reference, known, save_hashed(prepare_optimized(raw, model), reference)
        if known == before or known_facts_of(known, conditions) is not None:  # kept of a model that was settled
            break
    return Optimised(reference, known)


def digest_of(found: Optimised, conditions: Conditions, optimised_as: OptimisedAs = AS_BOUND) -> str:
    """The hash of an optimised model; what is known of one whose file leaves sizes open holds for the asked ones."""
    digest = found.sha256
    if conditions.family is None and optimised_as.ports is None:
        return digest
    sizes = sorted(conditions.dims.items())
    told = f"{digest} {sizes}" if optimised_as.ports is None else f"{digest} {sizes} {conditions.input_shapes} open"
    return hashlib.sha256(told.encode()).hexdigest()
