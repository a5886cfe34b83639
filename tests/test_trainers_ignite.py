"""All of Ignite on the two engines: handlers, metrics and utilities do there what they do on Ignite's own engines."""

import importlib
import inspect
import json
import pkgutil
from types import SimpleNamespace

import ignite.handlers
import ignite.metrics
import pytest
import torch
from ignite import handlers, utils
from ignite.contrib.engines import common
from ignite.engine import Events, create_supervised_evaluator
from ignite.handlers import tensorboard_logger
from ignite.handlers.base_logger import BaseOutputHandler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainers.engine.engines import StepOptions, create_evaluator, create_trainer

CPU = torch.device("cpu")
AFTER_STEP, AFTER_EPOCH = Events.ITERATION_COMPLETED, Events.EPOCH_COMPLETED


def loss_of(output):
    return output["loss"]


def made(**options):
    """Both engines on a small model, with what handlers ask for."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    trainer = create_trainer(model, optimizer, nn.functional.cross_entropy, CPU, options=StepOptions(**options))
    loader = DataLoader(TensorDataset(torch.randn(16, 3, 2, 2), torch.arange(16) % 3), 4)
    evaluator = create_evaluator(model, CPU)
    trainer.add_event_handler(AFTER_EPOCH, lambda: evaluator.run(loader))
    return SimpleNamespace(model=model, optimizer=optimizer, trainer=trainer, evaluator=evaluator, loader=loader)


def attach(handler, at, *event):
    handler.attach(at.trainer, *event)


def on_step(at, handler):
    at.trainer.add_event_handler(AFTER_STEP, handler)


def on_scores(at, handler):
    at.evaluator.add_event_handler(Events.COMPLETED, handler)


def two_cycles(at):
    cycles = [handlers.LinearCyclicalScheduler(at.optimizer, "lr", 0.0, 0.1, 4) for _ in range(2)]
    return handlers.ConcatScheduler(cycles, durations=[4])


def log_all(at, folder):
    with handlers.TensorboardLogger(folder) as logger:
        logger.attach_output_handler(at.trainer, AFTER_STEP, "step", output_transform=lambda output: output)
        logger.attach_output_handler(at.evaluator, Events.COMPLETED, "val", metric_names="all")
        for kind in ("WeightsScalarHandler", "WeightsHistHandler", "GradsScalarHandler", "GradsHistHandler"):
            logger.attach(at.trainer, getattr(tensorboard_logger, kind)(at.model), AFTER_EPOCH)
        logger.attach(at.trainer, tensorboard_logger.OptimizerParamsHandler(at.optimizer), AFTER_STEP)
        at.trainer.run(at.loader, max_epochs=2)


def find_rate(at, folder):
    finder = handlers.FastaiLRFinder()
    to_save = {"model": at.model, "optimizer": at.optimizer}
    with finder.attach(at.trainer, to_save, loss_of, num_iter=6) as tested:
        tested.run(at.loader)


def torch_rate(at):
    return torch.optim.lr_scheduler.StepLR(at.optimizer, 2)


ATTACHED = {
    "BasicTimeProfiler": lambda at, _: attach(handlers.BasicTimeProfiler(), at),
    "BatchSizeScheduler": lambda at, _: attach(handlers.BatchSizeScheduler(at.loader, lambda event: 4), at),
    "Checkpoint": lambda at, folder: at.trainer.add_event_handler(
        AFTER_EPOCH, handlers.Checkpoint({"trainer": at.trainer, "model": at.model}, handlers.DiskSaver(folder))
    ),
    "ConcatScheduler": lambda at, _: on_step(at, two_cycles(at)),
    "CosineAnnealingScheduler": lambda at, _: on_step(
        at, handlers.CosineAnnealingScheduler(at.optimizer, "lr", 0.1, 0.0, 4)
    ),
    "EMAHandler": lambda at, _: attach(handlers.EMAHandler(at.model), at),
    "EarlyStopping": lambda at, _: on_scores(
        at, handlers.EarlyStopping(3, lambda engine: engine.state.metrics["accuracy"], at.trainer)
    ),
    "EpochOutputStore": lambda at, _: (
        attach(handlers.EpochOutputStore(), at), handlers.EpochOutputStore().attach(at.evaluator, "outputs"),
    ),
    "ExpStateScheduler": lambda at, _: attach(handlers.ExpStateScheduler(1.0, 0.5, "x"), at, AFTER_STEP),
    "FBResearchLogger": lambda at, _: handlers.FBResearchLogger(utils.setup_logger("fb"), show_output=True).attach(
        at.trainer, "train", every=1, optimizer=at.optimizer
    ),
    "FastaiLRFinder": find_rate,
    "HandlersTimeProfiler": lambda at, _: attach(handlers.HandlersTimeProfiler(), at),
    "LRScheduler": lambda at, _: on_step(at, handlers.LRScheduler(torch_rate(at))),
    "LambdaStateScheduler": lambda at, _: attach(handlers.LambdaStateScheduler(float, "x"), at, AFTER_STEP),
    "LinearCyclicalScheduler": lambda at, _: on_step(
        at, handlers.LinearCyclicalScheduler(at.optimizer, "lr", 0.0, 0.1, 4)
    ),
    "ModelCheckpoint": lambda at, folder: at.trainer.add_event_handler(
        AFTER_EPOCH, handlers.ModelCheckpoint(folder), {"model": at.model}
    ),
    "MultiStepStateScheduler": lambda at, _: attach(
        handlers.MultiStepStateScheduler(1.0, 0.5, [2], "x"), at, AFTER_STEP
    ),
    "ParamGroupScheduler": lambda at, _: on_step(at, handlers.ParamGroupScheduler([two_cycles(at)])),
    "PiecewiseLinear": lambda at, _: on_step(at, handlers.PiecewiseLinear(at.optimizer, "lr", [(0, 0.1), (4, 0.2)])),
    "PiecewiseLinearStateScheduler": lambda at, _: attach(
        handlers.PiecewiseLinearStateScheduler([(0, 0.1), (4, 0.2)], "x"), at, AFTER_STEP
    ),
    "ProgressBar": lambda at, _: (
        attach(handlers.ProgressBar(), at, ["accuracy"], lambda output: output),
        handlers.ProgressBar().attach(at.evaluator, "all", event_name=AFTER_EPOCH, closing_event_name=Events.COMPLETED),
    ),
    "ReduceLROnPlateauScheduler": lambda at, _: on_scores(
        at, handlers.ReduceLROnPlateauScheduler(at.optimizer, "loss", at.trainer)
    ),
    "StepStateScheduler": lambda at, _: attach(handlers.StepStateScheduler(1.0, 0.5, 2, "x"), at, AFTER_STEP),
    "TensorboardLogger": log_all,
    "TerminateOnNan": lambda at, _: on_step(at, handlers.TerminateOnNan()),
    "TimeLimit": lambda at, _: on_step(at, handlers.TimeLimit(60)),
    "Timer": lambda at, _: attach(handlers.Timer(), at),
}  # fmt: skip
ELSEWHERE = {
    "BaseParamScheduler", "CyclicalScheduler", "ParamScheduler", "StateParamScheduler",  # abstract
    "DiskSaver", "Engine", "Events",  # attached to nothing
    "ClearMLLogger", "MLflowLogger", "NeptuneLogger", "PolyaxonLogger", "VisdomLogger", "WandBLogger",
}  # fmt: skip
"""What is no handler, or needs a package and a server: loggers read an engine by their OutputHandlers, tested below."""


def classes_of(module):
    return {name for name, value in vars(module).items() if inspect.isclass(value)}


def test_every_handler_of_ignite_is_listed():
    assert classes_of(ignite.handlers) == {*ATTACHED, *ELSEWHERE}


@pytest.mark.filterwarnings("ignore::UserWarning:ignite")  # on any engine, of values that are not there yet
@pytest.mark.parametrize("name", ATTACHED)
def test_ignites_handlers_work_on_both_engines(name, tmp_path):
    at = made()
    ATTACHED[name](at, tmp_path)
    if at.trainer.state.iteration == 0:
        at.trainer.run(at.loader, max_epochs=2)
        assert at.trainer.state.iteration == 8
        assert 0 <= at.evaluator.state.metrics["accuracy"] <= 1


def test_ignites_handler_stops_at_a_loss_not_finite():
    at = made(look_every=1)
    at.trainer.state.output = {"loss": float("nan")}
    handlers.TerminateOnNan()(at.trainer)
    assert at.trainer.should_terminate


def test_ignites_common_handlers_of_a_training_work(tmp_path):
    at = made()
    common.setup_common_training_handlers(
        at.trainer, to_save={"trainer": at.trainer, "model": at.model}, output_path=tmp_path, save_every_iters=2,
        lr_scheduler=torch_rate(at), output_names=["loss", "grad_norm"], clear_cuda_cache=False,
    )  # fmt: skip
    common.gen_save_best_models_by_val_score(
        save_handler=handlers.DiskSaver(tmp_path, require_empty=False), evaluator=at.evaluator, models=at.model,
        metric_name="accuracy", trainer=at.trainer,
    )  # fmt: skip
    common.add_early_stopping_by_val_score(5, at.evaluator, at.trainer, "accuracy")
    at.trainer.run(at.loader, max_epochs=2)
    assert at.trainer.state.metrics["loss"] > 0
    assert len(list(tmp_path.glob("best_model_*.pt"))) == 2


NAMES = [each.name for each in pkgutil.iter_modules(handlers.__path__)]
SUBMODULES = [importlib.import_module(f"ignite.handlers.{name}") for name in NAMES]
OUTPUT_HANDLERS = [
    module.OutputHandler
    for module in SUBMODULES
    if inspect.isclass(getattr(module, "OutputHandler", None)) and issubclass(module.OutputHandler, BaseOutputHandler)
]


@pytest.mark.parametrize("kind", OUTPUT_HANDLERS, ids=lambda kind: kind.__module__.rpartition(".")[2])
def test_ignites_loggers_get_few_numbers_alone(kind):
    at = made()
    at.trainer.run(at.loader, max_epochs=1)
    of_step = kind("t", output_transform=lambda output: output)._setup_output_metrics_state_attrs(at.trainer)
    scores = kind("t", metric_names="all")._setup_output_metrics_state_attrs(at.evaluator)
    assert {"loss", "accuracy"} <= {name[1] for name in scores}
    assert len(of_step) == 5
    assert len(scores) < 15
    assert all(isinstance(value, int | float) or value.dim() == 0 for value in (*of_step.values(), *scores.values()))


def outcome(kind, options, engine, data):
    """What a metric gives on an engine, or its complaint."""
    try:
        kind(*options).attach(engine, "tried")
        return str(engine.run(data).metrics["tried"])
    except Exception as error:
        return repr(error)


METRICS = {
    "Loss": (nn.functional.cross_entropy,), "ConfusionMatrix": (3,), "EpochMetric": (lambda logits, labels: 0.5,),
    "TopKCategoricalAccuracy": (2,), "MetricGroup": ({"one": ignite.metrics.Accuracy()},),
}  # fmt: skip
DOWNLOADS = {"FID", "InceptionScore"}
CLOCKS = {"Frequency"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(classes_of(ignite.metrics) - DOWNLOADS - CLOCKS))
def test_ignites_metrics_equal_those_on_its_engine(name):
    at, kind = made(), getattr(ignite.metrics, name)
    theirs = outcome(kind, METRICS.get(name, ()), create_supervised_evaluator(at.model), at.loader)
    assert outcome(kind, METRICS.get(name, ()), at.evaluator, at.loader) == theirs
    if name in METRICS or name in ("Accuracy", "Precision", "Recall", "MatthewsCorrCoef", "Perplexity", "Entropy"):
        assert "Error" not in theirs


@pytest.mark.parametrize("look_every", [1, 3])
def test_ignites_utilities_take_the_output_of_a_step(look_every):
    at = made(look_every=look_every)
    ignite.metrics.RunningAverage(output_transform=loss_of).attach(at.trainer, "running")
    outputs = []
    on_step(at, lambda engine: outputs.append(engine.state.output))
    at.trainer.run(at.loader, max_epochs=1)
    output = outputs[0]
    assert utils.apply_to_type(output, (int, float, torch.Tensor), lambda value: value) == output
    assert utils.convert_tensor({"output": at.evaluator.state.output}, "cpu")["output"][1].dtype is torch.int64
    assert utils._to_str_list(output)
    assert at.trainer.state.metrics["running"] > 0


def test_outputs_and_scores_are_plain_numbers():
    at = made()
    at.trainer.run(at.loader, max_epochs=1)
    output = at.trainer.state.output
    assert json.loads(json.dumps(output)) == output
    assert {type(value) for value in output.values()} == {int, float}
    assert str(output["loss"]) in str(output)
    assert {type(value) for value in at.evaluator.state.metrics.values()} == {float}
    assert len(at.evaluator.state.predictions.labels) == 16
