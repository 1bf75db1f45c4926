"""Whole numbers that follow from positions, looked up in tables, where each is the same wherever it is computed."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from remat_cli.core.sizes import Dim, SizeFamily
from remat_cli.onnx_io.load import save
from remat_cli.runtime.family import see_sizes
from remat_cli.splitting.position_tables import SOURCE, NumberChain, Numbers, find_chains, with_tables
from remat_cli.stages.prepare import Prepared, default_settings, observe

ALONE = 3  # numbers in a row that no packet holds: the shortest ones have four


def with_positions_looked_up(
    model: Any, dims: Mapping[str, tuple[Dim, ...]], family: SizeFamily, prepared: Prepared, work: Path
) -> Any:
    """The model with tables for chains of ops whose bits, at first sight, depend on where an element lies.

    Each number that positions of the largest sizes can give is run in packets and outside of any; a table is made where
    all agree.

    Raises:
        RuntimeFailure: the runtime does not run a chain by itself.
    """
    most = {each.name: each.high for each in family.ranges} | family.fixed
    tables = [(chain, _table(chain, prepared, work)) for chain in find_chains(model, dims, most)]
    return with_tables(model, [(chain, table) for chain, table in tables if table is not None])


def _table(chain: NumberChain, prepared: Prepared, work: Path) -> Numbers | None:
    """What a chain makes of each number; None where that depends on the place."""
    folder = Path(tempfile.mkdtemp(prefix="table_", dir=work))
    alone, looked_up = folder / "alone.onnx", folder / "looked_up.onnx"
    numbers = chain.numbers.astype(chain.source.dtype.numpy() if chain.source.dtype else np.int64)
    save(chain.alone(), alone)
    (table,) = observe(alone, {SOURCE: numbers}, prepared.conditions).outputs.values()
    save(chain.looked_up(table), looked_up)
    parts = [numbers, *(numbers[at : at + ALONE] for at in range(0, len(numbers), ALONE))]
    seen = see_sizes((alone, looked_up), [{SOURCE: part} for part in parts], default_settings(prepared.conditions))
    return table if all(seen.same_bits) else None
