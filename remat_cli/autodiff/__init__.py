"""From a forward model to a training step: gradients, losses and optimizers in standard ONNX ops."""
