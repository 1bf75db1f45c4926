"""Models of few bits, made by the runtime's own tools: what plans hold beside them, with the bits of the quantised.

`python -m bench.quantised` quantises the models, compiles each for shares of its own peak, at one size or for a range
of sizes, and appends a row for each to `bench/results/quantised.jsonl`; rows that are there are skipped. `--write`
makes the page of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import onnx
from onnxruntime.quantization import QuantType

from bench.bench import Bench, Case, Key, Shard, of_lines, shard_option
from bench.compiling import OUTPUT, PLAN, ROOT, Row, run_compiler
from bench.decoder_models import Decoder, decoder
from bench.quantised_models import (
    conformer,
    detector,
    disentangled,
    half,
    joiner,
    listener,
    segmenter,
    separator,
    speech_decoder,
    speech_encoder,
    unet,
    vision_transformer,
)
from remat_cli.base.units import format_bytes
from tests.splitting.quantised_models import dynamic_int8, encoder, recogniser
from tests.splitting.random_models import Sample

BUDGETS = ("50%", "25%")
LONGEST_SECONDS = 1800.0  # of a compile, its runs of the model included
INTRODUCTION = """# Models of few bits

Made by `make bench-quantised`: models quantised by `onnxruntime.quantization.quantize_dynamic`, in half precision by
`onnxruntime.transformers.float16`, in four bits (MatMulNBits at accuracy level 4, GroupQueryAttention) as builders of
language models write them; with random weights, compiled for shares of their own peak. Live: tensors, weights and
inputs in a default session, before and after, at the largest size. Bits: outputs beside those of the quantised model;
for ranges at other sizes as well. Predicted times are sums of ops that were measured one by one, measured ones those of
both models in turn, on all cores, as verification takes them; rows without are older, of a machine that did other work.
"""
SMALL_PERCENT, TIMES = 10.0, ("predicted", "measured")
WAYS = {"arrays": "as arrays", "bound": "bound, with a binding that is cleared after each turn", "values": "as values"}


@dataclass(frozen=True)
class Quantised:
    """A model, and names of lengths of its input that vary, by axis, with the range of each; words for the compiler.

    `is_control`: stands beside the quantised model, and is not counted among them. `turns`: tokens of each turn of a
    conversation in which a language model is fed its own caches.
    """

    make: Callable[[], Sample]
    ranges: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    flags: Sequence[str] = ()
    is_control: bool = False
    turns: Sequence[int] = ()

    def save(self, path: Path) -> None:
        """Write it, with those lengths open."""
        model = self.make().model
        for axis, (name, _) in self.ranges.items():
            model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
        if self.ranges:
            del model.graph.value_info[:]
            for output in model.graph.output:
                output.type.tensor_type.ClearField("shape")
        onnx.save(model, path)


def _embedder() -> Sample:
    return dynamic_int8(encoder(2048, 256, heads=4, blocks=2), per_channel=True)


def _wide() -> Sample:
    return dynamic_int8(encoder(4096, 512, heads=1, blocks=1, opset=20), weight_type=QuantType.QUInt8)


MODELS: Mapping[str, Quantised] = {
    "embedder": Quantised(_embedder),
    "embedder, 1 to 2,048 tokens": Quantised(_embedder, {1: ("length", "1..2048")}),
    "wide encoder": Quantised(_wide),
    "recogniser": Quantised(lambda: dynamic_int8(recogniser(640, 480, 16))),
    "recogniser in groups": Quantised(lambda: dynamic_int8(recogniser(640, 480, 32, groups=4), per_channel=True)),
    "fp16 U-Net": Quantised(lambda: half(unet(512, 16))),
    "fp16 band-split separator": Quantised(lambda: half(separator(16, 512, 128, 4))),
    "U2-Net-like segmenter": Quantised(lambda: dynamic_int8(segmenter(256, 16, 64))),
    "YOLO-like detector": Quantised(lambda: dynamic_int8(detector(640, 24))),
    "vision transformer": Quantised(lambda: dynamic_int8(vision_transformer(640, 16, 192, 6))),
    "Whisper-like encoder": Quantised(lambda: dynamic_int8(speech_encoder(2400, 256, 8))),
    "Whisper-like decoder": Quantised(lambda: dynamic_int8(speech_decoder(448, 1500, 512, 8, 2048))),
    "Conformer, 30,000 frames": Quantised(lambda: dynamic_int8(conformer(30_000))),
    "Conformer, 30,000 frames, float32": Quantised(lambda: conformer(30_000), is_control=True),
    "DeBERTa-like encoder": Quantised(lambda: dynamic_int8(disentangled(1024, 256, 4, 256))),
    "transducer's joiner": Quantised(lambda: dynamic_int8(joiner(400, 100, 320, 128))),
    "int4 decoder, prompt of 1,024": Quantised(lambda: decoder(Decoder())),
    "int4 decoder, one buffer of 2,048": Quantised(lambda: decoder(Decoder(past=2048, total=2048))),
    "int4 decoder, conversation": Quantised(
        lambda: decoder(Decoder("seq", "past", "total", "total")),
        flags=("--dim=past=0..4096", "--dim=seq=1..1024", "--dim=total=past+seq", "--limit=past+seq<=4096"),
        turns=(1024, 1024, 1024, 896, *[1] * 128),
    ),
    "LSTM recogniser": Quantised(lambda: dynamic_int8(listener(4, 1000, 32, 256))),
}


@click.command()
@click.option("--only", multiple=True, help="Name of a model; may be repeated. All when left out.")
@click.option("--time-limit", default="60s", help="Of each compile.")
@click.option("--write", is_flag=True, help="Make the page of the rows that are there.")
@shard_option
def main(only: Sequence[str], time_limit: str, write: bool, shard: Shard) -> None:
    """Measure what is missing, or write the page."""
    if write:
        BENCH.write()
        return
    with tempfile.TemporaryDirectory() as folder:

        def measured(name: str, keys: Sequence[Key]) -> Iterator[Row]:
            path = Path(folder) / "model.onnx"
            MODELS[name].save(path)
            for _, budget in keys:
                yield {"model": name, "budget": budget, **row(name, path, budget, time_limit)}

        cases = (Case(name, [(name, budget) for budget in BUDGETS]) for name in MODELS if not only or name in only)
        BENCH.run(cases, measured, shard=shard)


def row(name: str, path: Path, budget: str, time_limit: str) -> Row:
    """One compile, and what its verification saw."""
    dims = [f"--dim={dim}={sizes}" for dim, sizes in MODELS[name].ranges.values()]
    flags = [f"--budget={budget}", f"--time-limit={time_limit}", "--verify", "on", *dims, *MODELS[name].flags]
    code, report, said = run_compiler(path, flags, path.parent / OUTPUT, path.parent / "cache", LONGEST_SECONDS)
    if code != 0:
        return {"outcome": "no plan" if code in (3, 4) else "FAILED", "message": said[-300:]}
    seen, turns = report["verification"], MODELS[name].turns
    return {
        "outcome": "same bits" if seen["outputs_identical"] else "DIFFERENT",
        "live_bytes": [seen["original_default_session_peak_bytes"], seen["measured_peak_default_session_bytes"]],
        "predicted_percent": seen["predicted_overhead_percent"],
        "measured_percent": seen["measured_overhead_percent"],
        **({"conversation": conversation(path, path.parent / OUTPUT, turns)} if turns else {}),
    }


def conversation(original: Path, made: Path, turns: Sequence[int]) -> Row:
    """What processes hold in which both models are fed their own caches, by the way in which they are."""
    plan = json.loads(made.with_name(PLAN).read_text(encoding="utf-8"))
    found: Row = {"promised_bytes": plan["promise"]["process"]["later_runs_bytes"], "tokens": sum(turns), "ways": {}}
    told = json.dumps(list(turns))
    for way in WAYS:
        both = []
        for model in (original, made):
            words = [sys.executable, "-m", "bench.quantised_turns", str(model), way, told]
            both.append(json.loads(subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout))
        peaks = [max(each["turns"]) for each in both]
        found["ways"][way] = {"bytes": peaks, "has_same_bits": both[0]["scores"] == both[1]["scores"]}
    return found


def page(rows: Sequence[Row]) -> Iterator[str]:
    """A row for each model and share."""
    yield from INTRODUCTION.splitlines()
    yield ""
    yield "| model | budget | outcome | live | time, predicted | time, measured |"
    yield "|---|---|---|---|---|---|"
    for each in rows:
        if "live_bytes" not in each:
            yield f"| {each['model']} | {each['budget']} | {each['outcome']} | | | |"
            continue
        cells = [" to ".join(map(format_bytes, each["live_bytes"]))]
        shown = (each.get(f"{kind}_percent") for kind in TIMES)
        cells += ["" if percent is None else f"{percent:+.1f} %" for percent in shown]
        yield f"| {each['model']} | {each['budget']} | {each['outcome']} | " + " | ".join(cells) + " |"
    yield from _conversations(rows)
    for budget in BUDGETS:
        counted = (each for each in rows if not MODELS[each["model"]].is_control)
        here = [each for each in counted if each["budget"] == budget]
        found = [each for each in here if each["outcome"] == "same bits"]
        yield ""
        yield f"At {budget}: {len(found)} of {len(here)} models have a plan with the same bits."
        for kind in TIMES:
            times = [percent for each in found if (percent := each.get(f"{kind}_percent")) is not None]
            if times:
                small = sum(percent < SMALL_PERCENT for percent in times)
                yield ""
                yield f"Of {len(times)} of them {small} take less than {SMALL_PERCENT:.0f} % longer, as {kind}."


def _conversations(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each conversation: what processes held, by how caches were fed back."""
    for each in (each for each in rows if "conversation" in each):
        seen = each["conversation"]
        promised, tokens = format_bytes(seen["promised_bytes"]), f"{seen['tokens']:,} tokens"
        yield ""
        yield f"{each['model']}, {each['budget']}: what processes hold that are fed their own caches up to {tokens},"
        yield f"before and after; {promised} were promised."
        yield ""
        for way, found in seen["ways"].items():
            held = " to ".join(map(format_bytes, found["bytes"]))
            yield f"- {WAYS[way]}: {held}{'' if found['has_same_bits'] else ', DIFFERENT'}"


def _told(each: Row) -> str:
    return f"{each['model']:28} {each['budget']:4} {each['outcome']}"


BENCH = Bench("quantised", ("model", "budget"), of_lines(page), _told)

if __name__ == "__main__":
    main()
