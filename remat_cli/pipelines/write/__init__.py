"""Stages and the pieces of a training step as ONNX files; the only part of the wing that knows ONNX."""
