"""What a user may say about a training step, and what is known of one that was built."""

from pathlib import Path
from typing import Any, Literal

import msgspec

LossName = Literal["cross-entropy", "mse", "l1", "dice"]
OptimizerName = Literal["sgd", "momentum", "adam", "adamw"]


class TrainOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a training step is made from a forward model.

    `loss` is computed from the output `output` (None: the only one), unless `loss_output` names an output that is the
    loss already. `class_axis` is where classes lie for cross-entropy (None: the last axis of a rank 3 output, else
    axis 1). `optimizer` None leaves the gradients as outputs. `optimizer_options` are its own (`beta1: 0.9`).
    `trainable` and `frozen` are patterns of weight names; frozen ones win. `batch_norm` says whether batch
    normalization uses the statistics of the batch or stays as in inference. `batch` replaces the first dimension of
    every input. `keep_outputs` makes the model's outputs outputs of the step. `gradient_rules` maps op types to
    `module:function`.
    """

    loss: LossName | None = None
    loss_output: str | None = None
    output: str | None = None
    class_axis: int | None = None
    optimizer: OptimizerName | None = "sgd"
    optimizer_options: dict[str, Any] = {}
    trainable: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    batch_norm: Literal["train", "frozen"] = "train"
    dropout: bool = True
    batch: int | None = None
    keep_outputs: bool = False
    gradient_rules: dict[str, str] = {}


class StepFacts(msgspec.Struct, frozen=True):
    """What is known of a training step that was built.

    `parameters` counts trained elements, `trained` and `frozen` name weights. `state` maps each output to the input
    that it becomes in the next step. `target` is the input that holds what the outputs should be, if there is one.
    """

    forward_ops: int
    backward_ops: int
    update_ops: int
    parameters: int
    trained: tuple[str, ...]
    frozen: tuple[str, ...]
    state: dict[str, str]
    inputs: tuple[str, ...]
    loss: str
    target: str | None = None
    notes: tuple[str, ...] = ()


class StepPaths(msgspec.Struct, frozen=True):
    """Where `train` writes: the training step, and its first state."""

    step: Path
    state: Path
