"""Image classifiers of the papers, with the names of their torchvision versions: VGG, ResNet, MobileNet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sample_models.network import Network
from sample_models.sizes import ImageSizes

VGG_WIDTHS = (64, 128, 256, 512, 512)
VGG16_DEPTHS = (2, 2, 3, 3, 3)
VGG19_DEPTHS = (2, 2, 4, 4, 4)
VGG_POOLS = 5
MOBILENET_BLOCKS = (  # width and stride
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *[(512, 1)] * 5,
    *((1024, 2), (1024, 1)),
)
RESNET_WIDTHS = (64, 128, 256, 512)
LAST_GAIN = 0.4  # scale that ends a residual branch: small, so that sums do not grow with depth

Block = Callable[[Network, str, str, int, int], str]  # network, name, input, width, stride


def vgg_features(n: Network, sizes: ImageSizes, depths: Sequence[int]) -> list[str]:
    """Stages of convolutions, each ending in a pooling: what the stages make."""
    x, index, levels = n.entry.name, 0, []
    for width, depth in zip(VGG_WIDTHS, depths, strict=False):
        for _ in range(depth):
            x = n.relu(f"features.{index + 1}", n.conv(f"features.{index}", x, sizes.scaled(width)))
            index += 2
        x = n.pool(f"features.{index}", x)
        index += 1
        levels.append(x)
    return levels


def _vgg(name: str, sizes: ImageSizes, depths: Sequence[int]) -> Network:
    n = sizes.network(name, divisor=2**VGG_POOLS)
    height, width = (side >> VGG_POOLS for side in sizes.resolution)
    x = n.flatten("flatten", vgg_features(n, sizes, depths)[-1], height * width)
    for index in (0, 3):
        x = n.relu(f"classifier.{index + 1}", n.dense(f"classifier.{index}", x, sizes.scaled(4096)))
    n.dense("classifier.6", x, sizes.classes)
    return n


def vgg16(sizes: ImageSizes) -> Network:
    """Configuration D of Simonyan and Zisserman 2015; the classifier grows with the resolution."""
    return _vgg("vgg16", sizes, VGG16_DEPTHS)


def vgg19(sizes: ImageSizes) -> Network:
    """Configuration E of Simonyan and Zisserman 2015; the classifier grows with the resolution."""
    return _vgg("vgg19", sizes, VGG19_DEPTHS)


def _classifier(n: Network, x: str, name: str, classes: int) -> None:
    """Mean over the image and a fully connected layer."""
    n.dense(name, n.flatten("flatten", n.op("avgpool", "GlobalAveragePool", x), 1), classes)


def _basic_block(n: Network, name: str, x: str, width: int, stride: int) -> str:
    """Two 3x3 convolutions."""
    y = n.norm(f"{name}.bn1", n.bare_conv(f"{name}.conv1", x, width, 3, stride))
    return n.norm(f"{name}.bn2", n.bare_conv(f"{name}.conv2", n.relu(f"{name}.relu1", y), width), LAST_GAIN)


def _bottleneck(n: Network, name: str, x: str, width: int, stride: int) -> str:
    """A 3x3 convolution between two of 1x1, the last four times as wide."""
    y = n.norm(f"{name}.bn1", n.bare_conv(f"{name}.conv1", x, width, 1))
    y = n.norm(f"{name}.bn2", n.bare_conv(f"{name}.conv2", n.relu(f"{name}.relu1", y), width, 3, stride))
    return n.norm(f"{name}.bn3", n.bare_conv(f"{name}.conv3", n.relu(f"{name}.relu2", y), 4 * width, 1), LAST_GAIN)


def _residual(n: Network, block: Block, name: str, x: str, shape: tuple[int, int]) -> str:
    """A block of (width, stride) with its shortcut, which is projected where size or width change."""
    _, stride = shape
    y = block(n, name, x, *shape)
    if stride > 1 or n.channels[x] != n.channels[y]:
        x = n.bare_conv(f"{name}.downsample.0", x, n.channels[y], 1, stride)
        x = n.norm(f"{name}.downsample.1", x)
    return n.relu(f"{name}.relu", n.add(f"{name}.add", y, x))


def _resnet(name: str, sizes: ImageSizes, block: Block, depths: Sequence[int]) -> Network:
    n = sizes.network(name)
    x = n.relu("relu", n.norm("bn1", n.bare_conv("conv1", "x", sizes.scaled(64), 7, 2)))
    x = n.op("maxpool", "MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for layer, (width, depth) in enumerate(zip(RESNET_WIDTHS, depths, strict=True), start=1):
        for index in range(depth):
            stride = 2 if layer > 1 and index == 0 else 1
            x = _residual(n, block, f"layer{layer}.{index}", x, (sizes.scaled(width), stride))
    _classifier(n, x, "fc", sizes.classes)
    return n


def resnet18(sizes: ImageSizes) -> Network:
    """ResNet-18 of He et al. 2016."""
    return _resnet("resnet18", sizes, _basic_block, (2, 2, 2, 2))


def resnet34(sizes: ImageSizes) -> Network:
    """ResNet-34 of He et al. 2016."""
    return _resnet("resnet34", sizes, _basic_block, (3, 4, 6, 3))


def resnet50(sizes: ImageSizes) -> Network:
    """ResNet-50 of He et al. 2016, with the stride in the 3x3 convolution as in torchvision."""
    return _resnet("resnet50", sizes, _bottleneck, (3, 4, 6, 3))


def _relu6(n: Network, name: str, x: str) -> str:
    """Relu up to six."""
    return n.op(name, "Clip", x, n.number("zero", 0.0), n.number("six", 6.0))


def mobilenet(sizes: ImageSizes) -> Network:
    """MobileNet of Howard et al. 2017: depthwise separable convolutions."""
    n = sizes.network("mobilenet")
    x = _relu6(n, "relu", n.norm("bn", n.bare_conv("conv", "x", sizes.scaled(32), 3, 2)))
    for index, (width, stride) in enumerate(MOBILENET_BLOCKS, start=1):
        name = f"block{index}"
        x = _relu6(n, f"{name}.relu1", n.norm(f"{name}.bn1", n.depthwise(f"{name}.depthwise", x, stride)))
        x = n.bare_conv(f"{name}.pointwise", x, sizes.scaled(width), 1)
        x = _relu6(n, f"{name}.relu2", n.norm(f"{name}.bn2", x))
    _classifier(n, x, "classifier", sizes.classes)
    return n
