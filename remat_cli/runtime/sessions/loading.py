"""Asks the runtime what it knows of a model when it has loaded it, before any run."""

from remat_cli.runtime.sessions._ort import import_ort, new_options, runtime_errors


def shapes_at_load(model: bytes, custom_ops: tuple[str, ...] = ()) -> dict[str, tuple[int | str | None, ...]]:
    """What the runtime knows of the shapes of a serialised model's outputs: numbers, names, or None.

    Of an unknown rank it says what it says of a scalar.

    It joins what the file declares with what its own inference finds, for its own ops too; its planner decides by this
    which buffers are used again. A file that it saves does not tell all of it.

    Raises:
        RuntimeFailure: the runtime refuses the model.
    """
    ort = import_ort()
    options = new_options(ort)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.enable_mem_reuse = False  # nothing runs
    options.add_session_config_entry("session.disable_prepacking", "1")
    with runtime_errors("ONNX Runtime refuses the rewritten model"):
        for library in custom_ops:
            options.register_custom_ops_library(library)
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return {value.name: tuple(value.shape) for value in session.get_outputs()}
