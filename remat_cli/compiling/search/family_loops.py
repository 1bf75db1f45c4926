"""A model with loops, prepared like the model it was made of; none where its outputs have other bits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from remat_cli.base.errors import RuntimeFailure
from remat_cli.compiling.blame import blamed_on
from remat_cli.compiling.facts import known_facts_of
from remat_cli.compiling.optimise import digest_of, optimise
from remat_cli.compiling.prepare import Prepared, as_planned, facts_of, first_look
from remat_cli.compiling.search.split_model import in_place_of
from remat_cli.onnx_io.read.interface import interface_of
from remat_cli.onnx_io.read.to_graph import INPUTS, to_graph
from remat_cli.runtime.observe.sight import Sight
from remat_cli.runtime.sessions.error_text import lacks_memory
from remat_cli.runtime.verify.likeness import have_same_bits


def prepare_loops(whole: Prepared, model: Any, work: Path) -> Prepared | None:
    """The model with loops, optimised like the whole one; None where its outputs are not those of the whole one.

    Where this machine cannot run the whole one at the largest sizes, outputs are compared at those at which it can;
    loops that it cannot run at the largest either are none.
    """
    conditions = whole.conditions
    with blamed_on(whole.source.path, "ONNX Runtime cannot optimise the loops of"):
        found = optimise(model, conditions, work, whole.optimised_as)
    reference = as_planned(found.path, model, interface_of(whole.reference), whole.optimised_as)
    digest = digest_of(found, conditions, whole.optimised_as)
    facts, was_long = known_facts_of(digest, conditions), False
    if facts is None:
        with blamed_on(whole.source.path, "ONNX Runtime fails to run the loops of"):
            seen = _look(found.path, reference, whole)
        if seen is None:
            return None
        facts = facts_of(seen, reference, whole.facts.types[INPUTS])
        first, second = whole.facts.measured, facts.measured
        if first is not None and second is not None:
            facts = msgspec.structs.replace(facts, relative_time=second.run_ns / max(1, first.run_ns))
        was_long = facts.measured is not None and (whole.runnable is not None or facts.relative_time is not None)
    looped_whole = replace(whole, reference=reference, reference_path=found.path, reference_sha256=digest)
    return in_place_of(looped_whole, to_graph(reference, facts.types), facts, was_long=was_long)


def _look(loops: Path, reference: Any, whole: Prepared) -> Sight | None:
    """A first look at a model with loops at the largest sizes; None where it has other bits, or too little memory."""
    if whole.runnable is None:
        seen = first_look(loops, reference, whole.feeds, whole.conditions)
        return seen if have_same_bits(whole.outputs, seen.outputs) else None
    near = whole.runnable.at
    if not have_same_bits(near.outputs, first_look(loops, reference, near.feeds, near.conditions).outputs):
        return None
    try:
        return first_look(loops, reference, whole.feeds, whole.conditions)
    except RuntimeFailure as failure:
        if lacks_memory(failure):
            return None
        raise
