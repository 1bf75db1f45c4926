"""The models of the bench: architectures of public libraries (and two after their papers) with seeded weights.

This file runs in the environment of `requirements.txt`. Sizes are cut where the whole model would take minutes a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

SEED = 20

VISION_OPS: Any = None
"""Names of compiled ops that no model here uses, where torchvision was built for another torch than the one here.

Libraries import torchvision, which refuses to be imported without them.
"""
try:
    import torchvision  # noqa: F401
except RuntimeError:
    VISION_OPS = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for kind in ("nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d"):
        VISION_OPS.define(f"{kind}(Tensor a) -> Tensor")


@dataclass(frozen=True)
class Exportable:
    """A module with the arguments it is exported with; `vocabulary` bounds integer inputs."""

    module: nn.Module
    arguments: tuple[torch.Tensor, ...]
    names: tuple[str, ...] = ("input",)
    options: dict[str, Any] = field(default_factory=dict)


class First(nn.Module):
    """A module that gives one tensor of what the wrapped one gives."""

    def __init__(self, module: nn.Module, pick: Callable[[Any], Any], **fixed: Any) -> None:
        super().__init__()
        self.module, self.pick, self.fixed = module, pick, fixed

    def forward(self, *arguments: torch.Tensor) -> Any:
        return self.pick(self.module(*arguments, **self.fixed))


def vae_decoder() -> Exportable:
    from diffusers import AutoencoderKL

    blocks = 4
    model = AutoencoderKL(
        block_out_channels=(64, 128, 256, 256),
        layers_per_block=2,
        latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
    )
    return Exportable(model.decoder, (noise(1, 4, 64, 64),))


def diffusion_unet() -> Exportable:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=64, block_out_channels=(96, 192, 384, 384), cross_attention_dim=256, attention_head_dim=8
    )
    arguments = (noise(1, 4, 64, 64), torch.tensor([500.0]), noise(1, 77, 256))
    return Exportable(First(model, lambda out: out[0], return_dict=False), arguments, ("sample", "step", "text"))


def real_esrgan() -> Exportable:
    from spandrel.architectures.ESRGAN.__arch.RRDB import RRDBNet

    return Exportable(RRDBNet(in_nc=3, out_nc=3, num_filters=64, num_blocks=6, scale=4), (noise(1, 3, 256, 256),))


def sam_encoder() -> Exportable:
    from transformers import SamVisionConfig, SamVisionModel

    config = SamVisionConfig(num_hidden_layers=4, global_attn_indexes=[1, 3], attn_implementation="eager")
    return Exportable(First(SamVisionModel(config), lambda out: out.last_hidden_state), (noise(1, 3, 1024, 1024),))


def depth_anything() -> Exportable:
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

    backbone = Dinov2Config(
        hidden_size=384,
        num_hidden_layers=8,
        num_attention_heads=6,
        image_size=518,
        patch_size=14,
        out_indices=[2, 4, 6, 8],
        reshape_hidden_states=False,
    )
    config = DepthAnythingConfig(backbone_config=backbone, neck_hidden_sizes=[48, 96, 192, 384], fusion_hidden_size=64)
    config.backbone_config._attn_implementation = "eager"
    model = DepthAnythingForDepthEstimation(config)
    return Exportable(First(model, lambda out: out.predicted_depth), (noise(1, 3, 518, 518),))


def segformer() -> Exportable:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        depths=[3, 4, 6, 3], hidden_sizes=[64, 128, 320, 512], decoder_hidden_size=768, num_labels=150
    )
    return Exportable(First(SegformerForSemanticSegmentation(config), lambda out: out.logits), (noise(1, 3, 512, 512),))


def whisper_encoder() -> Exportable:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048, attn_implementation="eager"
    )
    return Exportable(First(WhisperEncoder(config), lambda out: out.last_hidden_state), (noise(1, 80, 3000),))


def yolov8s() -> Exportable:
    from ultralytics.nn.tasks import DetectionModel

    model = DetectionModel("yolov8s.yaml", verbose=False)
    model.model[-1].export = True
    model.model[-1].format = "onnx"
    return Exportable(model, (noise(1, 3, 640, 640),))


def u2net() -> Exportable:
    return Exportable(U2Net(), (noise(1, 3, 320, 320),))


def efficientnet() -> Exportable:
    import timm

    return Exportable(timm.create_model("efficientnet_b4"), (noise(1, 3, 380, 380),))


def modernbert() -> Exportable:
    from transformers import ModernBertConfig, ModernBertModel

    config = ModernBertConfig(
        num_hidden_layers=6,
        hidden_size=512,
        intermediate_size=768,
        num_attention_heads=8,
        attn_implementation="eager",
        reference_compile=False,
    )
    model = First(ModernBertModel(config), lambda out: out.last_hidden_state)
    return Exportable(model, (tokens(config.vocab_size, 1, 2048),), ("input_ids",))


def gpt2() -> Exportable:
    """Without the product with the vocabulary, whose result is a model output of 200 MB."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_layer=6, n_positions=1024, attn_implementation="eager", use_cache=False)
    model = First(GPT2Model(config), lambda out: out.last_hidden_state, use_cache=False)
    return Exportable(model, (tokens(config.vocab_size, 1, 1024),), ("input_ids",))


def nnunet() -> Exportable:
    from monai.networks.nets import DynUNet

    model = DynUNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=3,
        kernel_size=[3] * 5,
        strides=[1, 2, 2, 2, 2],
        upsample_kernel_size=[2] * 4,
        filters=[16, 32, 64, 128, 160],
    )
    return Exportable(model, (noise(1, 1, 96, 96, 96),))


