"""Copies of models as they are read, whose nodes may be in any order."""

import onnx_ir as ir


def copied(model: ir.Model) -> ir.Model:
    """A copy whose nodes lie as the model's do, also where one reads what a later one makes.

    The runtime sorts nodes when it loads a file, and what it fuses follows the order in which they lay.
    """
    graph = model.graph.clone(allow_outer_scope_values=True)
    twins = {
        value: twin
        for node, copy in zip(model.graph, graph, strict=True)
        for value, twin in zip(node.outputs, copy.outputs, strict=True)
    }
    # What lies before the maker of its input still reads the model's own value.
    for node in graph.all_nodes():
        for at, value in enumerate(node.inputs):
            if value in twins:
                node.replace_input_with(at, twins[value])
    return ir.Model(
        graph,
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=[function.clone() for function in model.functions.values()],
        metadata_props=dict(model.metadata_props),
    )
