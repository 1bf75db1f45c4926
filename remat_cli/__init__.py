"""remat: compile an ONNX model to fit a memory budget, with the same outputs, bit for bit."""
