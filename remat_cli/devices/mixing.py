"""How one session is shared by the host and a provider's device: how it is told which ops stay, and what is there."""

from collections.abc import Sequence

import msgspec

SHAPE_INPUTS = (
    *((name, (1,)) for name in ("Reshape", "Expand", "Squeeze", "Unsqueeze", "Tile", "Split", "TopK", "CumSum")),
    *((name, (1,)) for name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2")),
    ("Slice", (1, 2, 3, 4)),
    ("Pad", (1, 2, 3)),
    ("Resize", (1, 2, 3)),
    ("ConstantOfShape", (0,)),
    ("Range", (0, 1, 2)),
)
"""Inputs that say a shape, an axis or a count, which kernels on GPUs read on the host."""
HOST_LABEL = "remat_host"
"""What ops are labelled in a model that a session is to keep on the host."""


class Mixing(msgspec.Struct, frozen=True):
    """How one session with a provider is told which ops stay on the host.

    `names_option` is an option of the provider that takes their names, a line each; `layers_entry` an entry of the
    session that takes rules for labels that ops carry in their metadata under `layers_key`. `host_inputs` are numbers
    of inputs that kernels of the provider read on the host, by type of op; `host_outputs` are ops whose results are
    there.
    """

    names_option: str = ""
    layers_entry: str = ""
    layers_key: str = "layer_ann"
    host_inputs: tuple[tuple[str, tuple[int, ...]], ...] = SHAPE_INPUTS
    host_outputs: tuple[str, ...] = ("Shape", "Size")

    def options(self, names: Sequence[str]) -> dict[str, str]:
        """What the provider is given."""
        return {self.names_option: "\n".join(names)} if self.names_option else {}

    @property
    def entries(self) -> dict[str, str]:
        """What the session is given."""
        return {self.layers_entry: f"cpu({HOST_LABEL})"} if self.layers_entry else {}

    @property
    def label(self) -> tuple[tuple[str, str], ...]:
        """What ops that stay on the host carry in their metadata."""
        return ((self.layers_key, HOST_LABEL),) if self.layers_entry else ()
