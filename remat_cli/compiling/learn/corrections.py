"""What runs taught of ops, kept between compiles, and set right in graphs."""

from collections.abc import Mapping, Sequence

import msgspec

from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.plan import Plan
from remat_cli.core.values.conditions import Conditions
from remat_cli.core.values.learning import NOTHING, Correction, corrected
from remat_cli.runtime.measure.profile_cache import CacheScope, ProfileCache, provenance

Corrections = Mapping[str, Correction]
"""What was learnt of ops, by signature."""


def known_corrections(signatures: Sequence[str], conditions: Conditions) -> dict[str, Correction]:
    """What earlier compiles learnt of ops with these signatures."""
    found: dict[str, Correction] = {}
    scope = _scope(conditions)
    with ProfileCache(conditions.cache_dir) as cache:
        for signature in dict.fromkeys(signatures):
            stored = cache.model(scope, signature)
            if stored is not None:
                found[signature] = msgspec.json.decode(stored, type=Correction)
    return found


def remember_corrections(corrections: Corrections, conditions: Conditions) -> None:
    """Keep what was learnt for models that have ops of the same kind."""
    with ProfileCache(conditions.cache_dir) as cache:
        for signature, correction in corrections.items():
            cache.store_model(_scope(conditions), signature, msgspec.json.encode(correction))


def with_corrections(graph: Graph, signatures: Sequence[str], corrections: Corrections) -> Graph:
    """The graph as runs have shown it; `signatures` are those of its ops, "" for one that nothing is known of."""
    return corrected(graph, [corrections.get(signature, NOTHING) for signature in signatures])


def step_signatures(signatures: Sequence[str], step_ops: Sequence[str], plan: Plan) -> dict[str, str]:
    """The signature of the op that each step of a written model runs, by its name there."""
    return {name: signatures[op] for name, op in zip(step_ops, plan.schedule.op_ids(), strict=True)}


def _scope(conditions: Conditions) -> CacheScope:
    """How ops use buffers depends on the runtime, not on costs or threads."""
    return CacheScope("what runs taught", provenance("cpu", 0, conditions.optimization, 0, 0))
