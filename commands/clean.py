"""Run `clean DATA`: find likely label errors, and write a table without them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from commands.arguments import ImagesOptions
from commands.parser import UsageError
from common.errors import DataError
from common.options import OutputFolder, require
from common.text import pluralise
from datasets.built_in import have_learnt
from trainers.config import OutputConfig
from trainers.reporting.console import say
from trainers.storage.data_folder import claimed_folder, data_folder


@dataclass(frozen=True)
class Options(ImagesOptions):
    """Find likely label errors by models that were not trained on the image. They are ranked in suspects.csv, to decide
    on; cleaned.csv is a table to train on. The images and their folders stay as they are, and so do the labels of the
    test images. Given again, it takes the decisions from suspects.csv.
    """

    review: bool = False
    """Decide on a page of this machine, by keys. Keep, relabel, drop, undo, enlarge; with pictures to compare with."""
    on_bad_image: Literal["fail", "skip"] = "fail"
    """Stop at an unreadable image (fail) or leave it out (skip)."""
    folds: int = 5
    """Cut the images into this many folds. Each is scored by models that were trained on the others."""
    output: Annotated[Path | None, OutputFolder] = None
    """Write the files to this folder. Default: runs/<data>/clean/."""
    port: int | None = None
    """TCP port of --review; 0 takes a free one. Default: 7861."""

    def __post_init__(self) -> None:
        require(self, "be at least 2", lambda count: count >= 2, "folds")
        require(self, "lie in 0 to 65535", lambda port: 0 <= port < 65_536, "port")
        if self.port is not None and not self.review:
            raise UsageError("--port is of the page of --review: add it")
        if (Path(self.data) / "config.json").is_file():
            raise UsageError(f"{self.data} is a run: name images, such as those that it was trained on")

    @property
    def folder(self) -> Path:
        return self.output or data_folder(OutputConfig(), self.data) / "clean"


def main(options: Options) -> int:
    """Find suspects unless they are listed, write the tables, and open the page."""
    from datasets.open import split_samples
    from inference.labels import clean
    from inference.labels.features import extract_features
    from inference.labels.label_issues import cleanlab_filter
    from inference.labels.suspects import SuspectsPage, read_suspects, write_cleaned, write_suspects

    folder, listed = options.folder, options.folder / "suspects.csv"
    config = replace(options.images, on_bad_image=options.on_bad_image)
    again = listed.is_file()
    if not again:
        cleanlab_filter()  # if it is missing, fail now
    samples = split_samples(config)
    networks = clean.networks_for(samples)
    if options.review or not again:
        place = (options.output or folder.parent) / "features"
        found = extract_features(samples, networks, place, components=clean.CLEAN_COMPONENTS, data_root=config.root)
        if found.faults:
            raise DataError(f"cannot read {found.faults[0]}; --on-bad-image skip leaves such images out")
    if again:
        say(f"using the decisions in {listed}; remove it to search again")
        suspects = read_suspects(listed, samples)
    else:
        for how in {have_learnt(network.weights, config.source) for network in networks} - {""}:
            say(f"{how}: wrong labels that the networks know look right", label="note")
        probabilities = clean.cross_validate(samples, found, folds=options.folds)
        suspects, of_test = (clean.suspects_of(samples, found, probabilities, test=test) for test in (False, True))
        accuracy = clean.accuracy_of(samples, found, probabilities)
        say(f"models that were not trained on a picture agree with {accuracy:.1%} of the labels")
        if accuracy < clean.SURE:
            say("models that are right so seldom doubt the labels of many hard images: decide one by one")
        folder.mkdir(parents=True, exist_ok=True)
        write_suspects(folder / "test_suspects.csv", of_test)
        if of_test:
            say(f"doubtful, too, and left as they are: {pluralise(len(of_test), 'test label')} in test_suspects.csv")
    if options.output is None:
        claimed_folder(OutputConfig(), options.data)
    write_suspects(listed, suspects)
    write_cleaned(folder / "cleaned.csv", samples, suspects)
    write_cleaned(folder / "given.csv", samples, [])
    clean.say_suspects(folder, samples, suspects, may_mirror=config.may_mirror, reviewed=options.review)
    if options.review:
        with SuspectsPage(folder, samples, found, port=7861 if options.port is None else options.port) as server:
            say(f"on {server.url}  (Ctrl-C ends it and writes cleaned.csv)", label="review")
            try:
                server.serve_until_interrupted()
            finally:
                write_cleaned(folder / "cleaned.csv", samples, server.rows)
    return 0
