"""Everything a comparison leaves behind: table.csv, table.md, report.html, figures and a TensorBoard event file."""

import io
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from comparison.drawing import Picture, draw
from comparison.images import disagreement, sights_of
from comparison.page import page
from comparison.results import ConditionResult
from comparison.runs import Comparison
from comparison.table import table_csv, table_md, verdicts
from datasets.files import write_bytes, write_text
from datasets.text import printable


def write_report(comparison: Comparison, results: Sequence[ConditionResult], folder: Path) -> list[Path]:
    """Write the report, its figures and `tb/`; files appear whole or not at all, and replace those of an earlier one.

    Images come from the runs' data set and attention from their weights; where these are gone, the report says so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    disagreements = [disagreement(result) for result in results]
    sights = sights_of(results[-1], disagreements[-1])
    pictures = draw(results, sights)
    texts = {
        "table.csv": table_csv(comparison, results),
        "table.md": table_md(comparison, results),
        "report.html": page(comparison, results, pictures, disagreements, unseen=sights.unseen),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    with replacing(folder / "figures") as aside:
        for picture in pictures:
            write_bytes(aside / picture.file, picture.png)
    with replacing(folder / "tb") as aside:
        write_events(aside, texts["table.md"], verdicts(results), pictures)
    return [folder / name for name in texts] + [folder / "figures" / picture.file for picture in pictures]


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of `folder` when it is whole."""
    aside = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        yield aside
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_events(folder: Path, table: str, sentences: Sequence[str], pictures: Sequence[Picture]) -> None:
    """The table and the figures where `tensorboard --logdir` on a folder above finds them."""
    with SummaryWriter(log_dir=str(folder)) as writer:
        writer.add_text("comparison/verdict", "  \n".join(printable(line) for line in sentences), 0)
        writer.add_text("comparison/table", table, 0)
        for picture in pictures:
            pixels = np.asarray(Image.open(io.BytesIO(picture.png)).convert("RGB"))
            writer.add_image(f"comparison/{Path(picture.file).stem}", pixels, 0, dataformats="HWC")
