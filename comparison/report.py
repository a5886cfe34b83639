"""Everything a comparison leaves behind: table.csv, table.md, report.html, figures and a TensorBoard event file."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from comparison.page import Disagreement, Example, page
from comparison.pictures import Sight, look, only_one_right, open_images, thumbnail, usual_prediction
from comparison.results import ConditionResult, analyse
from comparison.runs import Arm, Comparison
from comparison.table import printable, table_csv, table_md, verdicts
from datasets.bundle import DataError
from figures import comparison as figures
from figures.comparison import Picture
from trainers.errors import CheckpointError
from trainers.run_directory import write_text

EXAMPLES = 8  # images per side that only one arm gets right
LOOKED_AT = 6  # images under the attention of every arm


def write_report(comparison: Comparison, folder: Path) -> list[Path]:
    """Write the report, its figures and `tb/`; files appear whole or not at all, and replace those of an earlier one.

    Images come from the runs' data set and attention from their weights; where these are gone, the report says so.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results = analyse(comparison)
    disagreements = [disagreement(result) for result in results]
    looks, unseen = looked_at(results[-1], disagreements[-1])
    pictures = draw(results, looks)
    texts = {
        "table.csv": table_csv(comparison, results),
        "table.md": table_md(comparison, results),
        "report.html": page(comparison, results, pictures, disagreements, unseen=unseen),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    with Replacement(folder / "figures") as aside:
        for picture in pictures:
            (aside / picture.file).write_bytes(picture.png)
    with Replacement(folder / "tb") as aside:
        write_events(aside, texts["table.md"], verdicts(results), pictures)
    return [folder / name for name in texts] + [folder / "figures" / picture.file for picture in pictures]


class Replacement:
    """A folder that is filled aside and takes the place of the one of its name when it is whole."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.aside = folder, folder.with_name(f".{folder.name}.tmp")

    def __enter__(self) -> Path:
        shutil.rmtree(self.aside, ignore_errors=True)
        self.aside.mkdir()
        return self.aside

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.replace(self.aside, self.folder)
        else:
            shutil.rmtree(self.aside, ignore_errors=True)


def write_events(folder: Path, table: str, sentences: Sequence[str], pictures: Sequence[Picture]) -> None:
    """The table and the figures where `tensorboard --logdir` on a folder above finds them."""
    with SummaryWriter(log_dir=str(folder)) as writer:
        writer.add_text("comparison/verdict", "  \n".join(printable(line) for line in sentences), 0)
        writer.add_text("comparison/table", table, 0)
        for picture in pictures:
            pixels = np.asarray(Image.open(io.BytesIO(picture.png)).convert("RGB"))
            writer.add_image(f"comparison/{Path(picture.file).stem}", pixels, 0, dataformats="HWC")


def leading_pair(result: ConditionResult) -> tuple[Arm, Arm]:
    """The first arm and the most accurate of the others."""
    best = max(result.scores[1:], key=lambda each: each.accuracy)
    return result.condition.arms[0], best.arm


def disagreement(result: ConditionResult) -> Disagreement:
    """The images that only one of the leading two arms gets right."""
    first, second = leading_pair(result)
    chosen = only_one_right(first, second, limit=EXAMPLES)
    rows = [*chosen[0], *chosen[1]]
    run, problem = first.runs[0], ""
    thumbnails: list[str | None] = [None] * len(rows)
    if rows:
        try:
            thumbnails = [thumbnail(image) for image in open_images(run, rows)]
        except (DataError, OSError, ValueError) as error:
            problem = f"The images are not shown: {error}"
    examples = [
        Example(
            row,
            run.paths[row],
            run.class_names[run.labels[row]],
            usual_prediction(first, row),
            usual_prediction(second, row),
            picture,
        )
        for row, picture in zip(rows, thumbnails, strict=True)
    ]
    count = len(chosen[0])
    return Disagreement(first, second, tuple(examples[:count]), tuple(examples[count:]), problem)


def looked_at(
    result: ConditionResult, found: Disagreement
) -> tuple[tuple[list[Sight], list[str], list[int]], list[str]]:
    """The same few images through every arm with attention, their titles, which arms; and why others are left out."""
    half = LOOKED_AT // 2
    rows = [each.row for each in (*found.only_first[:half], *found.only_second[:half])]
    run = found.first.runs[0]
    rows += [row for row in range(len(run.labels)) if row not in rows][: LOOKED_AT - len(rows)]
    sights: list[Sight] = []
    arms: list[int] = []
    unseen: list[str] = []
    try:
        images = open_images(run, rows)
    except (DataError, OSError, ValueError) as error:
        return ([], [], []), [f"No attention is shown: {error}"]
    for index, arm in enumerate(result.condition.arms):
        try:
            sight = look(arm, images)
        except (CheckpointError, OSError, ValueError, ImportError) as error:
            unseen.append(f"{arm.name} is left out: {error}")
            continue
        if sight is None:
            unseen.append(f"{arm.name} has no attention to show.")
        else:
            sights.append(sight)
            arms.append(index)
    return (sights, [run.class_names[run.labels[row]] for row in rows], arms), unseen


def draw(results: Sequence[ConditionResult], looks: tuple[list[Sight], list[str], list[int]]) -> list[Picture]:
    """All figures, in the order in which the report shows them."""
    found = []

    def add(title: str, caption: str, file: str, figure: figures.Figure) -> None:
        found.append(Picture(title, caption, file, figures.png(figure)))

    if len(results) > 1:
        add(
            "Accuracy by labels per class",
            "Points are seeds, lines their mean, bars the Wilson 95 % interval from the lowest to the highest run.",
            "accuracy_by_labels.png",
            figures.accuracy_by_labels(results),
        )
    for result in results:
        arms = result.condition.arms
        where = f", {result.title}" if len(results) > 1 else ""
        slug = f"_{result.condition.labels_per_class or 'all'}_labels" if len(results) > 1 else ""
        add(
            f"Learning curves{where}",
            "On the validation images. Thin lines are seeds, thick ones their mean.",
            f"learning_curves{slug}.png",
            figures.learning_curves(arms),
        )
        if len(arms[0].runs[0].class_names) <= figures.MOST_CLASSES:
            add(
                f"Confusion matrices{where}",
                "Counts of scored images"
                + (f", {len(arms[0].runs)} seeds added up." if len(arms[0].runs) > 1 else ".")
                + " Rows are the true classes.",
                f"confusion{slug}.png",
                figures.confusion_matrices(arms),
            )
        add(
            f"Reliability{where}",
            "On the diagonal confidence is honest; below it the arm is too sure. ECE is the mean gap.",
            f"reliability{slug}.png",
            figures.reliability(arms),
        )
    sights, titles, arms_seen = looks
    if sights:
        add(
            "Attention on the same images",
            "Attention rollout of the first seed's model, true class above each image; bright is what it looks at.",
            "attention.png",
            figures.attention(sights, titles, arms_seen),
        )
    return found
