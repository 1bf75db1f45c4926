"""Whole numbers that follow from positions, looked up in tables, where each is the same wherever it is computed."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from remat_cli.compiling.prepare import Prepared, default_settings, observe
from remat_cli.core.values.sizes import Dim, SizeFamily
from remat_cli.onnx_io.read.load import save
from remat_cli.runtime.sessions._ort import pack_all, run_fresh
from remat_cli.runtime.verify.likeness import LikenessJob, compare_models
from remat_cli.splitting.loops.position_tables import ALONE, SOURCE, NumberChain, Numbers, find_chains, with_tables


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
    numbers = chain.numbers.astype(chain.source.dtype.numpy() if chain.source.dtype else np.int64)
    rows = np.resize(numbers, (-(-len(numbers) // ALONE), ALONE))
    save(chain.alone(), folder / "alone.onnx")
    (table,) = observe(folder / "alone.onnx", {SOURCE: numbers}, prepared.conditions).outputs.values()
    settings = default_settings(prepared.conditions)

    def agree(first: Any, second: Any, fed: Numbers) -> bool:
        paths = (folder / "first.onnx", folder / "second.onnx")
        for model, path in zip((first, second), paths, strict=True):
            save(model, path)
        job = LikenessJob((str(paths[0]), str(paths[1])), (pack_all({SOURCE: fed}),), (settings,))
        return run_fresh(compare_models, job, seconds=settings.run_seconds).are_close  # whole numbers: equal

    is_same = agree(chain.alone(), chain.looked_up(table), numbers)
    is_same = is_same and agree(chain.in_rows(), chain.looked_up(table, in_rows=True), rows)
    return table if is_same else None
