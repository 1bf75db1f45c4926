"""Let one tool work on a model, in an environment that has it: `PYTHON bench/compile_last_tools.py TOOL SOURCE TARGET`.

The environment needs what `bench/compile_last_requirements.txt` lists, and nothing of the project.
"""

import sys


def saved(source: str, target: str) -> None:
    """Read and write."""
    import onnx

    onnx.save(onnx.load(source), target)


def inferred(source: str, target: str) -> None:
    """Shapes inferred, as strictly as can be."""
    import onnx

    onnx.save(onnx.shape_inference.infer_shapes(onnx.load(source), strict_mode=True, data_prop=True), target)


def converted(source: str, target: str) -> None:
    """Under another operator set."""
    import onnx

    onnx.save(onnx.version_converter.convert_version(onnx.load(source), 21), target)


def slimmed(source: str, target: str) -> None:
    """Redundant ops taken out."""
    import onnx
    import onnxslim

    onnx.save(onnxslim.slim(onnx.load(source)), target)


def simplified(source: str, target: str) -> None:
    """Constant parts folded."""
    import onnx
    import onnxsim

    onnx.save(onnxsim.simplify(onnx.load(source))[0], target)


def quantised(source: str, target: str) -> None:
    """Weights as bytes."""
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(source, target)


def prepared(source: str, target: str) -> None:
    """Made ready for quantisation."""
    from onnxruntime.quantization.preprocess import quant_pre_process

    quant_pre_process(source, target)


def halved(source: str, target: str) -> None:
    """Numbers in half precision; inputs and outputs stay as they are."""
    import onnx
    from onnxconverter_common import float16

    onnx.save(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


def read_by_openvino(source: str, target: str) -> None:
    """Another engine reads and compiles the file; there is nothing to write."""
    import openvino

    core = openvino.Core()
    core.compile_model(core.read_model(source), "CPU")


TOOLS = {
    "save": saved,
    "shapes": inferred,
    "opset": converted,
    "onnxslim": slimmed,
    "onnxsim": simplified,
    "quantize": quantised,
    "preprocess": prepared,
    "float16": halved,
    "openvino": read_by_openvino,
}

if __name__ == "__main__":
    TOOLS[sys.argv[1]](*sys.argv[2:])
