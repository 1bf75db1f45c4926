"""Values that live in a model input's storage cost nothing, unless the caller also gets them as outputs."""

from __future__ import annotations

from remat_cli.core.schedule.graph import Graph, Op, Tensor
from remat_cli.core.schedule.problem import make_problem
from remat_cli.core.schedule.simulate import baseline
from remat_cli.core.values.profile import OpCost, Profile, Provenance

CAME = Provenance("cpu", "os", "onnxruntime", "1.31.1", "CPUExecutionProvider", 0, "all", 10, 2)


def flattened(kept: bool) -> Graph:
    """x (16 bytes) -> Flatten -> f, a view of x; f -> Relu -> y, in place where the runtime may."""
    return Graph(
        ops=(Op("flatten", "Flatten", (0,), (1,)), Op("relu", "Relu", (1,), (2,), in_place=((1, 2),))),
        tensors=(
            Tensor("x", "float", (4,), 16),
            Tensor("f", "float", (4,), 16, 0, view_of=0, kept=kept),
            Tensor("y", "float", (4,), 16, 1),
        ),
        weights=(),
    )


def memory(graph: Graph) -> tuple[int, ...]:
    profile = Profile("cpu", "", CAME, tuple(OpCost(op.name, 1) for op in graph.ops), 0, graph.input_bytes)
    return baseline(make_problem(graph, profile, 1000)).memory_bytes[0]


def test_a_view_of_an_input_is_free_but_nothing_is_written_into_it():
    # x 16 | x 16 + y 16: Relu must not overwrite the caller's buffer
    assert memory(flattened(kept=False)) == (16, 32)


def test_an_output_that_views_an_input_is_a_copy():
    # x 16 + f 16 | x 16 + f 16 + y 16
    assert memory(flattened(kept=True)) == (32, 48)
