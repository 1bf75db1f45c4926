"""A written model asks for no domain, no opset and no version of the file format that its ops do not need."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from remat_cli.onnx_io.write.least_imports import asking_least

SPARE = {"ai.onnx.ml": 5, "org.pytorch.aten": 1, "ai.onnx.preview": 27}


def value(name, elements=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, elements, [4])


def model(nodes, opset=17, ir_version=10, domains=None, functions=(), initializers=()):
    graph = helper.make_graph(nodes, "g", [value("x")], [value("y")], initializers)
    imports = [helper.make_opsetid(domain, number) for domain, number in {"": opset, **(domains or SPARE)}.items()]
    made = helper.make_model(graph, opset_imports=imports, functions=functions)
    made.ir_version = ir_version
    return ir.from_proto(made)


RELU = helper.make_node("Relu", ["x"], ["y"])


def test_only_domains_that_some_op_has_are_declared():
    old = model([RELU])
    assert asking_least(old).graph.opset_imports == {"": 17}
    assert set(old.graph.opset_imports) == {"", *SPARE}


def test_ops_in_branches_count():
    branch = helper.make_graph([helper.make_node("Gelu", ["x"], ["i"], domain="com.microsoft")], "b", [], [value("i")])
    nodes = [
        helper.make_node("Size", ["x"], ["n"]),
        helper.make_node("Cast", ["n"], ["flag"], to=TensorProto.BOOL),
        helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch),
    ]
    found = asking_least(model(nodes, domains={"com.microsoft": 1, **SPARE}))
    assert found.graph.opset_imports == {"": 17, "com.microsoft": 1}


def test_functions_keep_their_domain_and_those_of_their_ops():
    body = [helper.make_node("Gelu", ["a"], ["b"], domain="com.microsoft")]
    function = helper.make_function("own", "Act", ["a"], ["b"], body, [helper.make_opsetid("com.microsoft", 1)])
    nodes = [helper.make_node("Act", ["x"], ["y"], domain="own")]
    found = asking_least(model(nodes, domains={"own": 1, "com.microsoft": 1, **SPARE}, functions=[function]))
    assert found.graph.opset_imports == {"": 17, "own": 1, "com.microsoft": 1}
    assert found.ir_version == 10


def test_the_domain_of_the_standard_ops_stays():
    """Without it a runtime takes the newest it knows."""
    node = helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")
    found = asking_least(model([node], domains={"com.microsoft": 1}))
    assert found.graph.opset_imports == {"": 17, "com.microsoft": 1}


@pytest.mark.parametrize(
    ("opset", "before", "after"), [(17, 10, 8), (20, 13, 9), (21, 11, 10), (24, 10, 10), (9, 7, 7)]
)
def test_the_file_format_is_as_old_as_its_opset_lets_it_be(opset, before, after):
    found = asking_least(model([RELU], opset, before))
    assert found.ir_version == after
    onnx.checker.check_model(ir.to_proto(found))


def test_newer_types_need_a_newer_format():
    weight = helper.make_tensor("w", TensorProto.INT4, [4], [1, 2, 3, 4])
    found = asking_least(model([RELU], ir_version=11, initializers=[weight]))
    assert found.ir_version == 10
