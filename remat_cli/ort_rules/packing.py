"""How much memory the weights take once a session is loaded: packed ones replace their originals.

Measured with the CPU provider on x86-64, with a counter of all heap bytes after loading one-op models,
with and without `session.disable_prepacking` (tests/runtime/test_weights.py repeats it):

- Kernels of some ops (`kernels`) turn some constant inputs into a packed copy of their own, which lies in the session's
  arena (its counter before the first op shows it). The original is released, unless some other op reads it too.
- Ops that read the same weight in the same way share one packed copy, so recomputed ops cost nothing here. The same
  weight read in two ways (MatMul, and Gemm with transB) is packed twice.
- Packed size: that of the original, rounded up in a way that depends on the kernel and the CPU (a MatMul weight of N
  columns: N to the next multiple of 16, so one of a single column takes sixteen times as much). So it is measured,
  never predicted.
- Not packed: any weight of Conv, FusedConv, RNN, ConvInteger, Einsum, normalisations, elementwise ops and gathers;
  MatMul and Gemm weights that are the left operand, have other than two dimensions, or are not float32.
- All of these copies can be saved in a data file, but for those that QLinearConv makes of symmetric weights of many
  channels.
- MatMulNBits at accuracy level 4 has scales and a sum for each block in its copy too (`beside_blocks_bytes`), and its
  scales and zero points stay beside it. At other levels its copy is as large as the weight where that has 4 bits, and
  of 8 bits there is none (1.28 to 1.32, AVX-512; tests/runtime/test_weights.py repeats it).
- A weight of at most `arena_limit_bytes` is copied into the arena, and so already counted there; a larger one lies
  outside it. Where it belongs to a subgraph, its original stays there beside packed copies.
"""

from collections.abc import Mapping, Sequence

import msgspec

from remat_cli.core.schedule.graph import Graph
from remat_cli.core.schedule.program import Reader, WeightUse
from remat_cli.ort_rules.arena_copies import ArenaCopyRules

SUM_COLUMNS, NUMBER_BYTES, ALIGNING_BYTES = 16, 4, 126  # of the copies of products with weights in blocks


def beside_blocks_bytes(columns: int, blocks: int) -> int:
    """What a copy of so many columns of so many blocks holds beside their bits: scales, sums, room to align both."""
    summed = -(-columns // SUM_COLUMNS) * SUM_COLUMNS
    return (columns + summed) * blocks * NUMBER_BYTES + ALIGNING_BYTES


class PackingRule(msgspec.Struct, frozen=True):
    """Which inputs a kernel packs, of which element types and number of dimensions (empty: any).

    `can_be_saved`: the copies can be put into the model's data file, always.
    """

    inputs: frozenset[int]
    dtypes: frozenset[str] = frozenset()
    ranks: frozenset[int] = frozenset()
    can_be_saved: bool = True


class PackingRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which kernels pack weights, and how much that takes.

    `arena_limit_bytes` is the largest weight that the runtime copies into the session's arena. `kernels` is by domain
    and op type. `columns` is by op type: the packed weight is as large as the weight, its columns rounded up to a
    multiple of so many; what other ops make of theirs is not known. `in_arena` says which copies lie in the arena,
    `in_arena_wide` the same where the processor has the widest blocks (`rules_for` chooses).
    """

    arena_limit_bytes: int
    kernels: Mapping[tuple[str, str], PackingRule]
    columns: Mapping[str, int]
    in_arena: ArenaCopyRules
    in_arena_wide: ArenaCopyRules

    def packs_weight(self, reader: Reader, dtype: str, shape: Sequence[int]) -> bool:
        """Whether an op replaces such a weight by a packed copy of its own."""
        rule = self._rule(reader)
        if rule is None or not reader.packs or reader.input_index not in rule.inputs:
            return False
        return (not rule.dtypes or dtype in rule.dtypes) and (not rule.ranks or len(shape) in rule.ranks)

    def can_save_packed(self, reader: Reader) -> bool:
        """Whether the packed copy that an op makes can be put into the model's data file."""
        rule = self._rule(reader)
        return rule is not None and rule.can_be_saved

    def kept_weight_bytes(self, uses: Sequence[WeightUse], packed_bytes: int) -> int:
        """Bytes of all weights in the form the runtime keeps.

        `packed_bytes` is the measured `baseline_bytes` of a session: packed copies, and small weights. Added to it are
        the larger weights whose original stays, because some reader does not pack it. A weight without a reader is
        dropped.
        """
        outside = (
            use
            for use in uses
            if use.readers and use.size_bytes > self.arena_limit_bytes and not self._is_always_packed(use)
        )
        return packed_bytes + sum(use.size_bytes for use in outside)

    def is_packed_away(self, use: WeightUse) -> bool:
        """Whether of a weight so small that it lies in the arena only packed copies stay there."""
        return bool(use.readers) and use.size_bytes <= self.arena_limit_bytes and self._is_always_packed(use)

    def loaded_weight_bytes(self, graph: Graph, uses: Sequence[WeightUse], packed_bytes: int | None) -> int:
        """Bytes of all weights once a session is loaded; as in the file where the runtime counts nothing (None).

        It counts nothing either where no op runs: what is there then are the weights that are outputs.
        """
        if not graph.ops:
            return sum(use.size_bytes for use in uses if use.readers)
        return graph.weight_bytes if packed_bytes is None else self.kept_weight_bytes(uses, packed_bytes)

    def _rule(self, reader: Reader) -> PackingRule | None:
        return self.kernels.get((reader.domain.removeprefix("ai.onnx"), reader.op_type))

    def _is_always_packed(self, use: WeightUse) -> bool:
        return all(self.packs_weight(reader, use.dtype, use.shape) for reader in use.readers)
