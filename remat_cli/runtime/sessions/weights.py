"""How much memory the weights take once a session is loaded: packed ones replace their originals.

Measured on onnxruntime 1.31.1, CPU provider on x86-64, with a counter of all heap bytes after loading one-op models,
with and without `session.disable_prepacking` (tests/runtime/test_weights.py repeats it):

- The kernels of `PACKING` turn some constant inputs into a packed copy of their own, which lies in the session's arena
  (its counter before the first op shows it). The original is released, unless some other op reads it too.
- Ops that read the same weight in the same way share one packed copy, so recomputed ops cost nothing here. The same
  weight read in two ways (MatMul, and Gemm with transB) is packed twice.
- Packed size: that of the original, rounded up in a way that depends on the kernel and the CPU (a MatMul weight of N
  columns: N to the next multiple of 16, so one of a single column takes sixteen times as much). So it is measured,
  never predicted.
- Not packed: any weight of Conv, FusedConv, RNN, ConvInteger, Einsum, normalisations, elementwise ops and gathers;
  MatMul and Gemm weights that are the left operand, have other than two dimensions, or are not float32.
- All of these copies can be saved in a data file, but for those that QLinearConv makes of symmetric weights of many
  channels.
- A weight of at most 127 bytes is copied into the arena, and so already counted there; a larger one lies outside it.
  Where it belongs to a subgraph, its original stays there beside packed copies.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.program import Reader, WeightUse

ARENA_LIMIT_BYTES = 127
"""Largest weight that the runtime copies into the session's arena."""


class PackingRule(msgspec.Struct, frozen=True):
    """Which inputs a kernel packs, of which element types and number of dimensions (empty: any).

    `can_be_saved`: the copies can be put into the model's data file, always.
    """

    inputs: frozenset[int]
    dtypes: frozenset[str] = frozenset()
    ranks: frozenset[int] = frozenset()
    can_be_saved: bool = True


_FLOAT = frozenset({"float"})
_BYTE = frozenset({"uint8", "int8"})
_MATRIX = frozenset({2})
_MS = "com.microsoft"

PACKING: Mapping[tuple[str, str], PackingRule] = MappingProxyType(
    {
        ("", "MatMul"): PackingRule(frozenset({1}), _FLOAT, _MATRIX),
        ("", "Gemm"): PackingRule(frozenset({1}), _FLOAT, _MATRIX),
        (_MS, "FusedGemm"): PackingRule(frozenset({1}), _FLOAT, _MATRIX),
        (_MS, "FusedMatMul"): PackingRule(frozenset({1}), _FLOAT, _MATRIX),
        ("", "ConvTranspose"): PackingRule(frozenset({1}), _FLOAT),
        ("", "LSTM"): PackingRule(frozenset({1, 2}), _FLOAT),
        ("", "GRU"): PackingRule(frozenset({1, 2}), _FLOAT),
        ("", "MatMulInteger"): PackingRule(frozenset({1}), _BYTE, _MATRIX),
        ("", "QLinearMatMul"): PackingRule(frozenset({3}), _BYTE, _MATRIX),
        ("", "QLinearConv"): PackingRule(frozenset({3}), _BYTE, can_be_saved=False),
        (_MS, "QLinearConv"): PackingRule(frozenset({3}), _BYTE, can_be_saved=False),
        (_MS, "DynamicQuantizeMatMul"): PackingRule(frozenset({1}), _BYTE, _MATRIX),
        (_MS, "MatMulIntegerToFloat"): PackingRule(frozenset({1}), _BYTE, _MATRIX),
        (_MS, "QGemm"): PackingRule(frozenset({3}), _BYTE, _MATRIX),
        (_MS, "MatMulNBits"): PackingRule(frozenset({1})),
        (_MS, "Attention"): PackingRule(frozenset({1}), _FLOAT),
        (_MS, "QAttention"): PackingRule(frozenset({1}), _BYTE),
        (_MS, "DynamicQuantizeLSTM"): PackingRule(frozenset({1, 2}), _BYTE),
    }
)
"""(domain, op type) -> what it packs."""


def packs_weight(reader: Reader, dtype: str, shape: Sequence[int]) -> bool:
    """Whether an op replaces such a weight by a packed copy of its own."""
    rule = _rule(reader)
    if rule is None or reader.input_index not in rule.inputs:
        return False
    return (not rule.dtypes or dtype in rule.dtypes) and (not rule.ranks or len(shape) in rule.ranks)


def can_save_packed(reader: Reader) -> bool:
    """Whether the packed copy that an op makes can be put into the model's data file."""
    rule = _rule(reader)
    return rule is not None and rule.can_be_saved


def _rule(reader: Reader) -> PackingRule | None:
    return PACKING.get((reader.domain.removeprefix("ai.onnx"), reader.op_type))


def kept_weight_bytes(uses: Sequence[WeightUse], packed_bytes: int) -> int:
    """Bytes of all weights in the form the runtime keeps.

    `packed_bytes` is the measured `baseline_bytes` of a session: packed copies, and small weights. Added to it are the
    larger weights whose original stays, because some reader does not pack it. A weight without a reader is dropped.
    """
    return packed_bytes + sum(
        use.size_bytes
        for use in uses
        if (bool(use.readers) and use.size_bytes > ARENA_LIMIT_BYTES and not _is_always_packed(use))
    )


def is_packed_away(use: WeightUse) -> bool:
    """Whether of a weight so small that it lies in the arena only packed copies stay there."""
    return bool(use.readers) and use.size_bytes <= ARENA_LIMIT_BYTES and _is_always_packed(use)


def loaded_weight_bytes(graph: Graph, uses: Sequence[WeightUse], packed_bytes: int | None) -> int:
    """Bytes of all weights once a session is loaded; as in the file where the runtime counts nothing (None).

    It counts nothing either where no op runs: what is there then are the weights that are outputs.
    """
    if not graph.ops:
        return sum(use.size_bytes for use in uses if use.readers)
    return graph.weight_bytes if packed_bytes is None else kept_weight_bytes(uses, packed_bytes)


def _is_always_packed(use: WeightUse) -> bool:
    return all(packs_weight(reader, use.dtype, use.shape) for reader in use.readers)
