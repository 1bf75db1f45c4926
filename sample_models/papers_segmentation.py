"""Networks of the papers that label every pixel: U-Net, U-Net on VGG16, FCN-8, SegNet."""

from __future__ import annotations

from sample_models.network import Network
from sample_models.papers_vision import VGG16_DEPTHS, VGG_WIDTHS, vgg_features
from sample_models.sizes import ImageSizes

UNET_WIDTHS = (64, 128, 256, 512)
GAIN_WITHOUT_RELU = 0.5**0.5  # He weights make up for a Relu: without one, values would grow


def _conv_relu(n: Network, name: str, x: str, width: int) -> str:
    """A 3x3 convolution and its Relu."""
    return n.relu(f"{name}.relu", n.conv(f"{name}.conv", x, width))


def _conv_norm(n: Network, name: str, x: str, width: int) -> str:
    """A 3x3 convolution with a bias, batch normalization, no Relu."""
    return n.norm(f"{name}.bn", n.conv(f"{name}.conv", x, width), GAIN_WITHOUT_RELU)


def _conv_norm_relu(n: Network, name: str, x: str, width: int) -> str:
    """A 3x3 convolution with a bias, batch normalization, Relu."""
    return n.relu(f"{name}.relu", n.norm(f"{name}.bn", n.conv(f"{name}.conv", x, width)))


def _double(n: Network, name: str, x: str, width: int) -> str:
    """Two convolutions with Relu."""
    return _conv_relu(n, f"{name}.1", _conv_relu(n, f"{name}.0", x, width), width)


def unet(sizes: ImageSizes) -> Network:
    """U-Net of Ronneberger et al. 2015, padded so that the labels have the size of the image."""
    n = sizes.network("unet", divisor=16)
    x, skips = "x", []
    for level, width in enumerate(UNET_WIDTHS, start=1):
        skips.append(_double(n, f"down{level}", x, sizes.scaled(width)))
        x = n.pool(f"down{level}.pool", skips[-1])
    x = _double(n, "bottom", x, sizes.scaled(1024))
    for level, skip in reversed(list(enumerate(skips, start=1))):
        up = n.double(f"up{level}.up", x, n.channels[skip])
        x = _double(n, f"up{level}", n.concat(f"up{level}.concat", skip, up), n.channels[skip])
    n.conv("head", x, sizes.classes, 1)
    return n


def unet_vgg(sizes: ImageSizes) -> Network:
    """U-Net on four stages of VGG16, as Jain et al. 2020 evaluate it; labels at half the resolution."""
    n = sizes.network("unet_vgg", divisor=16)
    *skips, x = vgg_features(n, sizes, VGG16_DEPTHS[:4])
    for level, width in ((3, 512), (2, 256), (1, 128)):
        y = n.norm(f"up{level}.bn", _conv_relu(n, f"up{level}", x, sizes.scaled(width)))
        x = n.concat(f"up{level}.concat", n.upsample(f"up{level}.up", y), skips[level - 1])
    x = n.norm("up0.bn", _conv_relu(n, "up0", x, sizes.scaled(64)))
    n.conv("head", x, sizes.classes)
    return n


def fcn8(sizes: ImageSizes) -> Network:
    """FCN-8s of Long et al. 2015 on VGG16: scores at three scales, added and enlarged by transposed convolutions."""
    n = sizes.network("fcn8", divisor=32)
    *_, fine, middle, x = vgg_features(n, sizes, VGG16_DEPTHS)
    for name, kernel in (("fc6", 7), ("fc7", 1)):
        x = n.relu(f"{name}.relu", n.conv(name, x, sizes.scaled(4096), kernel))
    x = n.conv("score", x, sizes.classes, 1)
    for name, skip in (("pool4", middle), ("pool3", fine)):
        x = n.enlarge(f"{name}.up", x, sizes.classes, 2)
        x = n.add(f"{name}.add", x, n.conv(f"{name}.score", skip, sizes.classes, 1))
    n.enlarge("up", x, sizes.classes, 8)
    return n


def segnet(sizes: ImageSizes) -> Network:
    """The SegNet that Jain et al. 2020 evaluate: one convolution per level; labels at half the resolution."""
    n, x = sizes.network("segnet", divisor=16), "x"
    for level, width in enumerate((64, 128, 256, 256), start=1):
        x = n.pool(f"down{level}.pool", _conv_norm_relu(n, f"down{level}", x, sizes.scaled(width)))
    x = _conv_norm(n, "up4", x, sizes.scaled(512))
    for level, width in ((3, 256), (2, 128), (1, 64)):
        x = _conv_norm(n, f"up{level}", n.upsample(f"up{level}.up", x), sizes.scaled(width))
    n.conv("head", x, sizes.classes)
    return n


def segnet_vgg(sizes: ImageSizes) -> Network:
    """SegNet of Badrinarayanan et al. 2017: VGG16's convolutions and their mirror image.

    It upsamples by nearest neighbours, where the paper puts values back where max pooling took them.
    """
    n, x = sizes.network("segnet_vgg", divisor=32), "x"
    stages = list(enumerate(zip(VGG_WIDTHS, VGG16_DEPTHS, strict=True), start=1))
    for level, (width, depth) in stages:
        for index in range(depth):
            x = _conv_norm_relu(n, f"down{level}.{index}", x, sizes.scaled(width))
        x = n.pool(f"down{level}.pool", x)
    for level, (width, depth) in reversed(stages):
        x = n.upsample(f"up{level}.up", x)
        last = VGG_WIDTHS[max(0, level - 2)]
        for index, out in enumerate([width] * (depth - 1) + [last] * (level > 1)):
            x = _conv_norm_relu(n, f"up{level}.{index}", x, sizes.scaled(out))
    n.conv("head", x, sizes.classes)
    return n
