"""Models to try the compiler on: small ones made here and the ones bundled with the onnx package."""
