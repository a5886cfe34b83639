"""Write TensorBoard's *start here* page, in markdown, and the row of a run in HPARAMS."""

import json
from collections.abc import Mapping
from typing import Any

from common.options import Hparam, Incidental, InFiles
from common.shell import command
from common.text import pluralise, printable
from datasets.config import named_set
from trainers.config import RunConfig, run_options
from trainers.engine.evaluation import Scores
from trainers.engine.metrics import per_class
from trainers.reporting.explanations.faithfulness import read_faithfulness
from trainers.reporting.screen import weights_taken
from trainers.setup import RunSetup
from trainers.storage.run_folder import RunFolder


def before(setup: RunSetup, run: RunFolder) -> str:
    """Write the page of a run that starts."""
    config = setup.config
    sentence = f"{literal(config.model.in_words)} is being trained for {pluralise(config.train.epochs or 0, 'epoch')}"
    commands = (command("check", *named_set(config.data)), command("resume", run.path))
    return page(config, run, f"{sentence}; the result will stand here.", *commands)


def after(setup: RunSetup, run: RunFolder, *, epoch: int, scores: Mapping[str, Scores]) -> str:
    """Write the page of a finished run: its accuracy on the last split, and its weakest class there."""
    config, (split, last) = setup.config, list(scores.items())[-1]
    classes = per_class(last.outputs, setup.data.class_names)
    recall, weakest = min((row.recall, row) for row in classes if row.recall is not None)
    sentences = [
        f"**{literal(config.model.in_words)} is right on {last.metrics['accuracy']:.1%} of the {split} images** "
        f"({last.outputs.correct.sum():,} of {len(last.outputs.labels):,}; {weights_taken(config, epoch)}).",
        f"Its weakest class is {literal(weakest.name)}: {recall:.1%} of {weakest.images:,} {split} images are right.",
        *map(str, read_faithfulness(run.path).values()),
    ]
    after_it = [command(do, run.path, "path/to/images") for do in ("predict", "explain")]
    return page(config, run, "\n\n".join(sentences), command("evaluate", run.path), *after_it)


def page(config: RunConfig, run: RunFolder, text: str, *commands: str) -> str:
    """Join a text, the given options, and commands as a block of code."""
    words = ", ".join(literal(as_given(flag, value)) for flag, value in asked_for(config, run).items())
    given = f"Its options, where they differ from the defaults: {words}." if words else "Every option has its default."
    return "\n\n".join([text, given, "\n".join(f"    {line}" for line in commands)])


def as_given(flag: str, value: Any) -> str:
    """Format an option as on the command line, or as a line of a file."""
    if option := next((option for option in run_options(InFiles) if option.flag == flag), None):
        return f"{option.name} = {json.dumps(value, default=str)}, in a file"
    return flag if value is True else f"{flag} {value}"


def asked_for(config: RunConfig, run: RunFolder) -> dict[str, Any]:
    """Return the given options by flag, without a mixture's networks, which its name contains.

    If meta.json is damaged, all options that differ from the defaults are returned.
    """
    usual, config = RunConfig(), run.requested or config
    unsaid = {*run_options(Incidental), *(option for option in run_options() if option.section == "output")}
    shown = [option for option in run_options() if option not in unsaid and option.name != "networks"]
    return {option.flag: option.of(config) for option in shown if option.of(config) != option.of(usual)}


def hparams(config: RunConfig, run: RunFolder) -> dict[str, Any]:
    """Return the columns of a run in the HPARAMS tab: the given options, and those that every run shows."""
    columns = asked_for(config, run) | {option.flag: option.of(config) for option in run_options(Hparam)}
    columns["--model"] = config.model.in_words
    return {flag.removeprefix("--").replace("-", "_"): value for flag, value in columns.items()}


def literal(value: object) -> str:
    """Quote a value so that markdown shows it as it is."""
    return f"`{printable(str(value)).replace('`', chr(39))}`"
