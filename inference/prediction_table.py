"""Write images that a model classified as a table, for `predict` and `evaluate`."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TextIO

from common.tables import csv_lines
from common.text import printable
from trainers.reporting.figures.images import ImagePrediction

Column = Callable[[ImagePrediction], str]
JOINT = " | "
"""Between the classes of a set."""
YES_NO = {None: "", True: "yes", False: "no"}
IMAGE: dict[str, Column] = {
    "path": lambda image: image.path,  # of the file, as in split.csv
    "label": lambda image: printable(image.label or ""),
}
RANKED: dict[str, Callable[[str, float], str]] = {
    "predicted": lambda name, probability: printable(name),
    "probability": lambda name, probability: f"{probability:.7g}",
}
"""Columns of each of the likeliest classes; from the second on their names end in its place."""
JUDGED: dict[str, Column] = {
    "set": lambda image: JOINT.join(map(printable, image.set or ())),
    "unknown": lambda image: YES_NO[image.unknown],
}
"""Columns of a model that was evaluated; empty where nothing is promised."""


def columns_of_place(place: int) -> dict[str, Column]:
    """Return the columns of the class at a place, counted from 1.

    They are empty where an image has fewer classes."""

    def column(cell: Callable[[str, float], str]) -> Column:
        return lambda image: cell(*image.ranked[place - 1]) if place <= len(image.ranked) else ""

    return {name if place == 1 else f"{name}_{place}": column(cell) for name, cell in RANKED.items()}


def columns_of_predict(*, top: int, judged: bool, printed: bool) -> dict[str, Column]:
    """Return the columns for the `top` classes of each image.

    `printed`: with codes for what a terminal cannot show."""
    columns = dict(IMAGE)
    if printed:
        columns["path"] = lambda image: printable(image.path)
    for place in range(1, top + 1):
        columns |= columns_of_place(place)
    return columns | JUDGED if judged else columns


def columns_of_evaluation() -> dict[str, Column]:
    """Return the columns without probabilities, which have a table of their own."""
    return IMAGE | {"predicted": columns_of_place(1)["predicted"]} | JUDGED


def write_rows(
    images: Iterable[ImagePrediction], file: TextIO, columns: Mapping[str, Column], *, header: bool = True
) -> None:
    """Write images as CSV as they come."""
    lines = csv_lines(columns, ([column(image) for column in columns.values()] for image in images))
    file.writelines(lines if header else islice(lines, 1, None))
