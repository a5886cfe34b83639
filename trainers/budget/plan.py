"""`--minutes M`: the best classifier for the time there is.

Without a model's name that is the ensemble of `trainers.budget.ensemble`. A model that is named, or has no weights, is
trained alone: `trainers.budget.named`.
"""

from collections.abc import Sequence

from common.errors import OptionError
from datasets.open import OpenedImages
from trainers.budget.ensemble import ensemble
from trainers.budget.named import one_model
from trainers.budget.networks import asked_for
from trainers.budget.planned_run import Budget, Start
from trainers.config import RunConfig
from trainers.options.recipes import cooling, filled_in
from trainers.reporting import console
from trainers.storage.run_result import RunResult
from trainers.system.process import launched
from vit.config import embedded_weights


@console.model_log()
def best_in(
    budget: Budget, config: RunConfig, start: Start, *, opened: OpenedImages | None = None, more: Sequence[str] = ()
) -> RunResult:
    """Train what makes the most of the time; return the run to keep.

    `more`: networks to use besides those on this machine, as `--with` names them. Raises OptionError: epochs are given
    too, or there are several runs or processes; and whatever `trainers.setup.prepare` raises."""
    require_one_run(config)
    opened, config = opened or OpenedImages(), without_luck(with_embedded_weights(config))
    console.say(f"the best model in {console.duration(60 * budget.minutes)}", label="plan")
    if config.model.name == "auto" and config.model.weights is None:
        return ensemble(config, start, budget, opened, asked_for(more))
    if config.model.name == "auto":
        config = filled_in(config, cooling("scratch-small"))
    return one_model(config, start, budget, opened)


def require_one_run(config: RunConfig) -> None:
    """Raise OptionError for given epochs, several runs or several processes."""
    if config.train.epochs is not None:
        raise OptionError(f"--minutes plans the epochs: leave out --epochs {config.train.epochs:g}, or --minutes")
    if launched() > 1:
        raise OptionError("--minutes measures the pace of one process; with torchrun give --epochs")
    if config.data.folds is not None and config.data.fold is None:
        one = f"in a file, folds = {config.data.folds} and fold = 1"
        raise OptionError(f"--minutes plans one run; with --folds give --epochs, or one fold {one}")


def with_embedded_weights(config: RunConfig) -> RunConfig:
    """Let a named model start from its embedded weights, unless options name others."""
    weights = embedded_weights(config.model)
    if weights is None:
        return config
    console.say(
        f"{config.model.name} from the weights that come with it, {weights}; --weights none: without", label="plan"
    )
    return config.changed(model={"weights": weights})


def without_luck(config: RunConfig) -> RunConfig:
    """Keep each run's last epoch, unless asked otherwise or the rate stays high.

    The best of many noisy scores is partly luck, and the rate falls to zero by plan."""
    train = config.train
    left_open = train.select == "auto" and not train.patience
    return config.changed(train={"select": "last"}) if left_open and train.schedule != "constant" else config
