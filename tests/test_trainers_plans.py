"""The plan of `--minutes`: its laws hold exactly, whatever the machine; only the measured pace is the machine's."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import sys
import time
from types import SimpleNamespace

import pytest
from ignite.engine import Events
from killed_runs import TIMING_FIELDS, Crash, crash, signal_in
from small_run import few_digits

import main
import trainers.run
from common.errors import Interrupted, OptionError
from datasets.config import DataConfig
from datasets.opened import OpenedImages
from datasets.sampling import batch_sampler
from datasets.transforms import Pipeline
from trainers.budget import fine_tuning, pace
from trainers.budget import plan as planning
from trainers.budget.candidates import Candidate, fine_tuned, from_scratch
from trainers.budget.deadline import Deadline, DeadlineHandler
from trainers.budget.fine_tuning import choose
from trainers.budget.local_weights import Ranked
from trainers.budget.pace import Pace, forecast, measure
from trainers.budget.plan import planned, without_luck
from trainers.config import OutputConfig, RunConfig, TrainConfig, from_dict, load_config, to_dict
from trainers.options.recipes import filled_in
from trainers.resume import resume
from trainers.run import train
from trainers.setup import head_of, prepare
from trainers.storage.checkpoint_file import checkpoints, read_checkpoint
from trainers.storage.run_folder import read_json
from vit.config import ModelConfig

SECONDS = [1, 5, 20, 60, 120, 300, 900, 3600, 36_000]
PACES = [
    Pace(step=0.05 * cost, steps_per_epoch=steps, validation=0.3 * cost, decoding=2.0, conclusion=1.0)
    for cost in (1, 3, 9)
    for steps in (1, 4, 700)
]
CANDIDATES = list(from_scratch(300))


def plan_in(seconds: float, steps: int):
    paces = [pace for pace in PACES if pace.steps_per_epoch == steps]
    return choose(CANDIDATES, [pace.epochs(seconds) for pace in paces]), paces


@pytest.mark.parametrize("pace", PACES)
def test_a_run_is_never_longer_than_its_time_and_more_time_never_gives_fewer_epochs(pace):
    epochs = [pace.epochs(seconds) for seconds in SECONDS]
    assert epochs == sorted(epochs)
    for seconds, fitting in zip(SECONDS, epochs, strict=True):
        one_step = 1 / pace.steps_per_epoch
        assert fitting >= one_step
        assert fitting == one_step or pace.seconds(fitting) == pytest.approx(seconds)


@pytest.mark.parametrize("steps", [1, 4, 700])
def test_a_plan_keeps_to_the_time_and_more_time_never_chooses_a_smaller_model(steps):
    chosen = []
    for seconds in SECONDS:
        plan, paces = plan_in(seconds, steps)
        chosen.append(CANDIDATES.index(plan.candidate))
        pace = paces[chosen[-1]]
        assert plan.epochs <= max(pace.epochs(seconds), 0.01)
        assert plan.epochs == 0.01 or plan.epochs > 0.94 * pace.epochs(seconds) - 0.01
        assert plan.epochs >= plan.candidate.wants or chosen[-1] == 0
    assert chosen == sorted(chosen)
    assert (chosen[0], chosen[-1]) == (0, len(CANDIDATES) - 1)


def test_a_step_on_cached_features_takes_what_the_head_takes_on_this_machine(tmp_path, monkeypatch):
    """It was three thousandths of a second, wherever it ran. The clock here is one that only the head moves."""
    now = [0.0]
    monkeypatch.setattr(pace, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    config = RunConfig(
        model=ModelConfig(name="vit_micro_4", weights="none", trainable="head"),
        data=few_digits(),
        train=TrainConfig(epochs=1, device="cpu", cache_features="on"),
        output=OutputConfig(output_dir=tmp_path),
    )
    setup = prepare(config)
    hook = head_of(setup.model).register_forward_hook(lambda *_: now.__setitem__(0, now[0] + 0.25))
    slow = measure(setup, seconds=0.2)
    hook.remove()
    assert slow.step == 0.25
    batches = setup.data.dataset_sizes["val"] / batch_sampler(setup.data.dataloaders["val"]).batch_size
    assert slow.validation == 0.25 * batches


def test_a_plan_says_what_the_next_larger_would_cost():
    few, many = Candidate("small", {}), Candidate("large", {}, wants=10)
    assert choose([few, many], [40, 6.04]).reasons == (
        "train small for 40 epochs, all there is time for",
        "large needs 10 epochs, and there is time for 6.04",
    )
    assert choose([few, many], [40, 11]).reasons == ("train large for 11 epochs, all there is time for",)
    assert choose([few], [33.7]).epochs == 33
    assert choose([few], [3.456]).epochs == 3.45


@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda candidate: candidate.name)
def test_a_candidate_fills_in_what_is_open_and_nothing_else(candidate):
    config = RunConfig(data=DataConfig(augment="strong"), train=TrainConfig(lr=1e-4, seed=3))
    filled = filled_in(config, candidate.options)
    assert (filled.data.augment, filled.train.lr, filled.train.seed) == ("strong", 1e-4, 3)
    assert (filled.model.name, filled.train.epochs) == ("vit_nano_8", None)
    assert filled == filled_in(filled, candidate.options)
    everything: RunConfig = from_dict(RunConfig, candidate.options)
    assert filled_in(everything, CANDIDATES[0].options).model == everything.model


def test_an_input_is_not_much_larger_than_the_images():
    assert [candidate.name for candidate in from_scratch(8)] == ["vit_micro_2"]
    assert list(from_scratch(28)) == CANDIDATES[:2]


@pytest.mark.parametrize(("best", "favoured"), [("a", True), ("b", False)])
def test_a_second_run_is_favoured_with_the_weights_of_the_first(monkeypatch, best, favoured):
    rows = [Ranked(name, {"model": {"name": "vit_nano_8"}}, 0.8, 0.7, 0.9, 0.2, 0, 1) for name in {best: 0, "a": 0}]
    rows[0].options["model"]["name"] = "vit_nano_8" if best == "a" else "efficientnet_lite0"
    monkeypatch.setattr(planning, "rank", lambda config, seconds, sample, images: rows)
    monkeypatch.setattr(planning, "probe_of", lambda config, options: config)
    monkeypatch.setattr(planning, "plan_fine_tuning", lambda *options, least: planning.PlannedRun(options[0]))
    until = time.monotonic() + 300
    config = RunConfig(train=TrainConfig(threads=1, device="cpu"))
    probe, trained = planned(config, minutes=5, until=until, one_network=True)
    assert (probe.favoured, trained.favoured) == (False, favoured)


def test_where_no_pretrained_network_is_there_the_plan_says_that_it_does_without(monkeypatch, capsys):
    monkeypatch.setattr(planning, "local_pretrained_models", lambda: iter(()))
    monkeypatch.setattr("trainers.budget.local_weights.local_pretrained_models", lambda: iter(()))
    monkeypatch.setattr(planning, "plan_fine_tuning", lambda *options: planning.PlannedRun(options[0]))
    config = RunConfig(data=DataConfig(source="digits"), train=TrainConfig(threads=1, device="cpu"))
    [run] = planned(config, minutes=5, until=time.monotonic() + 300)
    assert run.config.model.weights is None
    assert "random weights" in capsys.readouterr().out


def test_the_head_of_a_probe_is_fitted_as_in_the_ranking():
    config = planning.probe_of(
        RunConfig(), {"model": {"name": "vit_stem_16", "trainable": "head"}, "train": {"lr": 1e-3}}
    )
    assert (config.train.start_head, config.train.lr, config.data.augment) == ("fit", 1e-3, "none")
    assert planning.probe_of(RunConfig(train=TrainConfig(start_head="plain")), {}).train.start_head == "plain"


@pytest.mark.parametrize(("minutes", "kept"), [(1, "frozen"), (0.1, "trained")])
def test_where_there_is_time_for_neither_a_probe_nor_a_pass_the_probe_is_kept(monkeypatch, minutes, kept):
    """The probe would take 38 s, a pass 1,000."""
    monkeypatch.setattr(planning, "rank", lambda *options, **more: [ranked("vit_nano_8", "fashion_mnist", 0.6, 30.0)])
    monkeypatch.setattr(planning, "probe_first", lambda *options: None)
    paced = Pace(step=10.0, steps_per_epoch=100, validation=0.0, decoding=0.0, conclusion=0.0)
    monkeypatch.setattr(fine_tuning, "measure", lambda setup: paced)
    config = RunConfig(data=DataConfig(source="digits"), train=TrainConfig(threads=1, device="cpu"))
    [run] = planned(config, minutes=minutes, until=time.monotonic() + 60 * minutes, one_network=True)
    assert run.config.model.trainable == ("head" if kept == "frozen" else "all")
    assert (not run.handlers) == (kept == "frozen")


def test_what_a_loader_imports_once_does_not_count_as_reading(monkeypatch):
    """A second for torchvision, taken for 64 images, became 95 s for 5,000: a plan of five minutes had one step."""
    clock = [0.0]
    monkeypatch.setattr(pace.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(Pipeline, "get_ready", lambda self: clock.__setitem__(0, clock[0] + 100))
    data = DataConfig(labels_per_class=10, workers=0)
    setup = prepare(RunConfig(ModelConfig(name="vit_micro_2"), data, TrainConfig(epochs=1, device="cpu")))
    seconds, batches = pace.read(setup.data.dataloaders["train"])
    assert (seconds, clock[0]) == (0, 100)
    assert len(batches) == setup.steps_per_epoch


def test_measuring_leaves_the_job_as_it_is():
    """Batch norms count the batches that pass through them, so the steps are those of a copy."""
    config = RunConfig(
        model=ModelConfig(name="vit_stem_16", image_size=16),
        data=DataConfig(labels_per_class=10, workers=0),
        train=TrainConfig(epochs=1, device="cpu"),
    )
    setup = prepare(config)
    before = {name: value.clone() for name, value in setup.model.state_dict().items()}
    pace = measure(setup, seconds=0.01)
    assert all(value.equal(before[name]) for name, value in setup.model.state_dict().items())
    assert all(parameter.grad is None for parameter in setup.model.parameters())
    assert setup.model.training
    assert setup.optimizer.state_dict()["state"] == {}
    assert pace.steps_per_epoch == setup.steps_per_epoch
    assert min(pace.step, pace.validation, pace.conclusion) > 0 <= pace.decoding


def test_the_seconds_of_compiling_are_part_of_a_run(tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr("torch.compile", lambda module, **_: compiled.append(module) or module)
    monkeypatch.setattr("trainers.options.defaults.require_compiler", lambda device: None)
    options = {"device": "cpu", "amp": "off", "epochs": 1, "compile": True}
    setup = prepare(RunConfig(data=few_digits(labels_per_class=5), train=TrainConfig(**options)))
    pace = measure(setup, seconds=0.01)
    assert compiled
    assert pace.compiling > 0
    assert pace.fixed == pytest.approx(dataclasses.replace(pace, compiling=0.0).fixed + pace.compiling)


@pytest.mark.parametrize(("operations", "forward", "measured"), [(1e12, 60, 0), (1e13, 10, 0), (1e13, 20, 1)])
def test_the_pace_of_a_run_that_is_soon_over_is_not_measured(monkeypatch, operations, forward, measured):
    """Two epochs of hymenoptera, 45 s in all, began with 4 s of processor time for it, and said nothing then."""
    setup = prepare(
        RunConfig(ModelConfig(name="vit_micro_2"), DataConfig(workers=0), TrainConfig(epochs=1, device="cpu"))
    )
    paces = []
    monkeypatch.setattr(pace, "operations", lambda setup: operations)
    monkeypatch.setattr(pace, "seconds_of_forward", lambda setup, images: forward)
    monkeypatch.setattr(pace, "measure", lambda setup: paces.append(setup) or PACES[0])
    pace.say_forecast(setup)
    assert len(paces) == measured


@pytest.mark.parametrize(
    ("step", "epochs", "device", "said"),
    [
        (0.001, 100, "cpu", []),  # a moment: not worth a word
        (0.1, 10, "cpu", ["time  about 3 min: a step takes 0.1 s, an epoch 14 s with its validation"]),
        (0.1, 1000, "cuda", ["time  about 3.9 h: a step takes 0.1 s, an epoch 14 s with its validation"]),
        (0.1, 1000, "cpu", ["time  about 3.9 h: a step", "for a result sooner: the same command with --minutes 5, or"]),
    ],
)
def test_a_run_says_before_its_first_step_how_long_it_takes_and_what_is_there_sooner(step, epochs, device, said):
    pace = Pace(step=step, steps_per_epoch=100, validation=40 * step, decoding=20.0, conclusion=4.0)
    lines = list(forecast(pace, epochs, device=device))
    assert len(lines) == len(said)
    assert all(line.strip().startswith(start) for line, start in zip(lines, said, strict=True))


def ranked(name, weights, accuracy, seconds=1.0):
    options = {"model": {"name": name, "weights": weights, "trainable": "head"}}
    low, high = accuracy - 0.02, accuracy + 0.02
    return Ranked(f"{name} ({weights})", options, accuracy, low, high, 1 - accuracy, seconds, images=1_000)


@pytest.mark.parametrize(
    ("imagenet", "small", "trained"),
    [(0.95, 0.80, False), (0.75, 0.60, True), (None, 0.41, True), (0.99, 0.985, False), (None, 0.985, False)],
)
def test_the_small_vit_is_trained_where_it_may_beat_the_best_probe(imagenet, small, trained):
    rows = [ranked("vit_stem_16", "tiny_imagenet", small)]
    if imagenet is not None:
        rows = [ranked("efficientnet_lite0", "imagenet", imagenet), *rows]
    candidates = fine_tuned(rows, images=95, side=64)
    assert [candidate.weights for candidate in candidates] == [rows[-1].name] * trained
    for candidate in candidates:
        assert choose([candidate], [1000]).epochs == candidate.most


@pytest.mark.parametrize(
    ("train", "seconds", "small", "probe"),
    [
        (4_000, 300, 0.6, "imagenet"),  # 1,000 images took 6 s, so all 6,000 take 36: 12 % of 300
        (4_000, 299, 0.6, "tiny_imagenet"),
        (4_000, 49, 0.6, None),
        (1_000, 100, 0.6, "imagenet"),  # the features of the look are used again, of the other 2,000 they take 12 s
        (4_000, 50, 0.2, "imagenet"),  # nothing is to be trained after it
        (4_000, 30, 0.2, "tiny_imagenet"),
        (4_000, 0, 0.2, "tiny_imagenet"),  # there must be a model
    ],
)
def test_a_probe_leaves_its_time_to_what_is_trained_after_it(train, seconds, small, probe):
    """With 4,500 images of CIFAR-10 the features of EfficientNet took 81 of 300 s: 76.5 % came out, without it 79.5."""
    rows = [ranked("efficientnet_lite0", "imagenet", 0.75, 6.0), ranked("vit_stem_16", "tiny_imagenet", small, 1.0)]
    candidates = fine_tuned(rows, images=train, side=32)
    assert bool(candidates) == (small == 0.6)
    chosen = planning.probe_first(rows, candidates, {"train": train, "val": 1_000, "test": 1_000}, seconds)
    assert chosen == next((row for row in rows if probe and probe in row.name.split("(")[1]), None)


@pytest.mark.parametrize(("images", "trained"), [(200, "vit_nano_8"), (2_000, "vit_stem_16")])
def test_of_many_images_the_larger_vit_learns_more(images, trained):
    rows = [ranked("vit_nano_8", "fashion_mnist", 0.6), ranked("vit_stem_16", "tiny_imagenet", 0.55)]
    assert {candidate.options["model"]["name"] for candidate in fine_tuned(rows, images=images, side=64)} == {trained}


@pytest.mark.parametrize(
    ("images", "side", "passes", "size"),
    [(95, 300, 30, 128), (95, 300, 15, None), (95, 64, 300, None), (4_500, 300, 300, None)],
)
def test_few_photographs_are_fine_tuned_larger_where_there_is_time(images, side, passes, size):
    candidates = fine_tuned([ranked("vit_stem_16", "tiny_imagenet", 0.6)], images=images, side=side)
    chosen = choose(candidates, [100, passes][: len(candidates)]).candidate
    assert filled_in(RunConfig(), chosen.options).model.image_size == size


@pytest.mark.parametrize(("passes", "mixed"), [(9.0, False), (11.0, True)])
def test_fine_tuning_mixes_many_images_that_it_sees_often(passes, mixed):
    candidates = fine_tuned([ranked("vit_stem_16", "tiny_imagenet", 0.6)], images=4_500, side=300)
    plan = choose(candidates, [passes] * len(candidates))
    config = filled_in(RunConfig(), plan.candidate.options)
    assert (config.train.mixup, config.train.cutmix) == ((0.8, 1.0) if mixed else (None, None))
    assert filled_in(RunConfig(train=TrainConfig(mixup=0.1)), plan.candidate.options).train.mixup == 0.1


@pytest.mark.parametrize(("seconds", "runs"), [(0.5, 0), (60.0, 1), (0.0, 0)])
def test_after_a_probe_nothing_is_trained_in_no_time(monkeypatch, capsys, seconds, runs):
    config = RunConfig(data=DataConfig(labels_per_class=20), train=TrainConfig(threads=1, device="cpu"))
    paced = Pace(step=0.1, steps_per_epoch=100, validation=0.0, decoding=0.0, conclusion=0.0)
    monkeypatch.setattr(fine_tuning, "measure", lambda setup: paced)
    until = time.monotonic() + seconds
    found = fine_tuning.plan_fine_tuning(config, CANDIDATES[:1], until, OpenedImages(), least=fine_tuning.LEAST_STEPS)
    assert (found is not None) == bool(runs)
    assert ("no time is left to train more" in capsys.readouterr().out) == (not runs)
    alone = fine_tuning.plan_fine_tuning(config, CANDIDATES[:1], until, OpenedImages())
    assert alone is not None  # without a probe there must be a model


@pytest.mark.parametrize(("epochs", "runs"), [(0.99, 0), (1.0, 1)])
def test_one_pass_over_the_images_is_just_enough(monkeypatch, epochs, runs):
    config = RunConfig(data=DataConfig(labels_per_class=20), train=TrainConfig(threads=1, device="cpu"))
    paced = Pace(step=0.25, steps_per_epoch=64, validation=0.0, decoding=0.0, conclusion=0.0)
    monkeypatch.setattr(fine_tuning, "measure", lambda setup: paced)
    monkeypatch.setattr(fine_tuning, "time", SimpleNamespace(monotonic=lambda: 0.0))
    until = paced.seconds(epochs)
    found = fine_tuning.plan_fine_tuning(config, CANDIDATES[:1], until, OpenedImages(), least=fine_tuning.LEAST_STEPS)
    assert (found is not None) == bool(runs)


@pytest.mark.parametrize(
    ("train", "kept"),
    [({}, "last"), ({"select": "loss"}, "loss"), ({"patience": 3}, "auto"), ({"schedule": "constant"}, "auto")],
)
def test_a_plan_keeps_the_last_epoch_unless_a_person_chose_otherwise(train, kept):
    assert without_luck(RunConfig(train=TrainConfig(**train))).train.select == kept


def test_minutes_and_epochs_contradict_each_other(monkeypatch):
    config = RunConfig(train=TrainConfig(epochs=3))
    with pytest.raises(OptionError, match="leave out --epochs 3, or --minutes"):
        next(planned(config, minutes=5, until=0.0))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(OptionError, match="with torchrun give --epochs"):
        next(planned(dataclasses.replace(config, train=TrainConfig()), minutes=5, until=0.0))


def run_with_deadline(folder, schedule, seconds_of, most=math.inf, epochs=6, handlers=()):
    """A run planned for 6 epochs of 4 steps and 24 seconds, on a clock by which step i takes `seconds_of(i)`."""
    config = RunConfig(
        model=ModelConfig(name="vit_micro_2"),
        data=DataConfig(labels_per_class=4, batch_size=10, workers=0),
        train=TrainConfig(epochs=epochs, schedule=schedule, warmup_epochs=0.5, device="cpu"),
        output=OutputConfig(output_dir=folder, run_name="planned", tb="scalars"),
    )
    clock = [0.0]
    pace = Pace(step=1.0, steps_per_epoch=4, validation=0.0, decoding=0.0, conclusion=0.0)
    deadline = Deadline(24.0 + seconds_of(1) * pace.ending, pace, clock=lambda: clock[0], most=most)

    def tick(trainer):
        @trainer.on(Events.ITERATION_STARTED)
        def step(engine):
            clock[0] += seconds_of(engine.state.iteration)

    return train(
        config, handlers=[lambda trainer: DeadlineHandler(trainer.state.run, deadline), tick, *handlers]
    ), clock


@pytest.mark.parametrize(
    ("schedule", "seconds"),
    [("cooldown", 2.0), ("cosine", 3.0), pytest.param("cooldown", 0.6, marks=pytest.mark.slow)],
)
def test_a_planned_run_ends_in_time_whatever_the_pace_and_repeats_from_its_config(tmp_path, schedule, seconds):
    result, clock = run_with_deadline(tmp_path, schedule, lambda step: seconds)
    assert clock[0] == pytest.approx(24, abs=2 * seconds)
    written = load_config(result.run_dir / "config.json")
    assert written.train.epochs == result.epochs[-1]["step"] / 4
    assert read_json(result.run_dir / "summary.json")["planned_epochs"] == written.train.epochs
    output = OutputConfig(output_dir=tmp_path, run_name="again", tb="scalars")
    again = train(dataclasses.replace(written, output=output))
    assert read_metrics(again.run_dir) == read_metrics(result.run_dir)
    assert read_checkpoint(checkpoints(result.run_dir / "checkpoints", "step")[0])["config"] == to_dict(written)


def test_a_short_run_that_turns_out_much_quicker_than_planned_does_not_end_where_it_was_planned_to(tmp_path, capsys):
    """Its end was moved at the very step at which a fraction of an epoch ends, when Ignite had been told to stop."""
    result, clock = run_with_deadline(tmp_path, "cooldown", lambda step: 0.6, epochs=5.75)
    assert clock[0] == pytest.approx(24, abs=1.2)
    assert result.epochs[-1]["step"] > 1.4 * 23
    assert "a handler of your own" not in capsys.readouterr().out


def test_a_run_that_turns_out_quicker_than_planned_takes_no_more_than_the_epochs_that_help(tmp_path):
    result, _ = run_with_deadline(tmp_path, "cooldown", lambda step: 0.6, most=7)
    assert load_config(result.run_dir / "config.json").train.epochs == 7.25  # the fall begins at a whole step


def test_a_run_on_a_machine_that_becomes_slower_after_the_fit_stops_in_time_and_says_so(tmp_path, capsys):
    result, clock = run_with_deadline(tmp_path, "cooldown", lambda step: 1.0 if step <= 17 else 2.0)
    assert 24 <= clock[0] <= 24 * 1.1 + 2.0  # one step more, at most
    why = "the machine has become slower: stopped after 5.5 epochs, to end in time"
    out = capsys.readouterr().out
    assert (out.count(why), "a handler of your own" in out) == (1, False)
    assert read_json(result.run_dir / "summary.json")["stopped"] == why


def test_a_planned_run_repeats_from_its_config_to_the_bit(tmp_path, capsys):
    words = ["train", "--labels-per-class", "10", "--device", "cpu", "--tb", "scalars", "--workers", "0"]
    words += ["--output-dir", str(tmp_path), "--val-fraction", "0.03", "--test-fraction", "0.03"]
    assert main.main([*words, "--minutes", "0.001", "--run-name", "planned"]) == 0
    assert "plan  0.001 minutes for 100 training images" in capsys.readouterr().out
    config = tmp_path / "digits" / "planned" / "config.json"
    assert read_json(config)["train"]["epochs"] <= 1
    assert main.main(["train", "--config", str(config), "--run-name", "again"]) == 0
    one, other = (read_metrics(tmp_path / "digits" / name) for name in ("planned", "again"))
    assert one == other


@pytest.mark.slow
def test_auto_resume_takes_up_a_planned_run_with_its_plan_but_not_that_of_another_time(tmp_path, monkeypatch):
    words = ["train", "--model", "vit_micro_2", "--labels-per-class", "10", "--device", "cpu", "--threads", "1"]
    words += ["--tb", "scalars", "--workers", "0", "--output-dir", str(tmp_path), "--minutes"]
    paces = iter([10.0, 5.0, 20.0])
    monkeypatch.setattr(fine_tuning, "measure", lambda setup: Pace(next(paces), setup.steps_per_epoch, 0.0, 0.0, 0.0))
    monkeypatch.setattr(fine_tuning, "DeadlineHandler", lambda run, deadline: None)

    def start(*more):
        monkeypatch.setattr(sys, "argv", ["main.py", *words, *more])
        code = main.main(sys.argv[1:])
        return code, {path.parent.name: read_json(path) for path in tmp_path.glob("digits/*/config.json")}

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(trainers.run, "conclude", lambda run: crash())
        start("1")
    code, configs = start("1", "--auto-resume")
    (run_dir,) = tmp_path.glob("digits/*/summary.json")
    assert (code, read_json(run_dir)["status"]) == (0, "finished")
    assert [config["train"]["epochs"] for config in configs.values()] == [pytest.approx(3, abs=1)]
    code, configs = start("2", "--auto-resume")
    assert (code, len(configs)) == (0, 2)


def test_a_planned_run_that_is_taken_up_keeps_its_deadline(tmp_path, monkeypatch):
    (tmp_path / "meta.json").write_text(json.dumps({"requested": to_dict(RunConfig())}))
    monkeypatch.setattr(fine_tuning, "find_same_options", lambda config, planned: tmp_path)
    monkeypatch.setattr(fine_tuning, "trial", lambda *options: None)
    monkeypatch.setattr(fine_tuning, "measure", lambda setup: PACES[0])
    run = fine_tuning.plan_fine_tuning(RunConfig(), CANDIDATES, time.monotonic() + 300, OpenedImages())
    assert run.handlers


@pytest.mark.parametrize("killed_at", [9, 20])  # before and after its end is fixed
def test_a_planned_run_that_was_stopped_ends_in_time_when_it_goes_on(tmp_path, killed_at):
    """It had no deadline then."""
    with pytest.raises(Interrupted):
        run_with_deadline(tmp_path, "cooldown", lambda step: 1.0, handlers=[signal_in(killed_at)])
    clock = [0.0]
    pace = Pace(step=1.0, steps_per_epoch=4, validation=0.0, decoding=0.0, conclusion=0.0)

    def tick(trainer):
        trainer.add_event_handler(Events.ITERATION_STARTED, lambda: clock.__setitem__(0, clock[0] + 3.0))

    deadline = Deadline(6.0 + pace.ending, pace, clock=lambda: clock[0])
    run_dir = tmp_path / "digits" / "planned"
    result = resume(run_dir, handlers=[lambda trainer: DeadlineHandler(trainer.state.run, deadline), tick])
    assert clock[0] <= 12.0
    assert result.epochs[-1]["step"] < 24


def read_metrics(run_dir):
    with (run_dir / "metrics.csv").open() as file:
        return [{name: row[name] for name in row if name not in TIMING_FIELDS} for row in csv.DictReader(file)]


def test_a_planned_run_on_a_machine_too_slow_for_its_warm_up_ends_in_time(tmp_path):
    """It ended in a traceback: a warm-up of 2 steps leaves nothing of a run of 2 steps."""
    result, _ = run_with_deadline(tmp_path, "cooldown", lambda step: 20.0)
    assert result.epochs[-1]["step"] == 2
    written = load_config(result.run_dir / "config.json")
    assert written.train.epochs == 0.75  # a step more than the warm-up, whose rates are then those of the plan
