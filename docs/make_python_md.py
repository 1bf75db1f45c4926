"""Write docs/python.md from the docstrings and signatures of the public functions: `python -m docs.make_python_md`."""

from __future__ import annotations

import inspect
from pathlib import Path

import remat_cli

TARGET = Path(__file__).with_name("python.md")
HEAD = """# remat in Python

Generated from the docstrings by `make pages`.

```python
import remat_cli as remat

report = remat.compile("unet.onnx", budget="80%", time_limit="30s", on_progress=print)
report.solution.peak_bytes, report.output
```

- There is one function per command. Keywords are the words of the command line (`remat COMMAND --help` explains each),
  with underscores: `--time-limit 30s` is `time_limit="30s"`. Options that may be repeated take a list or a dict.
- Paths may be `str` or `Path`. Nothing is printed. `on_progress` gets every event of a run; `str(event)` is a line.
- Every function returns a report: a frozen value whose fields are those of `--format json`, with the `exit_code` of the
  command. That a budget is impossible (3), that no plan was found (4), or that verification failed (5) is an answer,
  not an exception.
- What cannot be used, such as a wrong value or a damaged file, raises `RematError` with the line that the command line
  would print, before any work is done.
"""


def main() -> None:
    """Write the page."""
    TARGET.write_text(page(), encoding="utf-8")


def page() -> str:
    """The page as Markdown."""
    names = [name for name in remat_cli.__all__ if inspect.isfunction(getattr(remat_cli, name))]
    return "\n".join([HEAD, *(_section(name) for name in names)])


def _section(name: str) -> str:
    function = getattr(remat_cli, name)
    signature = inspect.signature(function)
    words = "".join(f"    {parameter},\n" for parameter in _parameters(signature))
    head = (
        f"{name}(\n{words}) -> {signature.return_annotation}" if words else f"{name}() -> {signature.return_annotation}"
    )
    return f"## {name}\n\n```python\n{head}\n```\n\n{inspect.getdoc(function)}\n"


def _parameters(signature: inspect.Signature) -> list[str]:
    """Parameters as they are written, with a star before the first that must be named."""
    found: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in found:
            found.append("*")
        found.append(str(parameter).replace("'", ""))
    return found


if __name__ == "__main__":
    main()
