"""The table of what each version of the runtime has, against what the one that is installed says of itself."""

from __future__ import annotations

import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from remat_cli.onnx_io.write.op_versions import loads_from
from remat_cli.ort_rules.versions import CONTRIB, KERNELS, LATE_KERNELS, OLDEST, OPSETS, SINCE, newest, numbers_of

HERE = newest([ort.__version__])


def model_of(op: str, domain: str = "", opset: int = 17, ir_version: int = 8) -> ir.Model:
    node = helper.make_node(op, ["x"], ["y"], name="op", domain=domain)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    imports = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    graph = helper.make_graph([node], "g", [x], [y])
    return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=ir_version))


@pytest.mark.parametrize(
    ("model", "version"),
    [
        (model_of("Relu"), OLDEST),
        (model_of("Relu", opset=21), "1.18"),
        (model_of("Relu", opset=24), "1.24"),
        (model_of("Relu", ir_version=10), "1.18"),
        (model_of("TensorScatter", opset=24), "1.26"),
        (model_of("FusedMatMul", CONTRIB), OLDEST),
        (model_of("SparseAttention", CONTRIB), "1.20"),
        (model_of("NotYetKnown", CONTRIB), "1.77"),
        (model_of("Relu", opset=99), "1.77"),
        (model_of("Mine", "my.ops"), OLDEST),
    ],
)
def test_a_file_loads_from_the_first_version_that_has_all_it_contains(model, version):
    assert loads_from(model, made_with="1.77.1") == version


def test_ops_in_the_bodies_of_others_count_and_so_do_packed_weights():
    value = helper.make_tensor_value_info
    inner = helper.make_node("SparseAttention", ["x"], ["y"], domain=CONTRIB)
    body = helper.make_graph([inner], "body", [], [value("y", TensorProto.FLOAT, None)])
    choose = helper.make_node("If", ["flag"], ["z"], then_branch=body, else_branch=body)
    inputs = [value("x", TensorProto.FLOAT, [1]), value("flag", TensorProto.BOOL, [])]
    graph = helper.make_graph([choose], "g", inputs, [value("z", TensorProto.FLOAT, None)])
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert loads_from(model, "1.32") == "1.20"
    assert loads_from(model, "1.32", is_packed=True) == "1.21"


def test_no_op_is_in_the_table_twice():
    assert len(SINCE) == sum(len(ops.split()) for ops in KERNELS.values())


def test_the_runtime_here_has_the_kernels_that_the_table_says_it_has():
    listed = ort.capi.onnxruntime_pybind11_state.get_all_opkernel_def()
    here = [kernel for kernel in listed if kernel.provider == "CPUExecutionProvider"]
    own = {kernel.op_name for kernel in here if kernel.domain == CONTRIB}
    said = {op for op, version in SINCE.items() if numbers_of(version) <= numbers_of(HERE)}
    assert said <= own
    assert own - said == set() or numbers_of(HERE) > max(map(numbers_of, KERNELS))
    standard = {(kernel.op_name, since) for kernel in here if not kernel.domain for since in [kernel.version_range[0]]}
    late = {op for op, version in LATE_KERNELS.items() if numbers_of(version) <= numbers_of(HERE)}
    assert late <= standard


def test_the_runtime_here_loads_the_opset_that_the_table_says_it_loads():
    opset = max(opset for version, opset in OPSETS.items() if numbers_of(version) <= numbers_of(HERE))
    proto = ir.to_proto(model_of("Relu", opset=opset))
    assert ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, {"x": [-1.0]}
    ) == [[0.0]]
