"""Transformers of the papers as exporters write them, with the names of their Hugging Face versions: GPT-2, BERT."""

from __future__ import annotations

import math

import numpy as np

from sample_models.network import Network
from sample_models.sizes import TextSizes

EMBEDDING_SCALE = 0.02
GPT2_EPSILON = 1e-5
BERT_EPSILON = 1e-12


def _embedding(n: Network, name: str, rows: str, shape: tuple[int, int]) -> str:
    """Rows of a table."""
    table = n.weight(f"{name}.weight", shape, EMBEDDING_SCALE)
    return n.op(name, "Gather", table, rows, channels=shape[1], axis=0)


def _positions(n: Network, sizes: TextSizes) -> str:
    """Positions of the tokens, one row."""
    return n.constant("positions", np.arange(sizes.length, dtype=np.int64)[None])


def _heads(n: Network, name: str, x: str, sizes: TextSizes, axes: tuple[int, ...]) -> str:
    """Tokens of each head; `axes` is the order of (batch, token, head, element)."""
    shape = n.constant("heads.shape", np.array([0, 0, sizes.head_count, sizes.head_width], np.int64))
    return n.op(f"{name}.transpose", "Transpose", n.op(f"{name}.heads", "Reshape", x, shape), perm=axes)


def _scores(n: Network, name: str, query: str, key: str, sizes: TextSizes) -> str:
    """How much each token attends to each, before the softmax; batch, head, from, to."""
    query = _heads(n, f"{name}.q", query, sizes, (0, 2, 1, 3))
    key = _heads(n, f"{name}.k", key, sizes, (0, 2, 3, 1))
    root = n.number("root_of_head_width", math.sqrt(sizes.head_width))
    return n.op(f"{name}.scores", "Div", n.op(f"{name}.qk", "MatMul", query, key), root)


def _context(n: Network, name: str, scores: str, value: str, sizes: TextSizes) -> str:
    """What each token gathers from those it attends to."""
    weights = n.op(f"{name}.softmax", "Softmax", scores, axis=-1)
    value = _heads(n, f"{name}.v", value, sizes, (0, 2, 1, 3))
    context = n.op(
        f"{name}.context.transpose", "Transpose", n.op(f"{name}.pv", "MatMul", weights, value), perm=[0, 2, 1, 3]
    )
    shape = n.constant("tokens.shape", np.array([0, 0, sizes.hidden], np.int64))
    return n.op(f"{name}.context", "Reshape", context, shape, channels=sizes.hidden)


def _gelu_tanh(n: Network, name: str, x: str) -> str:
    """Gelu approximated by Tanh."""
    cube = n.op(f"{name}.cube", "Pow", x, n.number("three", 3.0))
    cube = n.op(f"{name}.cubic", "Mul", cube, n.number("cubic", 0.044715))
    inner = n.op(
        f"{name}.inner", "Mul", n.add(f"{name}.sum", x, cube), n.number("root_of_two_over_pi", math.sqrt(2 / math.pi))
    )
    spread = n.add(f"{name}.spread", n.op(f"{name}.tanh", "Tanh", inner), n.number("one", 1.0))
    return n.op(name, "Mul", n.op(f"{name}.half", "Mul", x, n.number("half", 0.5)), spread)


def _gelu_erf(n: Network, name: str, x: str) -> str:
    """Gelu by the error function."""
    inner = n.op(f"{name}.inner", "Div", x, n.number("root_of_two", math.sqrt(2)))
    spread = n.add(f"{name}.spread", n.op(f"{name}.erf", "Erf", inner), n.number("one", 1.0))
    return n.op(name, "Mul", n.op(f"{name}.product", "Mul", x, spread), n.number("half", 0.5))


def _causal_mask(n: Network, length: int) -> str:
    """Zero where a token may look, the least number where it may not: at what comes after it."""
    mask = np.triu(np.full((length, length), np.finfo(np.float32).min, np.float32), 1)
    return n.constant("causal_mask", mask[None, None])


