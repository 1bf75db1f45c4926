"""Small graphs, and what the layout step of the runtime makes of each with blocks of 16 channels (`nets.told`)."""

from __future__ import annotations

from tests.ort_rules.nets import CONTRIB, Net

SAME = {"pads": (1, 1, 1, 1)}
HALF = {"kernel_shape": (2, 2), "strides": (2, 2)}
P2 = {"pads": (1, 1, 1, 1), "strides": (2, 2)}
S2 = {"strides": (2, 2)}
FLOOR = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def x(channels: int = 16) -> Net:
    return Net(x=(1, channels, 8, 8))


def after() -> Net:
    """A convolution that lies in blocks."""
    return x().conv("a", "x", 16, 16)


def outside(**convolution: str) -> Net:
    """A convolution that does not, and another input as large as its result."""
    return Net(x=(1, 18, 8, 8), z=(1, 18, 8, 8)).conv("a", "x", 18, 18, **convolution)


def norm(net: Net, made: str = "y") -> Net:
    constants = dict.fromkeys(("scale", "shift", "mean", "variance"), (16,))
    return net.floats(**constants).op(made, "BatchNormalization", "a", *constants, epsilon=1e-5)


def resized(*scales: float, **how: str) -> Net:
    found = after().constant("scales", *(scales or (1, 1, 2, 2)))
    return found.op("y", "Resize", "a", "", "scales", shape=(1, 16, 16, 16), **how)


def u() -> Net:
    """A convolution of a tensor of unknown sizes."""
    return Net(x=(1, 16, None, None)).conv("a", "x", 16, 16)


def pair(one: dict, two: dict, one_kernel: int = 1, two_kernel: int = 1) -> Net:
    """A product of two convolutions of one tensor."""
    found = u().conv("b", "a", 16, 16, one_kernel, **one).conv("c", "a", 16, 16, two_kernel, **two)
    return found.op("y", "Mul", "b", "c")


CONVOLUTIONS = {
    "conv": (x().conv("a", "x", 16, 16), "x'=*ReorderInput(x) a#=*Conv(x') a=*ReorderOutput(a#)"),
    "conv of few channels": (x(3).conv("a", "x", 3, 16), "a#=*Conv(x) a=*ReorderOutput(a#)"),
    "conv of 12": (x(12).conv("a", "x", 12, 16), "a#=*Conv(x) a=*ReorderOutput(a#)"),
    "conv of 20": (x(20).conv("a", "x", 20, 16), "x'=*ReorderInput(x) a#=*Conv(x') a=*ReorderOutput(a#)"),
    "conv of 18": (x(18).conv("a", "x", 18, 16), "a=Conv(x)"),
    "conv to 18": (x().conv("a", "x", 16, 18), "x'=*ReorderInput(x) a#=*Conv(x') a=*ReorderOutput(a#)"),
    "two of one": (
        x().conv("a", "x", 16, 16).conv("b", "x", 16, 16),
        "x'=*ReorderInput(x) b#=*Conv(x') a#=*Conv(x') b=*ReorderOutput(b#) a=*ReorderOutput(a#)",
    ),
    "depthwise": (x(20).conv("a", "x", 1, 20, groups=20), "x'=*ReorderInput(x) a#=*Conv(x') a=*ReorderOutput(a#)"),
    "depthwise of 18": (x(18).conv("a", "x", 1, 18, groups=18), "a=Conv(x)"),
    "depthwise of 32 from 16": (x(16).conv("a", "x", 1, 32, groups=16), "a=Conv(x)"),
    "two groups": (x(32).conv("a", "x", 16, 32, groups=2), "x'=*ReorderInput(x) a#=*Conv(x') a=*ReorderOutput(a#)"),
    "two groups to 48": (x(32).conv("a", "x", 16, 48, groups=2), "a=Conv(x)"),
    "two groups of 8": (x(16).conv("a", "x", 8, 32, groups=2), "a=Conv(x)"),
    "two groups of 24": (x(48).conv("a", "x", 24, 32, groups=2), "a=Conv(x)"),
    "no bias": (x().conv("a", "x", 16, 16, bias=""), "x'=*ReorderInput(x) a#=*Conv(x') a=*ReorderOutput(a#)"),
    "bias that is fed": (Net(x=(1, 16, 8, 8), b=(16,)).conv("a", "x", 16, 16, bias="b"), "a=Conv(x,b)"),
    "weight that is fed": (
        Net(x=(1, 16, 8, 8), w=(16, 16, 1, 1)).floats(b=(16,)).op("a", "Conv", "x", "w", "b"),
        "a=Conv(x,w)",
    ),
    "one axis": (Net(x=(1, 16, 8)).floats(w=(16, 16, 1), b=(16,)).op("a", "Conv", "x", "w", "b"), "a=Conv(x)"),
    "fused": (
        x().conv("a", "x", 16, 16, op_type="FusedConv", domain=CONTRIB, activation="Relu"),
        "x'=*ReorderInput(x) a#=*Conv+Relu(x') a=*ReorderOutput(a#)",
    ),
    "fused with sum": (
        Net(x=(1, 16, 8, 8), z=(1, 16, 8, 8)).conv("a", "x", 16, 16, more=("z",), op_type="FusedConv", domain=CONTRIB),
        "a=FusedConv+sum(x,z)",
    ),
}
"""Which convolutions lie in blocks of 16."""

