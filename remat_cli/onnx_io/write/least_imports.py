"""Makes a written model ask least of who reads it: no domain that no op has, no newer file format than it needs."""

from collections.abc import Iterator
from itertools import chain

import onnx
import onnx_ir as ir

from remat_cli.onnx_io.write.opset import ONNX_DOMAINS

FIRST_WITH_TYPE = {
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"), 9),
    **dict.fromkeys(("UINT4", "INT4"), 10),
    "FLOAT4E2M1": 11,
    "FLOAT8E8M0": 12,
    **dict.fromkeys(("UINT2", "INT2"), 13),
    **dict.fromkeys(("FLOAT6E2M3", "FLOAT6E3M2"), 14),
}
"""The first version of ONNX's file format that has an element type; all others were there before `OLDEST_IR`."""
OLDEST_IR = 8  # which every runtime knows that is in use


def asking_least(model: ir.Model) -> ir.Model:
    """The model with the domains that some op uses only, and the oldest version of the file format that has it all.

    An optimiser that saves a model declares all domains that it knows, in versions that older runtimes refuse. ONNX's
    own domain stays, used or not: a runtime would take the newest it knows for one that is not declared.
    """
    new = model.clone()
    used = {node.domain for node in _all_nodes(model)} | {domain for domain, *_ in model.functions} | {*ONNX_DOMAINS}
    for domain in set(new.graph.opset_imports) - used:
        del new.graph.opset_imports[domain]
    if not model.functions:  # which have operator sets of their own
        # The oldest version that has the model's operator sets, as ONNX released them together, and its types.
        imports = [onnx.helper.make_opsetid(domain, version) for domain, version in new.graph.opset_imports.items()]
        of_opsets = onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True)
        # Names of the element types of all values and constants.
        type_names = set[str]()
        for graph in new.graphs():
            made = (value for node in graph for value in node.outputs)
            for value in chain(graph.inputs, graph.initializers.values(), made):
                if value.dtype is not None:
                    type_names.add(value.dtype.name)
        for each in (each for node in _all_nodes(new) for each in node.attributes.values()):
            if each.type == ir.AttributeType.TENSOR and not each.is_ref():
                type_names.add(each.as_tensor().dtype.name)
        of_types = max((FIRST_WITH_TYPE.get(name, OLDEST_IR) for name in type_names), default=OLDEST_IR)
        new.ir_version = min(model.ir_version, max(of_opsets, of_types))
    return new


def _all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Ops of the graph, of graphs inside it, and of functions."""
    graphs = (model.graph, *(function.graph for function in model.functions.values()))
    return chain.from_iterable(graph.all_nodes() for graph in graphs)
