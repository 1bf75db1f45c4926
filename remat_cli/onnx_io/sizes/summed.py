"""Named dimensions that are sums of others: `total = past + seq`, or `past_length + 1` as exporters name them."""

from collections.abc import Collection, Mapping

import onnx_ir as ir

from remat_cli.base.errors import ModelError
from remat_cli.core.values.sizes import Dim, dim_told
from remat_cli.onnx_io.read.interface import Interface


def sums_of(named: Interface, said: Mapping[str, Dim], bound: Collection[str]) -> dict[str, Dim]:
    """Which named dimensions of inputs are sums of others: those `said` to be, and those whose names say it.

    Names that are `bound` as they are say nothing.

    Raises:
        ModelError: there is no such dimension.
    """
    dims = (dim for port in named.inputs for dim in port.shape or () if isinstance(dim, ir.SymbolicDim))
    known = {dim.value: dim_told(dim.value) for dim in dims if dim.value is not None}
    for name, total in said.items():
        if name not in known:
            raise ModelError(
                f"--dim {name}={total}: no such dimension; there are: {', '.join(sorted(known)) or 'none'}"
            )
    told = {name: total for name, total in known.items() if total is not None and name not in bound}
    return {**told, **said}


def with_sums(sizes: Mapping[str, int], summed: Mapping[str, Dim]) -> dict[str, int]:
    """Sizes, and those of dimensions that are sums of them; of a sum of what is unknown nothing is said."""
    found = {name: total.at(sizes) for name, total in summed.items() if total.names <= sizes.keys()}
    return {**sizes, **found}