POOLS = {
    "pool": (
        x().op("y", "MaxPool", "x", shape=(1, 16, 4, 4), **HALF),
        "x'=*ReorderInput(x) y#=*MaxPool(x') y=*ReorderOutput(y#)",
    ),
    "pool of 24": (x(24).op("y", "MaxPool", "x", shape=(1, 24, 4, 4), **HALF), "y=MaxPool(x)"),
    "pool of averages": (
        x().op("y", "AveragePool", "x", shape=(1, 16, 4, 4), **HALF),
        "x'=*ReorderInput(x) y#=*AveragePool(x') y=*ReorderOutput(y#)",
    ),
    "pool with places": (x().op("y,i", "MaxPool", "x", shape=(1, 16, 4, 4), **HALF), "y,i=MaxPool(x)"),
    "pool with no places": (
        x().op("y,", "MaxPool", "x", shape=(1, 16, 4, 4), **HALF),
        "x'=*ReorderInput(x) y#=*MaxPool(x') y=*ReorderOutput(y#)",
    ),
    "pool of unknown": (Net(x=(1, "C", 8, 8)).op("y", "MaxPool", "x", **HALF), "y=MaxPool(x)"),
    "pool of one axis": (Net(x=(1, 16, 8)).op("y", "MaxPool", "x", kernel_shape=(1,)), "y=MaxPool(x)"),
    "pool behind conv": (
        after().op("y", "MaxPool", "a", shape=(1, 16, 4, 4), **HALF),
        "x'=*ReorderInput(x) a#=*Conv(x') y#=*MaxPool(a#) y=*ReorderOutput(y#)",
    ),
    "global": (
        x().op("y", "GlobalAveragePool", "x", shape=(1, 16, 1, 1)),
        "x'=*ReorderInput(x) y#=*GlobalAveragePool(x') y=*ReorderOutput(y#)",
    ),
    "global behind": (
        after().op("y", "GlobalAveragePool", "a", shape=(1, 16, 1, 1)),
        "x'=*ReorderInput(x) a#=*Conv(x') y#=*GlobalAveragePool(a#) y=*ReorderOutput(y#)",
    ),
    "global max behind": (
        after().op("y", "GlobalMaxPool", "a", shape=(1, 16, 1, 1)),
        "x'=*ReorderInput(x) a#=*Conv(x') y#=*GlobalMaxPool(a#) y=*ReorderOutput(y#)",
    ),
    "global of 24": (
        x().conv("a", "x", 16, 24).op("y", "GlobalAveragePool", "a", shape=(1, 24, 1, 1)),
        "y=GlobalAveragePool(a) x'=*ReorderInput(x) a#=*Conv(x') a=*ReorderOutput(a#)",
    ),
}
"""Which pools do."""

