"""Runs in experiment trackers: what each is sent, by Ignite's own loggers on stand-ins of their packages."""

import os
import subprocess
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

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


class Store:
    """What a tracker holds: its runs, each with options, scores by name and step, and how it ended."""

    def __init__(self) -> None:
        self.runs: dict[str, SimpleNamespace] = {}
        self.active: SimpleNamespace | None = None
        self.broken = False
        self.ready = False
        """Whether one process has opened it, before others do."""

    def start(self, known=None, *, name=None, project=None):
        if self.broken:
            raise RuntimeError("no such server\nand a long story")
        number = known or f"run{len(self.runs)}"
        new = SimpleNamespace(id=number, name=name, project=project, options={}, scores={}, ended=None)
        self.active = self.runs.setdefault(number, new)
        return self.active

    def log(self, values, step):
        if self.broken:
            raise RuntimeError("no such server\nand a long story")
        for name, value in values.items():
            self.active.scores.setdefault(name.replace(" ", "/"), {})[step] = value

    def end(self, how):
        self.active.ended, self.active = how, None


def mlflow_for(store: Store) -> dict[str, ModuleType]:
    project = []
    mlflow, utils, validation = (ModuleType(name) for name in ("mlflow", "mlflow.utils", "mlflow.utils.validation"))

    def active_run():
        return store.active and SimpleNamespace(info=SimpleNamespace(run_id=store.active.id))

    def start_run(run_id=None, run_name=None):
        store.start(run_id, name=run_name, project=project[-1])
        return active_run()

    mlflow.MlflowClient = lambda: setattr(store, "ready", True)
    mlflow.active_run, mlflow.start_run, mlflow.set_experiment = active_run, start_run, project.append
    mlflow.log_params = lambda options: store.active.options.update(options)
    mlflow.log_metrics = lambda values, step: store.log(values, step)
    mlflow.end_run = lambda status="FINISHED": store.end(status == "FINISHED")
    validation.validate_param_and_metric_name = lambda name: True
    return {"mlflow": mlflow, "mlflow.utils": utils, "mlflow.utils.validation": validation}


def wandb_for(store: Store) -> dict[str, ModuleType]:
    wandb = ModuleType("wandb")

    def init(*, project, name, config=None, id=None, resume=None):
        assert (id is None) == (resume is None)
        wandb.run = store.start(id, name=name, project=project)
        wandb.config.update(config or {})

    def finish(exit_code=0):
        store.end(exit_code == 0)
        wandb.run = None

    wandb.run, wandb.init, wandb.log, wandb.finish = None, init, lambda values, step: store.log(values, step), finish
    wandb.config = SimpleNamespace(update=lambda values, **_: wandb.run.options.update(values))
    return {"wandb": wandb}


def clearml_for(store: Store) -> dict[str, ModuleType]:
    clearml, bind = ModuleType("clearml"), ModuleType("clearml.binding.frameworks.tensorflow_bind")
    between = {name: ModuleType(name) for name in ("clearml.binding", "clearml.binding.frameworks")}

    class Task:
        TaskTypes = SimpleNamespace(training="training")
        current_task = staticmethod(lambda: store.active and Task(store.active))

        def __init__(self, run):
            self.id, self.run = run.id, run

        @classmethod
        def init(cls, *, project_name, task_name, task_type, reuse_last_task_id, auto_connect_frameworks,
                 auto_connect_arg_parser, continue_last_task=False):  # fmt: skip
            connected = {name for name in CLEARML_CONNECTS if auto_connect_frameworks.get(name, True)}
            assert not auto_connect_frameworks or not connected
            assert not auto_connect_arg_parser
            assert reuse_last_task_id is False or (continue_last_task == 0 and continue_last_task is not False)
            return cls(store.start(reuse_last_task_id or None, name=task_name, project=project_name))

        def get_logger(self):
            report = lambda title, series, iteration, value: store.log({f"{title}/{series}": value}, iteration)  # noqa: E731
            return SimpleNamespace(report_scalar=report, flush=lambda: None)

        def connect(self, options):
            self.run.options.update(options)

        def mark_failed(self):
            store.end(False)

        def close(self):
            store.end(True)

    clearml.Task, bind.WeightsGradientHistHelper = Task, lambda logger, report_freq: None
    return {"clearml": clearml, **between, "clearml.binding.frameworks.tensorflow_bind": bind}


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


def test_a_run_and_what_goes_on_with_it_are_one_with_its_options_its_epochs_and_its_final_scores(
    store, tracker, tmp_path
):
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


def test_what_a_tracker_does_not_take_is_said_once_and_the_run_goes_on(store, tracker, tmp_path, capsys):
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
        auto_connect_frameworks={}, auto_connect_arg_parser=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("ends", [(), (crash_after(2),)], ids=["to its end", "in an error"])
def test_a_run_that_a_program_has_opened_gets_the_scores_and_stays_open(store, tracker, tmp_path, ends):
    OPEN[tracker](sys.modules[tracker])
    with pytest.raises(Crash) if ends else nullcontext():
        train(config_of(tmp_path, tracker), handlers=ends)
    (run,) = store.runs.values()
    assert (run.name, run.ended, store.active) == ("outer", None, run)
    assert run.options["train.lr"] == "0.002"
    assert ends or "final/accuracy_test" in run.scores


@pytest.mark.parametrize("several", ["seeds", "arms"])
def test_a_tracker_is_opened_once_before_several_processes_do(store, tracker, tmp_path, monkeypatch, several):
    def begin(*_, **__):
        assert store.ready == (tracker == "mlflow")
        raise Crash

    monkeypatch.setattr(runs, "runner", begin)
    config = config_of(tmp_path, tracker)
    with pytest.raises(Crash):
        if several == "seeds":
            seeds_and_folds.train_all(seeds_and_folds.of_seeds(config, 2), jobs=2)
        else:
            compare_arms(Request(config, (config, config.changed(train={"lr": 0.1}))))


def test_a_missing_package_is_one_line_that_says_what_to_install(tracker, tmp_path, monkeypatch, capsys):
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


def test_no_tracker_is_imported_without_the_option(tracker, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, tracker, None)  # an import would fail
    assert train(config_of(tmp_path)).run_dir.is_dir()


def test_no_file_that_trains_imports_a_tracker_by_itself(tmp_path):
    for name in TRACKERS:
        (tmp_path / f"{name}.py").touch()
    program = "import sys, main, commands.train, comparison.compare, trainers.run, trainers.reporting.trackers\n"
    program += f"assert not {{*{TRACKERS}}} & sys.modules.keys()"
    paths = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=paths, check=True)


def test_nothing_is_sent_without_the_option_by_a_rehearsal_or_by_the_second_process(
    store, tracker, tmp_path, monkeypatch
):
    train(config_of(tmp_path / "without"))
    dry_run(config_of(tmp_path / "dry", tracker))
    monkeypatch.setattr(distributed, "is_main_process", lambda: False)
    with pytest.raises(Crash):
        train(config_of(tmp_path / "second", tracker), handlers=[crash_after(1)])
    assert store.runs == {}
