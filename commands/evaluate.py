"""`evaluate RUN`: score a run's best weights again, or any model on any labelled images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from commands.arguments import ModelOptions, UsageError
from commands.train import score_lines
from datasets.config import DataConfig, Name
from datasets.text import counted


@dataclass(frozen=True)
class Options(ModelOptions):
    """Score a run's best weights on one of its splits, and hold them against what training logged; or with --data a
    run, an export or a weights file on any labelled images. Tables and figures are written to the run's eval/.

    --device is for --data; a run's own splits are scored where it trained.
    """

    split: Literal["train", "val", "test"] | None = None
    """Which split to score. Default: val of the run's own data; every image of --data."""
    data: Annotated[str | None, tyro.conf.arg(metavar="NAME|PATH")] = None
    """Other labelled images: a built-in set, folder, table or zip. Classes are matched by name."""
    path_column: Name = None
    """As for train: the column of a table that names the images."""
    label_column: Name = None
    """As for train: the column of a table that names the classes."""
    data_root: Path | None = None
    """Where built-in sets are found. Default: where the run found them; else data."""
    output: Path | None = None
    """Folder for the files about --data. Default: eval/ of the run."""
    csv: bool = False
    """Write a table of predictions too where so many images times classes were scored that they are kept as .npz: the
    likeliest classes of each image."""
    tta: bool = False
    """Answer for ten views of each image, in ten times the time: the image, moved to its four corners by a sixteenth of
    its side, and the mirror image of each. Not where a mirror image means something else, as of digits."""

    def __post_init__(self) -> None:
        if self.data is None and self.split == "train":
            raise UsageError("split=train of a run's own data is augmented; name its images with --data to score them")


def main(options: Options) -> int:
    from inference.classifier import is_run_name
    from inference.evaluate import evaluate_on, evaluate_run
    from inference.evaluation_report import as_table, lines
    from inference.ten_views import with_ten_views
    from trainers.result import find_run

    split, source, root = options.split, options.data, options.data_root
    if source is not None:
        classifier = with_ten_views(options.open()) if options.tta else options.open()
        data = DataConfig(source, root or Path("data"), options.path_column, options.label_column)
        evaluation = evaluate_on(classifier, data, split=split, folder=options.output)
        what, images = classifier.source, f"{split or 'labelled'} images of {source}"
    elif is_run_name(options.run):
        run_dir, split = find_run(options.run, options.output_dir), split or "val"
        evaluation = evaluate_run(run_dir, split=split, data_root=root, tta=options.tta)
        what, images = f"{run_dir}: best weights (epoch {evaluation.epoch})", f"{split} images"
    else:
        raise UsageError(f"{options.run} brings no images; name labelled ones with --data")
    if options.csv and evaluation.files[0].suffix == ".npz":
        evaluation.files.append(as_table(evaluation.files[0]))
    print(f"{what} on {evaluation.images:,} {images}{', by the mean over views of each' * options.tta}")
    remark = counted(evaluation.images, "image")
    scored = score_lines([("scored", evaluation.metrics, remark, evaluation.images)])
    print("\n".join([*scored, "", *lines(evaluation)]))
    return 0