def _gpt2_block(n: Network, name: str, x: str, sizes: TextSizes) -> str:
    """Causal attention and a feed-forward layer, each normalized in front."""
    attention = f"{name}.attn"
    joint = n.linear(f"{attention}.c_attn", n.layer_norm(f"{name}.ln_1", x, GPT2_EPSILON), 3 * sizes.hidden)
    query, key, value = n.split(f"{attention}.split", joint, ("query", "key", "value"))
    scores = _scores(n, attention, query, key, sizes)
    scores = n.add(f"{attention}.masked", scores, _causal_mask(n, sizes.length))
    context = _context(n, attention, scores, value, sizes)
    x = n.add(f"{name}.add_1", n.linear(f"{attention}.c_proj", context, sizes.hidden), x)
    hidden = n.linear(f"{name}.mlp.c_fc", n.layer_norm(f"{name}.ln_2", x, GPT2_EPSILON), 4 * sizes.hidden)
    hidden = n.linear(f"{name}.mlp.c_proj", _gelu_tanh(n, f"{name}.mlp.act", hidden), sizes.hidden)
    return n.add(f"{name}.add_2", x, hidden)


def gpt2(sizes: TextSizes) -> Network:
    """GPT-2 of Radford et al. 2019; scores of the next token after each, from the transposed token embedding."""
    n = sizes.network("gpt2")
    token = _embedding(n, "wte", "tokens", (sizes.vocabulary, sizes.hidden))
    x = n.add("embeddings", token, _embedding(n, "wpe", _positions(n, sizes), (sizes.context, sizes.hidden)))
    for layer in range(sizes.layers):
        x = _gpt2_block(n, f"h.{layer}", x, sizes)
    x = n.layer_norm("ln_f", x, GPT2_EPSILON)
    head = n.op("lm_head.transpose", "Transpose", "wte.weight", channels=sizes.vocabulary, perm=[1, 0])
    n.op("lm_head", "MatMul", x, head, channels=sizes.vocabulary)
    return n


def _bert_layer(n: Network, name: str, x: str, sizes: TextSizes) -> str:
    """Attention and a feed-forward layer, each normalized behind its sum."""
    attention, output = f"{name}.attention.self", f"{name}.attention.output"
    query, key, value = (n.linear(f"{attention}.{part}", x, sizes.hidden) for part in ("query", "key", "value"))
    context = _context(n, attention, _scores(n, attention, query, key, sizes), value, sizes)
    total = n.add(f"{output}.add", n.linear(f"{output}.dense", context, sizes.hidden), x)
    x = n.layer_norm(f"{output}.LayerNorm", total, BERT_EPSILON)
    hidden = n.linear(f"{name}.intermediate.dense", x, 4 * sizes.hidden)
    hidden = n.linear(f"{name}.output.dense", _gelu_erf(n, f"{name}.intermediate.act", hidden), sizes.hidden)
    return n.layer_norm(f"{name}.output.LayerNorm", n.add(f"{name}.output.add", hidden, x), BERT_EPSILON)


def _bert_embeddings(n: Network, sizes: TextSizes) -> str:
    """Token, segment (all the first) and position embeddings, summed and normalized."""
    name = "embeddings"
    segments = n.constant("segments", np.zeros((1, sizes.length), np.int64))
    token = _embedding(n, f"{name}.word_embeddings", "tokens", (sizes.vocabulary, sizes.hidden))
    segment = _embedding(n, f"{name}.token_type_embeddings", segments, (2, sizes.hidden))
    position = _embedding(n, f"{name}.position_embeddings", _positions(n, sizes), (sizes.context, sizes.hidden))
    total = n.add(f"{name}.add_2", n.add(f"{name}.add_1", token, segment), position)
    return n.layer_norm(f"{name}.LayerNorm", total, BERT_EPSILON)


def bert(sizes: TextSizes) -> Network:
    """BERT of Devlin et al. 2019 with a pooler and a classifier; every token is attended to."""
    n = sizes.network("bert")
    x = _bert_embeddings(n, sizes)
    for layer in range(sizes.layers):
        x = _bert_layer(n, f"encoder.layer.{layer}", x, sizes)
    first = n.op("pooler.first", "Gather", x, n.constant("first", np.array(0, np.int64)), axis=1)
    pooled = n.op("pooler.activation", "Tanh", n.dense("pooler.dense", first, sizes.hidden))
    n.dense("classifier", pooled, sizes.classes)
    return n
