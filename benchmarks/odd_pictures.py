"""Does an ONNX file of pictures give the class that `predict` gives, on pictures of every odd kind?

    python -m benchmarks.odd_pictures RUN [--count 10000] [--source FOLDER]

Pictures from a folder (smooth random ones if none is named) are saved in turn in 17 forms: turned by EXIF, CMYK, with a
palette, with transparency, of 16 bits, of one bit, as floats, of 1 x 1 pixel, 3 : 1, and large enough that a run
decodes them scaled. RUN is exported, docs/examples/use_picture.py uses the file, and its classes are compared with
those of `predict`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.environment import describe, write_result
from tests.odd_pictures import compared, make
from trainers.system import process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--source", type=Path)
    options = parser.parse_args()
    process.settle()
    with tempfile.TemporaryDirectory(prefix="odd-") as folder:
        made = make(Path(folder), options.count, options.source)
        result = compared(options.run, Path(folder), made)
    write_result("odd_pictures", result | {"environment": describe("pillow", "onnx", "onnxruntime")})


if __name__ == "__main__":
    main()
