"""The only package that runs ONNX Runtime."""