BESIDE = {
    "sum": (
        after().conv("b", "a", 16, 16).op("y", "Add", "a", "b"),
        "x'=*ReorderInput(x) a#=*Conv(x') b#=*Conv+sum(a#,a#)[b+y] y=*ReorderOutput(b#)",
    ),
    "sum of two": (
        after().conv("b", "a", 16, 16).op("y", "Sum", "b", "a"),
        "x'=*ReorderInput(x) a#=*Conv(x') b#=*Conv+sum(a#,a#)[b+y] y=*ReorderOutput(b#)",
    ),
    "sum of two that nobody else reads": (
        after().conv("b", "x", 16, 16).op("y", "Add", "a", "b"),
        "x'=*ReorderInput(x) b#=*Conv(x') a#=*Conv+sum(x',b#)[a+y] y=*ReorderOutput(a#)",
    ),
    "sum where the first has an activation": (
        after().op("r", "Relu", "a").conv("b", "x", 16, 16).op("y", "Add", "r", "b"),
        "x'=*ReorderInput(x) b#=*Conv+sum(x',a#)[b+y] a#=*Conv+Relu(x')[a+r] y=*ReorderOutput(b#)",
    ),
    "sum where both have": (
        after().op("r", "Relu", "a").conv("b", "x", 16, 16).op("s", "Relu", "b").op("y", "Add", "r", "s"),
        "y#=Add(a#,b#) x'=*ReorderInput(x) b#=*Conv+Relu(x')[b+s] a#=*Conv+Relu(x')[a+r] y=*ReorderOutput(y#)",
    ),
    "sum without bias": (
        after().conv("b", "a", 16, 16, bias="").op("y", "Add", "a", "b"),
        "x'=*ReorderInput(x) a#=*Conv(x') b#=*Conv+sum(a#,,a#)[b+y] y=*ReorderOutput(b#)",
    ),
    "second sum": (
        after().conv("b", "a", 16, 16).op("s", "Add", "a", "b").op("t", "Add", "s", "a").op("u", "Relu", "t"),
        "t#=Add(b#,a#) u#=Relu(t#) x'=*ReorderInput(x) a#=*Conv(x') b#=*Conv+sum(a#,a#)[b+s] u=*ReorderOutput(u#)",
    ),
    "sum of itself": (
        after().op("y", "Add", "a", "a"),
        "y#=Add(a#,a#) x'=*ReorderInput(x) a#=*Conv(x') y=*ReorderOutput(y#)",
    ),
    "sum of three": (
        after().conv("b", "a", 16, 16).conv("c", "a", 16, 16).op("y", "Sum", "a", "b", "c"),
        "y#=Sum(a#,b#,c#) x'=*ReorderInput(x) a#=*Conv(x') c#=*Conv(a#) b#=*Conv(a#) y=*ReorderOutput(y#)",
    ),
    "product": (
        after().conv("b", "a", 16, 16).op("y", "Mul", "a", "b"),
        "y#=Mul(a#,b#) x'=*ReorderInput(x) a#=*Conv(x') b#=*Conv(a#) y=*ReorderOutput(y#)",
    ),
    "sum and activation": (
        after().conv("b", "a", 16, 16).op("s", "Add", "a", "b").op("y", "Relu", "s"),
        "x'=*ReorderInput(x) a#=*Conv(x') b#=*Conv+sum+Relu(a#,a#)[b+s+y] y=*ReorderOutput(b#)",
    ),
    "sum that is kept": (
        after().conv("b", "a", 16, 16).op("s", "Add", "a", "b").op("y", "Relu", "s").keep("s"),
        "y#=Relu(b#) x'=*ReorderInput(x) a#=*Conv(x') b#=*Conv+sum(a#,a#)[b+s] "
        "s=*ReorderOutput(b#) y=*ReorderOutput(y#)",
    ),
    "sum with one outside": (
        Net(x=(1, 16, 8, 8), z=(1, 16, 8, 8)).conv("a", "x", 16, 16).op("y", "Add", "a", "z"),
        "y=Add(a,z) x'=*ReorderInput(x) a#=*Conv(x') a=*ReorderOutput(a#)",
    ),
    "sum of other channels": (
        after().conv("b", "a", 16, 1).op("y", "Add", "a", "b"),
        "y=Add(a,b) x'=*ReorderInput(x) a#=*Conv(x') b#=*Conv(a#) a=*ReorderOutput(a#) b=*ReorderOutput(b#)",
    ),
    "joined": (
        after().conv("b", "a", 16, 32).op("j", "Concat", "a", "b", axis=1, shape=(1, 48, 8, 8)).conv("y", "j", 48, 16),
        "j#=Concat(a#,b#) x'=*ReorderInput(x) a#=*Conv(x') b#=*Conv(a#) y#=*Conv(j#) y=*ReorderOutput(y#)",
    ),
    "joined beside": (
        after().conv("b", "a", 16, 16).op("j", "Concat", "a", "b", axis=2, shape=(1, 16, 16, 8)),
        "j=Concat(a,b) x'=*ReorderInput(x) a#=*Conv(x') b#=*Conv(a#) a=*ReorderOutput(a#) b=*ReorderOutput(b#)",
    ),
    "joined of 24": (
        after().conv("b", "a", 16, 24).op("j", "Concat", "a", "b", axis=1, shape=(1, 40, 8, 8)),
        "j=Concat(a,b) x'=*ReorderInput(x) a#=*Conv(x') b#=*Conv(a#) a=*ReorderOutput(a#) b=*ReorderOutput(b#)",
    ),
    "joined, and one read elsewhere": (
        after()
        .conv("b", "x", 16, 16)
        .op("j", "Concat", "a", "b", axis=1, shape=(1, 32, 8, 8))
        .op("y", "Softsign", "b"),
        "j#=Concat(a#,b#) y=Softsign(b) x'=*ReorderInput(x) b#=*Conv(x') a#=*Conv(x') b=*ReorderOutput(b#) "
        "j=*ReorderOutput(j#)",
    ),
    "product, and one read elsewhere": (
        after().conv("b", "x", 16, 16).op("p", "Mul", "a", "b").op("y", "Softsign", "b"),
        "p#=Mul(a#,b#) y=Softsign(b) x'=*ReorderInput(x) b#=*Conv(x') a#=*Conv(x') b=*ReorderOutput(b#) "
        "p=*ReorderOutput(p#)",
    ),
    "norm, and what it reads elsewhere": (
        norm(x().op("a", "MaxPool", "x", shape=(1, 16, 4, 4), **HALF)).op("z", "Softsign", "a"),
        "z=Softsign(a) x'=*ReorderInput(x) a#=*MaxPool(x') y#=*Conv(a#) a=*ReorderOutput(a#) y=*ReorderOutput(y#)",
    ),
    "relu": (after().op("y", "Relu", "a"), "x'=*ReorderInput(x) a#=*Conv+Relu(x')[a+y] y=*ReorderOutput(a#)"),
    "sigmoid": (after().op("y", "Sigmoid", "a"), "x'=*ReorderInput(x) a#=*Conv+Sigmoid(x')[a+y] y=*ReorderOutput(a#)"),
    "tanh": (after().op("y", "Tanh", "a"), "x'=*ReorderInput(x) a#=*Conv+Tanh(x')[a+y] y=*ReorderOutput(a#)"),
    "leaky behind a pool": (
        x().op("p", "MaxPool", "x", shape=(1, 16, 4, 4), **HALF).op("y", "LeakyRelu", "p"),
        "y=LeakyRelu(p) x'=*ReorderInput(x) p#=*MaxPool(x') p=*ReorderOutput(p#)",
    ),
    "gelu": (
        after().op("y", "Gelu", "a", domain=CONTRIB),
        "y#=Gelu(a#) x'=*ReorderInput(x) a#=*Conv(x') y=*ReorderOutput(y#)",
    ),
    "quick": (
        after().op("y", "QuickGelu", "a", domain=CONTRIB),
        "y#=QuickGelu(a#) x'=*ReorderInput(x) a#=*Conv(x') y=*ReorderOutput(y#)",
    ),
    "two activations": (
        after().op("r", "Relu", "a").op("y", "Sigmoid", "r"),
        "y#=Sigmoid(a#) x'=*ReorderInput(x) a#=*Conv+Relu(x')[a+r] y=*ReorderOutput(y#)",
    ),
    "activation beside": (
        after().op("y", "Sigmoid", "a").op("z", "Tanh", "a"),
        "y#=Sigmoid(a#) z#=Tanh(a#) x'=*ReorderInput(x) a#=*Conv(x') z=*ReorderOutput(z#) y=*ReorderOutput(y#)",
    ),
    "activation of input": (x().op("y", "Relu", "x"), "y=Relu(x)"),
    "activation of a kept one": (
        after().op("y", "Relu", "a").keep("a"),
        "y#=Relu(a#) x'=*ReorderInput(x) a#=*Conv(x') a=*ReorderOutput(a#) y=*ReorderOutput(y#)",
    ),
    "activation behind a pool": (
        x().op("p", "MaxPool", "x", shape=(1, 16, 4, 4), **HALF).op("y", "Relu", "p"),
        "y#=Relu(p#) x'=*ReorderInput(x) p#=*MaxPool(x') y=*ReorderOutput(y#)",
    ),
    "norm behind a pool": (
        norm(x().op("a", "MaxPool", "x", shape=(1, 16, 4, 4), **HALF)),
        "x'=*ReorderInput(x) a#=*MaxPool(x') y#=*Conv(a#) y=*ReorderOutput(y#)",
    ),
    "norm and relu behind a pool": (
        norm(x().op("a", "MaxPool", "x", shape=(1, 16, 4, 4), **HALF)).op("r", "Relu", "y"),
        "x'=*ReorderInput(x) a#=*MaxPool(x') y#=*Conv+Relu(a#)[y+r] r=*ReorderOutput(y#)",
    ),
    "norm of input": (norm(Net(a=(1, 16, 8, 8))), "y=BatchNormalization(a)"),
    "nearest": (
        resized(mode="nearest", **FLOOR),
        "x'=*ReorderInput(x) a#=*Conv(x') y#=*Upsample(a#) y=*ReorderOutput(y#)",
    ),
    "nearest by halves": (
        resized(mode="nearest", coordinate_transformation_mode="half_pixel", nearest_mode="floor"),
        "y=Resize(a,) x'=*ReorderInput(x) a#=*Conv(x') a=*ReorderOutput(a#)",
    ),
    "nearest upwards": (
        resized(mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="ceil"),
        "y=Resize(a,) x'=*ReorderInput(x) a#=*Conv(x') a=*ReorderOutput(a#)",
    ),
    "nearest by default": (resized(**FLOOR), "x'=*ReorderInput(x) a#=*Conv(x') y#=*Upsample(a#) y=*ReorderOutput(y#)"),
    "linear": (
        resized(mode="linear", coordinate_transformation_mode="asymmetric"),
        "x'=*ReorderInput(x) a#=*Conv(x') y#=*Upsample(a#) y=*ReorderOutput(y#)",
    ),
    "linear by halves": (
        resized(mode="linear"),
        "x'=*ReorderInput(x) a#=*Conv(x') y#=*Upsample(a#) y=*ReorderOutput(y#)",
    ),
    "linear between corners": (
        resized(mode="linear", coordinate_transformation_mode="align_corners"),
        "x'=*ReorderInput(x) a#=*Conv(x') y#=*Upsample(a#) y=*ReorderOutput(y#)",
    ),
    "linear as torch": (
        resized(mode="linear", coordinate_transformation_mode="pytorch_half_pixel"),
        "y=Resize(a,) x'=*ReorderInput(x) a#=*Conv(x') a=*ReorderOutput(a#)",
    ),
    "cubic": (
        resized(mode="cubic", coordinate_transformation_mode="asymmetric"),
        "y=Resize(a,) x'=*ReorderInput(x) a#=*Conv(x') a=*ReorderOutput(a#)",
    ),
    "by halves of pixels": (
        resized(1, 1, 1.5, 2, mode="linear"),
        "y=Resize(a,) x'=*ReorderInput(x) a#=*Conv(x') a=*ReorderOutput(a#)",
    ),
    "of channels": (
        resized(1, 2, 2, 2, mode="nearest", **FLOOR),
        "y=Resize(a,) x'=*ReorderInput(x) a#=*Conv(x') a=*ReorderOutput(a#)",
    ),
    "another op behind": (
        after().op("y", "Softsign", "a"),
        "y=Softsign(a) x'=*ReorderInput(x) a#=*Conv(x') a=*ReorderOutput(a#)",
    ),
}
"""What is taken into blocks only where all that it reads lies there, and what then moves into convolutions."""

