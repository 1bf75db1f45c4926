"""The only package that reads and writes ONNX models."""
