"""Training graphs of a GPT-like decoder: forward ops, the loss, then the gradients, each reading what it really needs.

Costs are millions of floating-point operations, sizes the bytes of 16-bit tensors. An op with several results (the
gradients of queries and keys, say) has one output of their joint size. Gradients of weights are handed over as soon as
they are made: nobody reads them here.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.draft import Draft

BYTES = 2
MFLOP = 10**6
OPS_PER_LAYER, OTHER_OPS = 33, 10


@dataclass(frozen=True)
class Sizes:
    """Batch, length of the text, width of the model, heads, words of the vocabulary."""

    batch: int = 4
    length: int = 1024
    width: int = 1024
    heads: int = 16
    words: int = 32768

    @property
    def tokens(self) -> int:
        """Positions in a batch."""
        return self.batch * self.length


@dataclass(frozen=True)
class Layer:
    """Ids of the forward ops of a layer whose results gradients read; `x` enters, `out` leaves."""

    x: int
    norm1: int
    split: int
    softmax: int
    attended: int
    middle: int
    norm2: int
    fc1: int
    gelu: int
    out: int


def gpt(name: str, layers: int, sizes: Sizes | None = None) -> Draft:
    """A training step of that many layers: 33 ops a layer and 10 more."""
    return _Writer(name, layers, sizes or Sizes()).write()


class _Writer:
    """Appends ops with costs and sizes from the shapes."""

    def __init__(self, name: str, layers: int, sizes: Sizes) -> None:
        """Start an empty graph."""
        self.sizes, self.layers = sizes, layers
        source = f"training step of a GPT-like decoder: {layers} layers, {sizes}"
        self.draft = Draft(name, source, "millions of floating-point operations")
        self.hidden = sizes.tokens * sizes.width
        self.scores = sizes.batch * sizes.heads * sizes.length**2

    def write(self) -> Draft:
        """The whole graph in the order in which a framework runs it."""
        x = embedding = self._light("embed", self.hidden, 1, [])
        found = []
        for number in range(self.layers):
            found.append(self._layer(f"h{number}", x))
            x = found[-1].out
        grad = self._ends(x)
        for number in range(self.layers - 1, -1, -1):
            grad = self._layer_gradients(f"h{number}", found[number], grad)
        self._light("embed.grad_weight", self.sizes.words * self.sizes.width, 1, [grad], backward=True)
        assert embedding == 0
        return self.draft

    def _light(self, name: str, elements: int, flops: int, inputs: list[int], *, backward: bool = False) -> int:
        """An op that does a few operations per element of its result."""
        size = -(-flops * elements // MFLOP), BYTES * elements
        return self.draft.add(name, size, inputs, backward)

    def _product(self, name: str, shape: tuple[int, int, int], inputs: list[int], *, backward: bool = False) -> int:
        """A matrix product of shape (rows, inner, columns)."""
        rows, inner, columns = shape
        size = -(-2 * rows * inner * columns // MFLOP), BYTES * rows * columns
        return self.draft.add(name, size, inputs, backward)

    def _attention(self, name: str, elements: int, products: int, inputs: list[int], *, backward: bool = False) -> int:
        """Products of all heads that contract or expand the scores."""
        flops = products * 2 * self.scores * (self.sizes.width // self.sizes.heads)
        return self.draft.add(name, (-(-flops // MFLOP), BYTES * elements), inputs, backward)

    def _layer(self, name: str, x: int) -> Layer:
        """The thirteen forward ops."""
        tokens, width, hidden = self.sizes.tokens, self.sizes.width, self.hidden
        norm1 = self._light(f"{name}.norm1", hidden, 8, [x])
        qkv = self._product(f"{name}.qkv", (tokens, width, 3 * width), [norm1])
        split = self._light(f"{name}.split", 3 * hidden, 1, [qkv])
        scores = self._attention(f"{name}.scores", self.scores, 1, [split])
        softmax = self._light(f"{name}.softmax", self.scores, 5, [scores])
        attended = self._attention(f"{name}.attended", hidden, 1, [softmax, split])
        projected = self._product(f"{name}.proj", (tokens, width, width), [attended])
        middle = self._light(f"{name}.add1", hidden, 1, [x, projected])
        norm2 = self._light(f"{name}.norm2", hidden, 8, [middle])
        fc1 = self._product(f"{name}.fc1", (tokens, width, 4 * width), [norm2])
        gelu = self._light(f"{name}.gelu", 4 * hidden, 10, [fc1])
        fc2 = self._product(f"{name}.fc2", (tokens, 4 * width, width), [gelu])
        out = self._light(f"{name}.add2", hidden, 1, [middle, fc2])
        return Layer(x, norm1, split, softmax, attended, middle, norm2, fc1, gelu, out)

    def _ends(self, x: int) -> int:
        """Last norm, logits and loss with their gradients; the gradient of the last layer's result."""
        tokens, width, words = self.sizes.tokens, self.sizes.width, self.sizes.words
        norm = self._light("norm", self.hidden, 8, [x])
        logits = self._product("logits", (tokens, width, words), [norm])
        self._light("loss", tokens, 5 * words, [logits])
        loss_grad = self._light("loss.grad", tokens * words, 5, [logits], backward=True)
        self._product("logits.grad_weight", (width, tokens, words), [norm, loss_grad], backward=True)
        norm_grad = self._product("logits.grad", (tokens, words, width), [loss_grad], backward=True)
        return self._norm_gradients("norm", x, norm_grad)

    def _norm_gradients(self, name: str, x: int, grad: int) -> int:
        """Gradients of scale and shift, then of the input."""
        self._light(f"{name}.grad_weight", 2 * self.sizes.width, 4 * self.sizes.tokens, [x, grad], backward=True)
        return self._light(f"{name}.grad", self.hidden, 12, [x, grad], backward=True)

    def _product_gradients(self, name: str, x: int, grad: int, widths: tuple[int, int]) -> int:
        """Gradients of the weights, then of the input, of a product that widens `widths[0]` to `widths[1]`."""
        tokens, (inner, outer) = self.sizes.tokens, widths
        self._product(f"{name}.grad_weight", (inner, tokens, outer), [x, grad], backward=True)
        return self._product(f"{name}.grad", (tokens, outer, inner), [grad], backward=True)

    def _layer_gradients(self, name: str, layer: Layer, grad: int) -> int:
        """The twenty gradient ops, last forward op first; the gradient of what entered the layer."""
        width, hidden = self.sizes.width, self.hidden
        g = self._product_gradients(f"{name}.fc2", layer.gelu, grad, (4 * width, width))
        g = self._light(f"{name}.gelu.grad", 4 * hidden, 14, [layer.fc1, g], backward=True)
        g = self._product_gradients(f"{name}.fc1", layer.norm2, g, (width, 4 * width))
        g = self._norm_gradients(f"{name}.norm2", layer.middle, g)
        middle = self._light(f"{name}.add2.grad", hidden, 1, [grad, g], backward=True)
        g = self._product_gradients(f"{name}.proj", layer.attended, middle, (width, width))
        g = self._attention_gradients(name, layer, g)
        g = self._product_gradients(f"{name}.qkv", layer.norm1, g, (width, 3 * width))
        g = self._norm_gradients(f"{name}.norm1", layer.x, g)
        return self._light(f"{name}.add1.grad", hidden, 1, [middle, g], backward=True)

    def _attention_gradients(self, name: str, layer: Layer, grad: int) -> int:
        """From the gradient of what was attended to that of queries, keys and values before the split."""
        values = self._attention(f"{name}.values.grad", self.hidden, 1, [layer.softmax, grad], backward=True)
        g = self._attention(f"{name}.attended.grad", self.scores, 1, [layer.split, grad], backward=True)
        g = self._light(f"{name}.softmax.grad", self.scores, 4, [layer.softmax, g], backward=True)
        g = self._attention(f"{name}.scores.grad", 2 * self.hidden, 2, [layer.split, g], backward=True)
        return self._light(f"{name}.split.grad", 3 * self.hidden, 1, [g, values], backward=True)