OUTSIDE = {
    "sum": (outside().op("y", "Add", "a", "z"), "y=FusedConv+sum(x,z)[a+y]"),
    "sum second": (outside().op("y", "Add", "z", "a"), "y=FusedConv+sum(x,z)[a+y]"),
    "sum of two": (
        x(18).conv("a", "x", 18, 18).conv("b", "x", 18, 18).op("y", "Add", "b", "a"),
        "b=Conv(x) y=FusedConv+sum(x,b)[a+y]",
    ),
    "sum, first read twice": (
        x(18).conv("a", "x", 18, 18).conv("b", "a", 18, 18).op("y", "Add", "a", "b"),
        "a=Conv(x) y=FusedConv+sum(a,a)[b+y]",
    ),
    "sum without bias": (outside(bias="").op("y", "Add", "a", "z"), "a=Conv(x) y=Add(a,z)"),
    "sum and activation": (
        outside().op("s", "Add", "a", "z").op("y", "LeakyRelu", "s", alpha=0.1),
        "y=FusedConv+sum+LeakyRelu(x,z)[a+s+y]",
    ),
    "sum and another": (outside().op("s", "Add", "a", "z").op("y", "Elu", "s"), "s=FusedConv+sum(x,z)[a+s] y=Elu(s)"),
    "sum that is kept": (
        outside().op("s", "Add", "a", "z").op("y", "Relu", "s").keep("s"),
        "s=FusedConv+sum(x,z)[a+s] y=Relu(s)",
    ),
    "sum read twice": (
        outside().op("s", "Add", "a", "z").op("y", "Relu", "s").op("u", "Sigmoid", "s"),
        "s=FusedConv+sum(x,z)[a+s] y=Relu(s) u=Sigmoid(s)",
    ),
    "sum of a kept one": (outside().op("y", "Add", "a", "z").keep("a"), "a=Conv(x) y=Add(a,z)"),
    "sum of other shapes": (
        Net(x=(1, 18, 8, 8), z=(1, 18, 1, 1)).conv("a", "x", 18, 18).op("y", "Add", "a", "z"),
        "a=Conv(x) y=Add(a,z)",
    ),
    "sum of unknown": (
        Net(x=(1, 18, None, 8), z=(1, 18, None, 8)).conv("a", "x", 18, 18).op("y", "Add", "a", "z"),
        "a=Conv(x) y=Add(a,z)",
    ),
    "product": (outside().op("y", "Mul", "a", "z"), "a=Conv(x) y=Mul(a,z)"),
    "sum of itself": (x(18).conv("a", "x", 18, 18).op("y", "Add", "a", "a"), "a=Conv(x) y=Add(a,a)"),
    "two sums": (
        outside().op("s", "Add", "a", "z").conv("b", "x", 18, 18).op("y", "Add", "s", "b"),
        "s=FusedConv+sum(x,z)[a+s] y=FusedConv+sum(x,s)[b+y]",
    ),
    "one axis": (
        Net(x=(1, 18, 8), z=(1, 18, 8))
        .floats(w=(18, 18, 1), b=(18,))
        .op("a", "Conv", "x", "w", "b")
        .op("y", "Add", "a", "z"),
        "a=Conv(x) y=Add(a,z)",
    ),
    "sum of two results of one op": (
        Net(x=(1, 36, 8, 8)).op("s,t", "Split", "x", shape=(1, 18, 8, 8), axis=1).op("y", "Add", "s", "t"),
        "s,t=Split(x) y=Add(s,t)",
    ),
    "sum of blocked": (
        after().conv("b", "a", 16, 18).conv("c", "b", 18, 18).op("y", "Add", "b", "c"),
        "y=FusedConv+sum(b,b)[c+y] x'=*ReorderInput(x) a#=*Conv(x') b#=*Conv(a#) b=*ReorderOutput(b#)",
    ),
}
"""Sums that move into convolutions which lie in no blocks."""