def demucs() -> Exportable:
    return Exportable(Demucs(), (noise(1, 2, 262144),))


class Stage(nn.Sequential):
    """Convolution, batch norm, activation."""

    def __init__(self, channels: int, out: int, dilation: int = 1) -> None:
        conv = nn.Conv2d(channels, out, 3, padding=dilation, dilation=dilation)
        super().__init__(conv, nn.BatchNorm2d(out), nn.ReLU())


class NestedU(nn.Module):
    """A residual U-block of U2-Net (Qin et al. 2020, section 3.1) of some levels; dilated, not pooled, if `flat`."""

    def __init__(self, levels: int, channels: int, middle: int, out: int, flat: bool = False) -> None:
        super().__init__()
        self.flat = flat
        self.into = Stage(channels, out)
        rates = [2**level if flat else 1 for level in range(levels)]
        self.down = nn.ModuleList(
            Stage(out if level == 0 else middle, middle, rates[level]) for level in range(levels - 1)
        )
        self.bottom = Stage(middle, middle, rates[-1] if flat else 2)
        self.up = nn.ModuleList(
            Stage(2 * middle, out if level == 0 else middle, rates[level]) for level in range(levels - 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start = self.into(x)
        kept, value = [], start
        for number, stage in enumerate(self.down):
            if number and not self.flat:
                value = F.max_pool2d(value, 2, 2, ceil_mode=True)
            value = stage(value)
            kept.append(value)
        value = self.bottom(value)
        for stage, skip in zip(reversed(self.up), reversed(kept), strict=True):
            value = stage(torch.cat((like(value, skip), skip), 1))
        return torch.add(value, start)


class U2Net(nn.Module):
    """U2-Net (Qin et al. 2020, table 1) with all seven maps as outputs."""

    def __init__(self) -> None:
        super().__init__()
        down = ((7, 3, 32, 64), (6, 64, 32, 128), (5, 128, 64, 256), (4, 256, 128, 512), (4, 512, 256, 512, True))
        self.down = nn.ModuleList(NestedU(*sizes) for sizes in down)
        self.bottom = NestedU(4, 512, 256, 512, True)
        up = ((4, 1024, 256, 512, True), (4, 1024, 128, 256), (5, 512, 64, 128), (6, 256, 32, 64), (7, 128, 16, 64))
        self.up = nn.ModuleList(NestedU(*sizes) for sizes in up)
        self.sides = nn.ModuleList(nn.Conv2d(channels, 1, 3, padding=1) for channels in (512, 512, 256, 128, 64, 64))
        self.join = nn.Conv2d(6, 1, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept, value = [], x
        for stage in self.down:
            value = stage(value)
            kept.append(value)
            value = F.max_pool2d(value, 2, 2, ceil_mode=True)
        value = self.bottom(value)
        values = [value]
        for stage, skip in zip(self.up, reversed(kept), strict=True):
            value = stage(torch.cat((like(value, skip), skip), 1))
            values.append(value)
        maps = [like(side(each), x) for side, each in zip(self.sides, values, strict=True)]
        return tuple(torch.sigmoid(each) for each in (self.join(torch.cat(maps, 1)), *maps))


class Demucs(nn.Module):
    """Encoder and decoder of Demucs (Defossez et al. 2019, section 4) with skips, without the recurrent middle."""

    def __init__(self, channels: int = 48, depth: int = 5) -> None:
        super().__init__()
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        width = 2
        for level in range(depth):
            out = channels * 2**level
            self.down.append(
                nn.Sequential(nn.Conv1d(width, out, 8, 4), nn.ReLU(), nn.Conv1d(out, 2 * out, 1), nn.GLU(1))
            )
            last = [nn.ReLU()] if level else []
            self.up.insert(
                0,
                nn.Sequential(
                    nn.Conv1d(out, 2 * out, 3, padding=1), nn.GLU(1), nn.ConvTranspose1d(out, width, 8, 4), *last
                ),
            )
            width = out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, value = [], x
        for stage in self.down:
            value = stage(value)
            kept.append(value)
        for stage in self.up:
            skip = kept.pop()
            length = min(value.shape[-1], skip.shape[-1])
            value = stage(value[..., :length] + skip[..., :length])
        return value


def like(value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A picture scaled to the size of another."""
    return F.interpolate(value, size=other.shape[2:], mode="bilinear", align_corners=False)


def noise(*shape: int) -> torch.Tensor:
    """Seeded numbers around zero."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(SEED))


def tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    """Seeded token numbers below the size of a vocabulary."""
    return torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(SEED))


def fill(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
    """Seeded weights by fan-in and batch statistics of one run, so that outputs vary and answer to the input."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if not weight.is_floating_point():
                continue
            drawn = torch.randn(weight.shape, generator=generator)
            if weight.dim() > 1:
                weight.copy_(drawn / math.sqrt(weight[0].numel()))
            elif name.endswith("weight"):
                weight.copy_(1 + 0.1 * drawn)
            else:
                weight.copy_(0.1 * drawn)
        norms = [each for each in module.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
        if norms:
            module(*arguments)
        module.eval()


MODELS: dict[str, Callable[[], Exportable]] = {
    "vae-decoder": vae_decoder,
    "diffusion-unet": diffusion_unet,
    "real-esrgan": real_esrgan,
    "sam-encoder": sam_encoder,
    "depth-anything": depth_anything,
    "segformer-b2": segformer,
    "whisper-encoder": whisper_encoder,
    "yolov8s": yolov8s,
    "u2net": u2net,
    "efficientnet-b4": efficientnet,
    "modernbert": modernbert,
    "gpt2": gpt2,
    "nnunet-3d": nnunet,
    "demucs": demucs,
}
