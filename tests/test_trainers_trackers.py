"""Runs in experiment trackers: what each is sent, by Ignite's own loggers on stand-ins of their packages."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest
from child_processes import ROOT
from killed_runs import Crash, crash_after, signal_in
from small_run import call, digits_run

from common.errors import Interrupted, OptionError
from comparison.compare import compare_arms
from comparison.plan import Request
from trainers.config import RunConfig
from trainers.multirun import runs, seeds_and_folds
from trainers.rehearsal import dry_run
from trainers.resume import resume
from trainers.run import train
from trainers.storage.run_folder import read_json
from trainers.system import distributed

TRACKERS = ("mlflow", "wandb", "clearml")
CLEARML_CONNECTS = (
    "catboost", "detect_repository", "fastai", "gradio", "hydra", "joblib", "lightgbm", "matplotlib", "megengine",
    "pytorch", "scikit", "tensorboard", "tensorflow", "tfdefines", "xgboost",
)  # fmt: skip
"""What `Task.init` of clearml 2.1.12 asks `auto_connect_frameworks` for; one that this does not name is connected."""


CALLS: dict[str, Callable] = {
    "mlflow.MlflowClient": lambda tracking_uri=None, registry_uri=None, workspace_store_uri=None: None,
    "mlflow.end_run": lambda status="FINISHED": None,
    "mlflow.log_metrics": lambda metrics, step=None, synchronous=None, run_id=None, timestamp=None, model_id=None,
        dataset=None: None,
    "mlflow.log_params": lambda params, synchronous=None, run_id=None: None,
    "mlflow.set_experiment": lambda experiment_name=None, experiment_id=None, trace_location=None: None,
    "mlflow.start_run": lambda run_id=None, experiment_id=None, run_name=None, nested=False, parent_run_id=None,
        tags=None, description=None, log_system_metrics=None: None,
    "wandb.config.update": lambda d, allow_val_change=None: None,
    "wandb.finish": lambda exit_code=None: None,
    "wandb.init": lambda entity=None, project=None, dir=None, id=None, name=None, notes=None, tags=None, config=None,
        config_exclude_keys=None, config_include_keys=None, allow_val_change=None, group=None, job_type=None,
        mode=None, force=None, reinit=None, resume=None, resume_from=None, fork_from=None, save_code=None,
        tensorboard=None, sync_tensorboard=None, monitor_gym=None, settings=None, anonymous=None: None,
    "wandb.log": lambda data, step=None, commit=None: None,
    "Task.connect": lambda mutable, name=None, ignore_remote_overrides=False: None,
    "Task.init": lambda project_name=None, task_name=None, task_type=None, tags=None, reuse_last_task_id=True,
        continue_last_task=False, output_uri=None, auto_connect_arg_parser=True, auto_connect_frameworks=True,
        auto_resource_monitoring=True, auto_connect_streams=True, deferred_init=False: None,
    "Task.mark_failed": lambda ignore_errors=True, status_reason=None, status_message=None, force=False: None,
    "Logger.flush": lambda wait=False: None,
    "Logger.report_scalar": lambda title, series, value, iteration: None,
    "WeightsGradientHistHelper": lambda logger, report_freq=100, histogram_update_freq_multiplier=10,
        histogram_granularity=50: None,
}  # fmt: skip
"""What the calls of mlflow 3.17.2, wandb 0.31.0 and clearml 2.1.12 take; others of theirs take nothing."""


def call_of(name: str, does: Callable) -> Callable:
    """A stand-in of a call, which takes what the real one takes and no more."""
    return create_autospec(CALLS.get(name, lambda: None), side_effect=does)


class Store:
    """What a tracker holds: its runs, each with options, scores by name and step, and how it ended."""

    def __init__(self) -> None:
        self.runs: dict[str, SimpleNamespace] = {}
        self.active: SimpleNamespace | None = None
        self.broken = False
        self.ready = False
        """Whether one process has opened it, before others do."""

    def start(self, known: str | None, *, name: str | None, project: str | None) -> SimpleNamespace:
        self.refuse()
        assert self.active is None
        number = known or f"run{len(self.runs)}"
        new = SimpleNamespace(id=number, name=name, project=project, options={}, scores={}, ended=None)
        self.active = self.runs.setdefault(number, new)
        return self.active

    def refuse(self) -> None:
        if self.broken:
            raise RuntimeError("no such server\nand a long story")

    def log(self, values: dict[str, float], step: int) -> None:
        self.refuse()
        for name, value in values.items():
            assert isinstance(value, int | float)
            self.active.scores.setdefault(name.replace(" ", "/"), {})[step] = value

    def end(self, well: bool) -> None:
        self.active.ended, self.active = well, None


def named(name: str, **calls: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(calls)
    return module


def mlflow_for(store: Store) -> dict[str, ModuleType]:
    project: list[str] = []

    def active_run():
        return store.active and SimpleNamespace(info=SimpleNamespace(run_id=store.active.id))

    def start_run(run_id=None, run_name=None):
        store.start(run_id, name=run_name, project=project[-1])
        return active_run()

    does = {
        "MlflowClient": lambda: setattr(store, "ready", True), "active_run": active_run, "start_run": start_run,
        "set_experiment": project.append, "log_params": lambda params: store.active.options.update(params),
        "log_metrics": lambda metrics, step: store.log(metrics, step),
        "end_run": lambda status="FINISHED": store.end(status == "FINISHED"),
    }  # fmt: skip
    mlflow = named("mlflow", **{name: call_of(f"mlflow.{name}", each) for name, each in does.items()})
    valid = named("mlflow.utils.validation", validate_param_and_metric_name=re.compile(r"[/\w.\- ]*$").match)
    return {"mlflow": mlflow, "mlflow.utils": named("mlflow.utils"), "mlflow.utils.validation": valid}


def wandb_for(store: Store) -> dict[str, ModuleType]:
    def init(project, name, config=None, id=None, resume=None):
        assert (id is None) == (resume is None)
        wandb.run = store.start(id, name=name, project=project)
        wandb.run.options.update(config or {})

    def finish(exit_code=0):
        store.end(exit_code == 0)
        wandb.run = None

    does = {"init": init, "finish": finish, "log": lambda data, step: store.log(data, step)}
    update = call_of("wandb.config.update", lambda d, allow_val_change: wandb.run.options.update(d))
    wandb = named("wandb", **{name: call_of(f"wandb.{name}", each) for name, each in does.items()})
    wandb.run, wandb.config = None, SimpleNamespace(update=update)
    return {"wandb": wandb}


def clearml_for(store: Store) -> dict[str, ModuleType]:
    def task(run):
        def fail(force=False):
            assert run.ended is None or force  # a task that has completed
            run.ended = False

        def report(title, series, value, iteration):
            store.log({f"{title}/{series}": value}, iteration)

        scalars = {"report_scalar": call_of("Logger.report_scalar", report), "flush": call_of("Logger.flush", int)}
        does = {
            "get_logger": lambda: SimpleNamespace(**scalars), "connect": lambda mutable: run.options.update(mutable),
            "mark_failed": fail, "close": lambda: store.end(True),
        }  # fmt: skip
        return SimpleNamespace(id=run.id, **{name: call_of(f"Task.{name}", each) for name, each in does.items()})

    def init(project_name, task_name, task_type, reuse_last_task_id, auto_connect_frameworks, auto_connect_arg_parser,
             continue_last_task=False):  # fmt: skip
        assert not {name for name in CLEARML_CONNECTS if auto_connect_frameworks.get(name, True)}
        assert not auto_connect_arg_parser
        assert reuse_last_task_id is False or (continue_last_task == 0 and continue_last_task is not False)
        return task(store.start(reuse_last_task_id or None, name=task_name, project=project_name))

    current = call_of("Task.current_task", lambda: store.active and task(store.active))
    types = SimpleNamespace(training="training")
    helper = call_of("WeightsGradientHistHelper", lambda logger, report_freq: None)
    modules = [
        named("clearml", Task=SimpleNamespace(TaskTypes=types, current_task=current, init=call_of("Task.init", init))),
        named("clearml.binding"),
        named("clearml.binding.frameworks"),
        named("clearml.binding.frameworks.tensorflow_bind", WeightsGradientHistHelper=helper),
    ]
    return {module.__name__: module for module in modules}


@pytest.fixture(params=TRACKERS)
def tracker(request) -> str:
    return request.param


@pytest.fixture
def store(tracker, monkeypatch) -> Store:
    store = Store()
    for name in ("MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT", "CI"):
        monkeypatch.delenv(name, raising=False)
    for name, module in {"mlflow": mlflow_for, "wandb": wandb_for, "clearml": clearml_for}[tracker](store).items():
        monkeypatch.setitem(sys.modules, name, module)
    return store


def config_of(folder, tracker=None, **options) -> RunConfig:
    data, output = {"labels_per_class": 3, "batch_size": 30}, {"run_name": "r", "tracker": tracker}
    return digits_run(folder, data=data, output=output, **{"epochs": 2, "lr": 0.002} | options)


def rows_of(result) -> dict[str, dict[int, float]]:
    """What a tracker is to hold of a run that was trained to its end."""
    tags = {
        "train/loss": "train_loss", "train/accuracy": "train_accuracy", "val/loss": "val_loss",
        "val/accuracy": "val_accuracy", "val/macro_f1": "val_macro_f1", "val/ece": "val_ece",
    }  # fmt: skip
    return {
        tag: {row["step"]: row[name] for row in result.epochs if row[name] is not None} for tag, name in tags.items()
    }


def test_a_run_and_its_resumption_are_one(store, tracker, tmp_path):
    with pytest.raises(Crash):
        train(config_of(tmp_path, tracker, save_every=1), handlers=[crash_after(2)])
    (run,) = store.runs.values()
    assert (run.name, run.project, run.ended) == ("r", "digits", False)
    before = dict(run.options)
    assert (before["train.lr"], before["model.name"]) == ("0.002", "vit_micro_2")
    result = resume(tmp_path / "digits" / "r", epochs=3)
    assert ([*store.runs.values()], store.active, run.ended, run.options) == ([run], None, True, before)
    assert {name: values for name, values in run.scores.items() if not name.startswith("final/")} == rows_of(result)
    assert run.scores["final/accuracy_test"] == {result.epochs[-1]["step"]: result.test["accuracy"]}
    assert run.scores["final/loss_val"] == {result.epochs[-1]["step"]: result.val["loss"]}


def test_a_broken_tracker_is_named_and_stops_no_run(store, tracker, tmp_path, capsys):
    train(config_of(tmp_path, tracker), handlers=[lambda trainer: setattr(store, "broken", True)])
    assert capsys.readouterr().out.count("no such server") == 1
    with pytest.raises(OptionError, match="no such server$"):  # from the start: no run is begun
        train(config_of(tmp_path / "again", tracker))
    assert not list(tmp_path.glob("again/digits/r*"))


OPEN = {
    "mlflow": lambda mlflow: (mlflow.set_experiment("p"), mlflow.start_run(run_name="outer")),
    "wandb": lambda wandb: wandb.init(project="p", name="outer"),
    "clearml": lambda clearml: clearml.Task.init(
        project_name="p", task_name="outer", task_type="training", reuse_last_task_id=False,
        auto_connect_frameworks=dict.fromkeys(CLEARML_CONNECTS, False), auto_connect_arg_parser=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("ends", [(), (crash_after(2),)], ids=["to its end", "in an error"])
def test_a_run_opened_outside_stays_open(store, tracker, tmp_path, ends):
    OPEN[tracker](sys.modules[tracker])
    with pytest.raises(Crash) if ends else nullcontext():
        train(config_of(tmp_path, tracker), handlers=ends)
    (run,) = store.runs.values()
    assert (run.name, run.ended, store.active) == ("outer", None, run)
    assert run.options["train.lr"] == "0.002"
    assert ends or "final/accuracy_test" in run.scores


@pytest.mark.parametrize("tracker", ["mlflow"], indirect=True)
@pytest.mark.parametrize("several", ["seeds", "arms"])
def test_mlflow_is_opened_before_several_processes(store, tracker, tmp_path, monkeypatch, several):
    def begin(*_, **__):
        assert store.ready
        raise Crash

    monkeypatch.setattr(runs, "runner", begin)
    config = config_of(tmp_path, tracker)
    with pytest.raises(Crash):
        if several == "seeds":
            seeds_and_folds.train_all(seeds_and_folds.of_seeds(config, 2), jobs=2)
        else:
            compare_arms(Request(config, (config, config.changed(train={"lr": 0.1}))))


def test_a_missing_package_is_one_line_with_the_remedy(tracker, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, tracker, None)
    words = ("--data", "digits", "--epochs", 1, "--output-dir", tmp_path, "--tracker", tracker)
    for more in ((), ("--dry-run",)):
        code, out, err = call(capsys, "train", *words, *more)
        assert (code, out, err.count("\n"), f"pip install {tracker}" in err) == (2, "", 1, True)
    assert not list(tmp_path.iterdir())


def test_a_run_whose_tracker_is_gone_is_not_taken_up(store, tracker, tmp_path, monkeypatch):
    with pytest.raises(Interrupted):
        train(config_of(tmp_path, tracker, save_every=1), handlers=[signal_in(2)])
    monkeypatch.setitem(sys.modules, tracker, None)
    with pytest.raises(OptionError, match=f"pip install {tracker}"):
        resume(tmp_path / "digits" / "r")
    assert read_json(tmp_path / "digits" / "r" / "summary.json")["status"] == "interrupted"


def test_no_tracker_is_imported_without_the_option(tmp_path, monkeypatch):
    for tracker in TRACKERS:
        monkeypatch.setitem(sys.modules, tracker, None)  # an import would fail
    assert train(config_of(tmp_path)).run_dir.is_dir()


def test_no_file_that_trains_imports_a_tracker_by_itself(tmp_path):
    for name in TRACKERS:
        (tmp_path / f"{name}.py").touch()
    program = "import sys, main, commands.train, comparison.compare, trainers.run, trainers.reporting.trackers\n"
    program += f"assert not {{*{TRACKERS}}} & sys.modules.keys()"
    paths = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=paths, check=True)


def test_rehearsal_and_second_process_send_nothing(store, tracker, tmp_path, monkeypatch):
    dry_run(config_of(tmp_path / "dry", tracker))
    monkeypatch.setattr(distributed, "is_main_process", lambda: False)
    with pytest.raises(Crash):
        train(config_of(tmp_path / "second", tracker), handlers=[crash_after(1)])
    assert store.runs == {}
