"""Models of texts, pictures and sounds of any size, exported by torch: `python -m bench.any_size_models FOLDER`.

Run in the environment of bench/real/requirements.txt. Layers and heads are as many and as wide as in the models whose
names they have; they are as narrow as the machine needs at length 8,192, with random weights.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

SEED = 0
LAYERS, HEADS, HEAD = 12, 4, 64
WIDTH, WIDE = HEADS * HEAD, 4 * HEADS * HEAD
WORDS, LONGEST = 1000, 8192
TEXT = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@dataclass(frozen=True)
class Dynamic:
    """A module, what it is traced with, and which of the dimensions of its inputs have names, by input."""

    module: nn.Module
    inputs: Mapping[str, Tensor]
    axes: Mapping[str, Mapping[int, str]]
    outputs: Sequence[str] = ("y",)
    options: Mapping[str, Any] = field(default_factory=dict)


class Hidden(nn.Module):
    """What the last layer of an encoder says of every word."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """[batch, seq] of words and of a mask to [batch, seq, width]."""
        made: Tensor = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return made


def text(encoder: nn.Module) -> Dynamic:
    """An encoder of words, with the words to look at."""
    ids = torch.randint(3, WORDS, (2, 160))
    axes = {name: {0: "batch", 1: "seq"} for name in ("input_ids", "attention_mask")}
    return Dynamic(Hidden(encoder), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, axes)


def bert() -> Dynamic:
    """Learnt positions, a mask that all layers read."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=WIDE,
        max_position_embeddings=LONGEST,
        vocab_size=WORDS,
        attn_implementation="eager",
    )
    return text(BertModel(config, add_pooling_layer=False))


def modernbert() -> Dynamic:
    """Rotary positions; two layers of three look at neighbours only."""
    from transformers import ModernBertConfig, ModernBertModel

    config = ModernBertConfig(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=WIDE,
        max_position_embeddings=LONGEST,
        attn_implementation="eager",
        cls_token_id=1,
        sep_token_id=2,
        **TEXT,
    )
    return text(ModernBertModel(config))


def t5() -> Dynamic:
    """One bias of positions for all layers."""
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=WORDS, d_model=WIDTH, d_kv=HEAD, d_ff=WIDE, num_layers=LAYERS, num_heads=HEADS, pad_token_id=0
    )
    return text(T5EncoderModel(config))


class Step(nn.Module):
    """A decoder that goes on from the keys and values of the words before."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * layers))
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(WIDTH, WIDE) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(WIDE, WIDTH) for _ in range(layers))
        self.last = nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """Scores of the next word, and keys and values with those of the new words."""
        n, t = input_ids.shape
        x = self.words(input_ids)
        before = past[0].shape[2]
        away = torch.arange(before + t)[None, :] - torch.arange(before, before + t)[:, None]
        bias = torch.where(away > 0, -1e9, 0.0)[None, None]
        present: list[Tensor] = []
        for at, qkv in enumerate(self.qkv):
            q, k, v = (
                part.view(n, t, HEADS, HEAD).transpose(1, 2) for part in qkv(self.norms[2 * at](x)).split(WIDTH, -1)
            )
            k, v = torch.cat([past[2 * at], k], 2), torch.cat([past[2 * at + 1], v], 2)
            present += [k, v]
            y = (q @ k.transpose(-1, -2) * HEAD**-0.5 + bias).softmax(-1) @ v
            x = x + self.out[at](y.transpose(1, 2).reshape(n, t, WIDTH))
            x = x + self.down[at](nn.functional.gelu(self.up[at](self.norms[2 * at + 1](x))))
        return (self.last(x[:, -1]), *present)


def decoder() -> Dynamic:
    """Words, and keys and values of those before them: two lengths."""
    layers = 4
    past = [f"past_{at}_{name}" for at in range(layers) for name in ("key", "value")]
    inputs = {"input_ids": torch.randint(3, WORDS, (2, 9))}
    inputs |= {name: torch.randn(2, HEADS, 17, HEAD) for name in past}
    axes: dict[str, Mapping[int, str]] = {"input_ids": {0: "batch", 1: "seq"}}
    axes |= {name: {0: "batch", 2: "past"} for name in past}
    return Dynamic(Step(layers), inputs, axes, ("y", *(name.replace("past", "present") for name in past)))


class Frames(nn.Module):
    """Whisper's encoder for sounds of any length."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, frames: Tensor) -> Tensor:
        """[1, 80, frames] to [1, half as many, width]."""
        encoder, gelu = self.encoder, nn.functional.gelu
        x = gelu(encoder.conv2(gelu(encoder.conv1(frames)))).permute(0, 2, 1)
        x = x + encoder.embed_positions.weight[: x.shape[1]]
        for layer in encoder.layers:
            made = layer(x, None)
            x = made[0] if isinstance(made, tuple) else made
        last: Tensor = encoder.layer_norm(x)
        return last


