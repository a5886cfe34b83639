"""Print a command's result as one JSON document on standard output, for a script: `--json`."""

import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonOption:
    """Option that prints a result as JSON."""

    json: bool = False
    """Print one JSON document. It goes to standard output, for scripts, and everything else to standard error."""


@contextmanager
def json_document(options: JsonOption) -> Iterator[dict[str, Any]]:
    """Yield a dict to fill with the result of a command.

    With `--json` it is printed after the block, and everything that the block prints goes to standard error; otherwise
    it is dropped.
    """
    document: dict[str, Any] = {}
    if not options.json:
        yield document
        return
    with redirect_stdout(sys.stderr):
        yield document
    print(json.dumps(plain(document), allow_nan=False))


def plain(value: Any) -> Any:
    """Convert values for JSON: dataclasses to dicts, paths to text, numbers that are not finite to null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "_asdict"):  # a named tuple
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if hasattr(value, "item"):  # a NumPy number
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