SAME_SIZES = {
    "same": (u().conv("b", "a", 16, 16, 3, **SAME).op("y", "Add", "a", "b"), True),
    "smaller": (u().conv("b", "a", 16, 16, 3).op("y", "Mul", "a", "b"), False),
    "halves": (pair(P2, S2, 3, 1), True),
    "half and whole": (pair(P2, {}, 3, 1), False),
    "half below and beside": (pair({"strides": (2, 1)}, {"strides": (1, 2)}), False),
    "half below twice": (pair({"strides": (2, 1)}, {"strides": (2, 1)}), True),
    "thirds": (pair({"strides": (3, 3)}, {"strides": (3, 3)}), False),
    "apart": (pair({"dilations": (2, 2), "pads": (2, 2, 2, 2)}, {}, 3, 1), False),
    "dilated and smaller": (pair({"dilations": (2, 2), "pads": (1, 1, 1, 1)}, {}, 3, 1), False),
    "dilated below": (pair({"dilations": (2, 1), "pads": (1, 1, 1, 1)}, {}, 3, 1), False),
    "unknown batch": (
        Net(x=(None, 16, 8, 8)).conv("a", "x", 16, 16).conv("b", "a", 16, 16).op("y", "Mul", "a", "b"),
        True,
    ),
    "product of a product": (u().op("r", "Tanh", "a").op("m", "Mul", "a", "r").op("y", "Mul", "m", "r"), True),
    "dilated one": (pair({"dilations": (2, 1), "pads": (2, 1, 2, 1)}, {"pads": (1, 1, 1, 1)}, 3, 3), False),
    "same upper": (pair({"auto_pad": "SAME_UPPER"}, {}, 3, 1), True),
    "same lower of 2": (pair({"auto_pad": "SAME_LOWER"}, {}, 2, 1), True),
    "valid": (pair({"auto_pad": "VALID"}, {}, 3, 1), False),
    "valid of 1": (pair({"auto_pad": "VALID"}, {}, 1, 1), True),
    "uneven": (pair({"pads": (0, 2, 2, 0)}, {}, 3, 1), True),
    "little": (pair({"pads": (1, 1, 0, 0)}, {}, 3, 1), False),
    "high only": (pair({"pads": (1, 0, 1, 0)}, {}, 3, 1), False),
    "twice": (
        u()
        .conv("b", "a", 16, 16, **S2)
        .conv("c", "b", 16, 16, **S2)
        .conv("d", "a", 16, 16, **S2)
        .op("y", "Mul", "c", "d"),
        False,
    ),
    "twice both": (
        u()
        .conv("b", "a", 16, 16, **S2)
        .conv("c", "b", 16, 16, **S2)
        .conv("d", "a", 16, 16, **S2)
        .conv("e", "d", 16, 16, **S2)
        .op("y", "Add", "c", "e"),
        True,
    ),
    "pool": (u().op("p", "MaxPool", "a", kernel_shape=(3, 3), **SAME).op("y", "Add", "a", "p"), True),
    "pool of 2": (
        u()
        .op("p", "MaxPool", "a", kernel_shape=(2, 2), strides=(2, 2))
        .conv("c", "a", 16, 16, strides=(2, 2))
        .op("y", "Mul", "p", "c"),
        False,
    ),
    "activation": (u().op("r", "Tanh", "a").op("y", "Mul", "a", "r"), True),
    "norm": (
        u()
        .op("p", "MaxPool", "a", kernel_shape=(3, 3), **SAME)
        .floats(scale=(16,), shift=(16,), mean=(16,), variance=(16,))
        .op("n", "BatchNormalization", "p", "scale", "shift", "mean", "variance", epsilon=1e-05)
        .op("y", "Add", "a", "n"),
        True,
    ),
    "other inputs": (
        Net(x=(1, 16, None, None), z=(1, 16, None, None))
        .conv("a", "x", 16, 16)
        .conv("b", "z", 16, 16)
        .op("y", "Mul", "a", "b"),
        False,
    ),
    "known": (
        Net(x=(1, 16, 8, 8), z=(1, 16, 8, 8)).conv("a", "x", 16, 16).conv("b", "z", 16, 16).op("y", "Mul", "a", "b"),
        True,
    ),
    "known batch": (
        Net(x=("N", 16, 8, 8), z=("N", 16, 8, 8))
        .conv("a", "x", 16, 16)
        .conv("b", "z", 16, 16)
        .op("y", "Mul", "a", "b"),
        True,
    ),
    "other batch": (
        Net(x=("N", 16, 8, 8), z=("M", 16, 8, 8))
        .conv("a", "x", 16, 16)
        .conv("b", "z", 16, 16)
        .op("y", "Mul", "a", "b"),
        False,
    ),
    "other height": (
        Net(x=(1, 16, 8, 8), z=(1, 16, 1, 8)).conv("a", "x", 16, 16).conv("b", "z", 16, 16).op("y", "Mul", "a", "b"),
        False,
    ),
    "unknown height": (
        Net(x=(1, 16, None, 8), z=(1, 16, None, 8))
        .conv("a", "x", 16, 16)
        .conv("b", "z", 16, 16)
        .op("y", "Mul", "a", "b"),
        False,
    ),
    "joined": (
        u()
        .conv("b", "a", 16, 16)
        .op("j", "Concat", "a", "b", axis=1, shape=(1, 32, None, None))
        .conv("c", "a", 16, 32)
        .op("y", "Mul", "j", "c"),
        True,
    ),
    "joined and conv": (
        u()
        .conv("b", "a", 16, 16)
        .op("j", "Concat", "a", "b", axis=1, shape=(1, 32, None, None))
        .conv("c", "j", 32, 16, 3, **SAME)
        .op("y", "Mul", "a", "c"),
        True,
    ),
    "global": (
        u().op("g", "GlobalAveragePool", "a", shape=(1, 16, 1, 1)).conv("h", "g", 16, 16).op("y", "Mul", "a", "h"),
        False,
    ),
    "global two": (
        u()
        .op("g", "GlobalAveragePool", "a", shape=(1, 16, 1, 1))
        .op("h", "GlobalMaxPool", "a", shape=(1, 16, 1, 1))
        .op("y", "Add", "g", "h"),
        True,
    ),
    "resized": (
        u()
        .constant("scales", 1, 1, 2, 2)
        .op("r", "Resize", "a", "", "scales", shape=(1, 16, None, None), mode="linear")
        .conv("b", "a", 16, 16)
        .op("q", "Resize", "b", "", "scales", shape=(1, 16, None, None), mode="linear")
        .op("y", "Mul", "r", "q"),
        False,
    ),
    "direct": (
        Net(x=(1, 3, None, None)).conv("a", "x", 3, 16, 3, **SAME).conv("b", "x", 3, 16).op("y", "Mul", "a", "b"),
        False,
    ),
    "inputs": (
        Net(x=(1, 16, None, None)).conv("a", "x", 16, 16, 3, **SAME).conv("b", "x", 16, 16).op("y", "Mul", "a", "b"),
        False,
    ),
}
"""Whether an op of two tensors lies in blocks: where the runtime follows that they have the same sizes."""