def whisper() -> Dynamic:
    """Two convolutions along the frames, then layers of a text's kind."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=WIDTH,
        encoder_layers=6,
        encoder_attention_heads=HEADS,
        encoder_ffn_dim=WIDE,
        attn_implementation="eager",
    )
    return Dynamic(Frames(WhisperEncoder(config)), {"frames": torch.randn(1, 80, 200)}, {"frames": {2: "frames"}})


class Finds(nn.Module):
    """A detector: features at three scales, joined from coarse to fine, and boxes with scores at each place."""

    def __init__(self, width: int = 32, kinds: int = 20) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 4 * width]
        self.down = nn.ModuleList(_block(a, b, 2) for a, b in zip([3, *widths], widths, strict=False))
        self.side = nn.ModuleList(_block(each, each, 1) for each in widths)
        self.join = nn.ModuleList(_block(a + b, a, 1) for a, b in itertools.pairwise(widths[1:]))
        self.heads = nn.ModuleList(nn.Conv2d(each, 5 + kinds, 1) for each in widths[1:])

    def forward(self, pixels: Tensor) -> Tensor:
        """[batch, 3, height, width] to [batch, places, 5 + kinds]."""
        x, features = pixels, []
        for down, side in zip(self.down, self.side, strict=True):
            x = down(x)
            x = x + side(x)
            features.append(x)
        joined = [features[-1]]
        for join, fine in zip(reversed(self.join), reversed(features[1:-1]), strict=True):
            joined.append(join(torch.cat([fine, nn.functional.interpolate(joined[-1], scale_factor=2.0)], 1)))
        made = [head(each).flatten(2) for head, each in zip(self.heads, reversed(joined), strict=True)]
        return torch.cat(made, 2).transpose(1, 2).sigmoid()


def _block(before: int, after: int, stride: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.SiLU(inplace=True)
    )


def detector() -> Dynamic:
    """Convolutions of as many pictures as there are."""
    return Dynamic(Finds(), {"pixels": torch.randn(2, 3, 256, 256)}, {"pixels": {0: "batch"}})


MODELS: dict[str, Callable[[], Dynamic]] = {
    "bert": bert,
    "modernbert": modernbert,
    "t5": t5,
    "decoder": decoder,
    "whisper": whisper,
    "detector": detector,
}


def save(name: str, path: Path) -> None:
    """Export one model, by graphs, else by traces."""
    torch.manual_seed(SEED)
    made = MODELS[name]()
    made.module.eval()
    common: dict[str, Any] = {"input_names": list(made.inputs), "output_names": list(made.outputs)}
    values = tuple(made.inputs.values())
    names = {each for axes in made.axes.values() for each in axes.values()}
    dims = {each: Dim(each, min=1, max=LONGEST) for each in names}
    shapes: Any = tuple({axis: dims[each] for axis, each in made.axes[name].items()} for name in made.inputs)
    if name == "decoder":
        shapes = (shapes[0], shapes[1:])
    try:
        torch.onnx.export(
            made.module, values, str(path), dynamo=True, external_data=False, dynamic_shapes=shapes, **common
        )
    except Exception as error:
        say(f"  {name}: graph exporter: {str(error).splitlines()[0][:150]}; by traces instead")
        axes: Any = {name: dict(each) for name, each in made.axes.items()}
        torch.onnx.export(made.module, values, str(path), dynamo=False, opset_version=17, dynamic_axes=axes, **common)


def say(line: str) -> None:
    """Tell at once what is being done."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Write the models that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    for name in asked.names or MODELS:
        path = asked.folder / f"{name}.onnx"
        if not path.exists():
            say(f"making {path}")
            save(name, path)


if __name__ == "__main__":
    main()
