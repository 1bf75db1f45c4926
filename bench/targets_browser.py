"""Compiled files in ONNX Runtime for browsers, in a browser without a window, beside their originals there."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench.compiling import Row

PAGE = Path(__file__).with_suffix(".html")
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage")
RUN_SECONDS = 1800.0
TYPES = {".html": "text/html", ".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm"}
APART = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
"""What a page must be sent with so that it may have the kind of memory that the runtime asks for."""


@dataclass(frozen=True)
class Browser:
    """A browser with a runtime for it: `folder` is that of onnxruntime-web."""

    name: str
    folder: Path

    @property
    def program(self) -> str | None:
        """The first browser that is here."""
        return next(filter(None, map(shutil.which, PROGRAMS)), None)

    @property
    def missing(self) -> str | None:
        """What is not here: a browser, or the package."""
        if self.program is None:
            return PROGRAMS[0]
        return None if self.folder.is_dir() else str(self.folder)

    def ran(self, model: Path, feeds: Path, results: Path) -> Row:
        """What the page sends of a model: how far it came (`load`, `run`, `done`), outputs, and what it took."""
        results.mkdir()
        version = json.loads((self.folder / "package.json").read_text())["version"]
        visit = Visit(self.folder, model, feeds, results)
        with served(visit) as address, tempfile.TemporaryDirectory() as profile:
            words = [str(self.program), *OPTIONS, f"--user-data-dir={profile}", address]
            with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                visit.is_over.wait(RUN_SECONDS)
                process.terminate()
        return {"runtime": version, **(visit.found or {"stage": "died", "message": "the page sent no answer"})}


@dataclass
class Visit:
    """What a page is given, and what it sends."""

    package: Path
    model: Path
    feeds: Path
    results: Path
    found: Row | None = None
    is_over: threading.Event = field(default_factory=threading.Event)

    def job(self) -> Row:
        """Names of the model, of the files with its weights beside it, and its inputs."""
        beside = self.model.with_name(f"{self.model.name}.data")
        feeds: Mapping[str, Row] = json.loads(self.feeds.read_text())
        return {
            "model": self.model.name,
            "data": [beside.name] if beside.exists() else [],
            "feeds": {name: {**each, "file": Path(each["file"]).name} for name, each in feeds.items()},
        }

    def file_at(self, path: str) -> Path | None:
        """The file that a page asks for; None: there is none."""
        room, _, name = path.removeprefix("/").partition("/")
        folders = {
            "shared": PAGE.parent,
            "package": self.package,
            "model": self.model.parent,
            "feeds": self.feeds.parent,
        }
        file = PAGE if not room else folders[room] / name if room in folders else None
        return file if file is not None and file.is_file() else None

    def take(self, path: str, body: bytes) -> None:
        """Keep an output, or the answer, with which the visit is over."""
        if path == "/done":
            answer: Row = json.loads(body)
            kept = [{**each, "file": str(self._output(n))} for n, each in enumerate(answer.get("outputs", ()))]
            self.found = {**answer, "outputs": kept}
            self.is_over.set()
        else:
            self._output(int(path.rpartition("/")[2])).write_bytes(body)

    def _output(self, number: int) -> Path:
        return self.results / f"{number}.bin"


@contextmanager
def served(visit: Visit) -> Iterator[str]:
    """The address of a page that runs a model, on this machine alone."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, visit)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


class Handler(BaseHTTPRequestHandler):
    """Gives a page its files and takes what it sends."""

    def __init__(self, visit: Visit, *args: object) -> None:
        self.visit = visit
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """A file, or the job."""
        file = self.visit.file_at(self.path)
        if self.path == "/job":
            self._answer(json.dumps(self.visit.job()).encode(), "application/json")
        elif file is None:
            self.send_error(404)
        else:
            self._answer(file.read_bytes(), TYPES.get(file.suffix, "application/octet-stream"))

    def do_POST(self) -> None:
        """Bytes of an output, or the answer."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b"", "text/plain")
        self.visit.take(self.path, body)

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **APART}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Nothing."""
