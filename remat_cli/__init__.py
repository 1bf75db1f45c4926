"""remat: compile an ONNX model to fit a memory budget, with the same outputs, bit for bit."""

__version__ = "0.1.0"
