"""What a start has seen: no image that weights or a teacher learnt from is scored as a test image without a word."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_run import call

from common.errors import DataError, WeightsError
from common.tables import read_rows
from datasets.config import DataConfig, words
from datasets.loaders import build_dataloaders
from datasets.split_csv import read_split
from inference.classifier import open_classifier
from inference.export import export
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.resume import resume
from trainers.run import train
from trainers.seen.hashes import NOTHING, SELECTED, TRAINED, Seen, from_text, from_tree, sorted_once, to_text, to_tree
from trainers.seen.starts import seen_by, starts_of
from trainers.storage.checkpoint_file import best_of, checkpoints, read_checkpoint
from trainers.storage.finished_run import load
from trainers.storage.run_folder import read_json
from vit import Blueprint, build_model
from vit.config import ModelConfig

CLASSES = ("a", "b")


def noise(folder: Path, seeds) -> None:
    """Pictures of noise, one for each seed: nothing can be learnt of one from another."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{seed}.png")


def noise_set(root: Path, **splits) -> Path:
    """`splits`: the seeds of the pictures of each; half of them in each class."""
    for split, seeds in splits.items():
        for number, name in enumerate(CLASSES):
            noise(root / split / name, [*seeds][number::2])
    return root


def options(folder: Path, source: Path, name: str, *, weights="none", data=None, **train_options) -> RunConfig:
    return RunConfig(
        model=ModelConfig(name="vit_micro_2", image_size=8, weights=str(weights)),
        data=DataConfig(**{"source": str(source), "workers": 0, "augment": "none", "batch_size": 32} | (data or {})),
        train=TrainConfig(**{"epochs": 1, "device": "cpu", "amp": "off", "threads": 1} | train_options),
        output=OutputConfig(output_dir=folder / "runs", run_name=name, tb="scalars"),
    )


A_TRAIN, A_VAL, A_TEST = range(0, 40), range(40, 52), range(52, 64)
NEW = 1_000
"""Seeds from here on are pictures that no start has seen."""


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("seen")


@pytest.fixture(scope="module")
def first(home) -> Path:
    """A run, from scratch, on pictures 0 to 39; 40 to 51 chose its epoch."""
    folder = noise_set(home / "first", train=A_TRAIN, val=A_VAL, test=A_TEST)
    return train(options(home, folder, "A")).run_dir


@pytest.fixture(scope="module")
def mixed(home) -> Path:
    """Of 20 test pictures three trained A and two chose its epoch; of 16 validation pictures two trained A and one
    chose its epoch."""
    return noise_set(
        home / "mixed",
        train=range(NEW, NEW + 16),
        val=[0, 1, 40, *range(NEW + 20, NEW + 33)],
        test=[2, 3, 4, 41, 42, *range(NEW + 40, NEW + 55)],
    )


def counts(run_dir: Path) -> dict[str, int]:
    """Of the summary, of seen.csv and of split.csv, which have to agree."""
    summary = read_json(run_dir / "summary.json")
    rows = read_rows(run_dir / "seen.csv", ("path", "split", "use", "by")) if (run_dir / "seen.csv").is_file() else []
    listed, seen = Counter(row["split"] for row in rows), summary["seen"]
    assert {split: seen[split] for split in ("val", "test")} == {split: listed[split] for split in ("val", "test")}
    assert read_json(run_dir / "meta.json")["seen"] == seen
    in_use = {row.path for row in read_split(run_dir / "split.csv")}
    assert seen["scored"] or not in_use & {row["path"] for row in rows}
    assert summary["test"]["n"] == sum(row.split == "test" for row in read_split(run_dir / "split.csv"))
    return {split: seen[split] for split in ("val", "test")}


SAME = {"val": 2, "test": 5}
"""What A has seen of `mixed`."""


def test_pictures_that_the_weights_were_trained_on_are_left_out_of_the_scores(home, first, mixed, capsys):
    result = train(options(home, mixed, "weights", weights=first))
    said = capsys.readouterr().out
    assert counts(result.run_dir) == SAME
    end = "left out of the scores; --allow-seen keeps them"
    val = f"2 of 16 val images were trained on by {first} (weights): {end}"
    test = f"5 of 20 test images were seen by {first} (weights), 3 in training and 2 in choosing its epoch: {end}"
    assert all(line in said for line in (val, test))
    summary = read_json(result.run_dir / "summary.json")
    assert summary["seen"]["said"] == [val, test]
    assert summary["test"]["n"] == 15
    assert val in (result.run_dir / "data_report.txt").read_text()


def test_allow_seen_scores_them_and_says_so_in_every_summary(home, first, mixed, capsys):
    result = train(options(home, mixed, "allowed", weights=first, data={"allow_seen": True}))
    assert counts(result.run_dir) == SAME
    summary = read_json(result.run_dir / "summary.json")
    assert (summary["test"]["n"], summary["seen"]["scored"]) == (20, True)
    line = "3 in training and 2 in choosing its epoch: scored all the same, as --allow-seen asks"
    assert any(line in said for said in summary["seen"]["said"])
    assert line in capsys.readouterr().out


def test_the_usual_fine_tuning_on_the_same_split_leaves_nothing_out_and_says_nothing(home, first, capsys):
    result = train(options(home, home / "first", "again", weights=first))
    assert counts(result.run_dir) == {"val": 0, "test": 0}
    said = capsys.readouterr().out
    assert "(weights)" not in said
    assert "--allow-seen" not in said
    assert not (result.run_dir / "seen.csv").exists()


def test_where_too_few_are_left_the_run_is_refused_with_the_ways_out(home, first, capsys):
    everything = noise_set(home / "everything", train=range(0, 0))
    shutil.copytree(home / "first" / "train", everything, dirs_exist_ok=True)
    shutil.rmtree(everything / "train")
    words = ["train", "--data", everything, "--model", "vit_micro_2", "--image-size", 8, "--weights", first]
    words += ["--epochs", 1, "--device", "cpu", "--output-dir", home / "runs", "--split-seed", 7]
    code, _, err = call(capsys, *words)
    assert (code, err.count("\n")) == (3, 1)
    assert "6 of 6 test images were trained on by" in err
    assert f"--split {first}/split.csv" in err
    assert "--allow-seen" in err
    assert not (home / "runs" / "everything").exists()
    code, out, err = call(capsys, *words, "--allow-seen")
    assert code == 0, err
    kept = "6 of 6 test images were trained on by"
    assert out.count(kept) == 2
    assert kept in out[out.index("same weights, scored once") :]


def test_one_more_generation_does_not_forget(home, first, mixed):
    other = noise_set(home / "other", train=range(2_000, 2_016), val=range(2_020, 2_028), test=range(2_030, 2_038))
    second = train(options(home, other, "B", weights=first)).run_dir
    third = train(options(home, noise_set(home / "more", train=range(3_000, 3_016), val=range(3_020, 3_028)), "C",
                          weights=second)).run_dir  # fmt: skip
    assert counts(train(options(home, mixed, "D", weights=third)).run_dir) == SAME


def test_a_teacher_has_seen_what_it_was_trained_on(home, first, mixed, capsys):
    data = {"root": home / "data"}
    result = train(options(home, mixed, "student", data=data, teacher=str(first), mixup=0.0, cutmix=0.0))
    assert counts(result.run_dir) == SAME
    assert f"were trained on by {first} (teacher)" in capsys.readouterr().out
    assert counts(train(options(home, mixed, "of_student", weights=result.run_dir)).run_dir) == SAME


@pytest.mark.slow
def test_a_teacher_that_is_an_onnx_file_has_seen_it_too(home, first, mixed, tmp_path):
    pytest.importorskip("onnxruntime")
    path = tmp_path / "teacher.onnx"
    export(open_classifier(str(first), device="cpu"), "onnx", path)
    run = options(
        home,
        mixed,
        "of_onnx",
        data={"root": tmp_path},
        teacher=str(path),
        teacher_target="logits",
        mixup=0.0,
        cutmix=0.0,
    )
    assert counts(train(run).run_dir) == SAME


def test_a_frozen_backbone_and_its_cached_features_are_scored_on_the_same_images(home, first, mixed):
    config = options(home, mixed, "probe", weights=first).changed(model={"trainable": "head"})
    result = train(config)
    assert result.run_dir.exists()
    assert read_json(result.run_dir / "config.json")["train"]["cache_features"] == "on"
    assert counts(result.run_dir) == SAME
    assert counts(train(options(home, mixed, "of_probe", weights=result.run_dir)).run_dir) == SAME


def test_a_checkpoint_copied_out_of_its_run_and_a_run_moved_elsewhere_say_it_too(home, first, mixed, tmp_path):
    copied = shutil.copy(best_of(first), tmp_path / "some_name.safetensors")
    assert counts(train(options(home, mixed, "of_file", weights=copied)).run_dir) == SAME
    shutil.copytree(first, tmp_path / "moved")
    (tmp_path / "moved" / "split.csv").unlink()
    assert counts(train(options(home, mixed, "of_moved", weights=tmp_path / "moved")).run_dir) == SAME
    newest = shutil.copy(checkpoints(first / "checkpoints", "step")[0], tmp_path / "newest.safetensors")
    assert counts(train(options(home, mixed, "of_step", weights=newest)).run_dir) == SAME


def test_an_export_has_seen_what_its_run_has(home, first, mixed, tmp_path):
    path = tmp_path / "exported.safetensors"
    export(open_classifier(str(first), device="cpu"), "safetensors", path)
    assert counts(train(options(home, mixed, "of_export", weights=path)).run_dir) == SAME
    again = tmp_path / "again.safetensors"
    export(open_classifier(str(path), device="cpu"), "safetensors", again)
    assert counts(train(options(home, mixed, "of_export_of_export", weights=again)).run_dir) == SAME


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["onnx", pytest.param("pt2", marks=pytest.mark.xfail(strict=True, reason="pt2 goes: Half the house, three"))],
)
def test_an_export_that_is_a_program_says_what_it_has_seen(first, mixed, tmp_path, capsys, kind):
    path = tmp_path / f"model.{kind}"
    export(open_classifier(str(first), device="cpu"), kind, path)
    code, out, err = call(capsys, "evaluate", path, "--data", mixed, "--split", "test", "--trust")
    assert code == 0, err
    assert "on 15 test images" in out
    assert "(5 images: 3 trained on, 2 used to choose its epoch; no test score)" in out


def test_folds_are_held_to_it_too(home, first, tmp_path):
    every = [*range(8), *range(NEW, NEW + 40)]
    pool = noise_set(tmp_path / "pool", train=every)
    for name in CLASSES:
        shutil.move(pool / "train" / name, pool / name)
    (pool / "train").rmdir()
    seen = Counter()
    for fold in (1, 2):
        data = {"folds": 2, "fold": fold}
        run = train(options(home, pool, f"fold{fold}", weights=first, data=data)).run_dir
        summary = read_json(run / "summary.json")
        seen["val"] += summary["seen"]["val"]
        test = summary["seen"]["test"]
    assert seen["val"] + test == 8


def test_a_split_of_ones_own_is_held_to_it_too(home, first, tmp_path, capsys):
    pool = noise_set(tmp_path / "pool", train=[*range(2), *range(NEW, NEW + 40)])
    paths = sorted(path.relative_to(pool).as_posix() for path in pool.rglob("*.png"))
    splits = [
        "test" if Path(path).stem in ("0", "1") else ("train", "val", "test")[i % 3] for i, path in enumerate(paths)
    ]
    lines = [f"{path},{Path(path).parent.name},{split}" for path, split in zip(paths, splits, strict=True)]
    (tmp_path / "own.csv").write_text("path,label,split\n" + "\n".join(lines) + "\n")
    run = train(options(home, pool, "own_split", weights=first, data={"split": tmp_path / "own.csv"})).run_dir
    assert counts(run) == {"val": 0, "test": 2}


def test_a_run_that_was_stopped_goes_on_with_the_same_images_left_out(home, first, mixed, capsys):
    run = train(options(home, mixed, "stopped", weights=first, epochs=2)).run_dir
    whole = read_json(run / "summary.json")
    again = train(options(home, mixed, "resumed", weights=first, epochs=1)).run_dir
    capsys.readouterr()
    result = resume(again, epochs=2)
    said = capsys.readouterr().out
    assert "5 of 20 test images were seen by" in said
    assert counts(again) == SAME
    assert result.test is not None
    assert read_json(again / "summary.json")["seen"] == whole["seen"]
    seen = [seen_by(read_checkpoint(best_of(folder)), folder) for folder in (run, again)]
    assert {place: keys.tolist() for place, keys in seen[0].keys.items()} == {
        place: keys.tolist() for place, keys in seen[1].keys.items()
    }


def test_other_images_under_a_run_that_has_lost_its_fingerprint_are_found_by_what_it_has_seen(home, tmp_path):
    pictures = noise_set(tmp_path / "own", train=range(16), val=range(20, 28), test=range(30, 38))
    run = train(options(home, pictures, "lost")).run_dir
    (run / "meta.json").unlink()
    resume(run, epochs=2)
    for name in CLASSES:  # the same names, other sides
        (pictures / "test" / name).rename(pictures / "away")
        (pictures / "train" / name).rename(pictures / "test" / name)
        (pictures / "away").rename(pictures / "train" / name)
    (run / "meta.json").unlink(missing_ok=True)
    with pytest.raises(DataError, match="16 of 16 test images are those that it was trained on"):
        resume(run, epochs=3)


def test_the_loaders_that_a_program_made_are_held_to_it_too(home, first, mixed):
    config = options(home, mixed, "from_python", weights=first)
    _, spec, _ = load(first)
    bundle = build_dataloaders(config.data, spec)
    result = train(config, dataloaders=bundle)
    assert counts(result.run_dir) == SAME
    assert bundle.dataset_sizes["test"] == 20


def test_a_module_that_a_program_opened_and_gives_to_a_run_is_held_to_it_too(home, first, mixed):
    model, spec, _ = load(first)
    result = train(options(home, mixed, "given_model"), model=model, spec=spec)
    assert counts(result.run_dir) == SAME
    fresh = build_model("vit_micro_2", num_classes=2, image_size=8, weights="none")
    trained = train(options(home, home / "first", "own_module"), model=fresh, spec=spec)
    assert counts(trained.run_dir) == {"val": 0, "test": 0}
    assert counts(train(options(home, mixed, "own_module_again"), model=fresh, spec=spec).run_dir) == SAME
    model = build_model("vit_micro_2", num_classes=2, image_size=8, weights=str(first))
    assert counts(train(options(home, mixed, "built_model"), model=model, spec=spec).run_dir) == SAME


def test_the_weights_that_come_with_the_application_say_nothing(tmp_path):
    config = options(tmp_path, tmp_path, "embedded").changed(model={"name": "vit_nano_8", "weights": "fashion_mnist"})
    blueprint = Blueprint(config.model)
    assert starts_of(config, blueprint) == ()
    assert starts_of(config, None, blueprint.build(num_classes=3)) == ()


def test_a_programs_own_images_have_no_hashes_and_that_is_said(home, first, capsys):
    parts = {
        split: torch.utils.data.TensorDataset(torch.rand(8, 3, 8, 8), torch.arange(8) % 2) for split in ("train", "val")
    }
    result = train(options(home, home / "first", "own_images", weights=first), dataloaders=parts)
    line = f"whether {first} (weights) has seen these images cannot be known: they are a program's own"
    assert line in read_json(result.run_dir / "summary.json")["seen"]["said"]
    assert line in capsys.readouterr().out


def test_hashes_of_another_kind_are_not_compared_and_that_is_said(home, first, mixed, monkeypatch, capsys):
    monkeypatch.setattr("datasets.identity.READ_UP_TO_FILES", 1)
    result = train(options(home, mixed, "large", weights=first))
    assert counts(result.run_dir) == {"val": 0, "test": 0}
    assert "cannot be known: it knows images by a content_hash, here they have a path_hash" in capsys.readouterr().out


def test_evaluate_scores_seen_and_unseen_images_apart(first, mixed, capsys):
    code, out, err = call(capsys, "evaluate", first, "--data", mixed, "--split", "test")
    assert code == 0, err
    assert "on 15 test images" in out
    assert "that it has not seen" in out
    assert "(15 images; 95 % interval" in out
    assert "(5 images: 3 trained on, 2 used to choose its epoch; no test score)" in out
    assert len(read_rows(first / "eval" / "mixed_test_predictions.csv", ("path",))) == 15
    assert len(read_rows(first / "eval" / "mixed_test_seen_predictions.csv", ("path",))) == 5


def test_evaluate_on_nothing_but_seen_images_is_no_test(home, first, capsys):
    code, out, err = call(capsys, "evaluate", first, "--data", home / "first", "--split", "train")
    assert code == 0, err
    assert "has seen all 40 train images" in out
    assert "no test score" in out
    assert "unseen" not in out


def test_evaluate_of_a_runs_own_test_images_is_what_training_logged(home, first, mixed, capsys):
    run = train(options(home, mixed, "scored_again", weights=first)).run_dir
    for split, size in (("test", 15), ("val", 14)):
        code, out, err = call(capsys, "evaluate", run, "--split", split)
        assert code == 0, err
        assert f"on {size} {split} images" in out
        assert out.count("as logged") == 1
        assert "note: 5 of 20 test images were seen by" in out
        assert "logged: 0" not in out


def arms_of(home: Path, mixed: Path, first: Path) -> list:
    return ["compare", "--data", mixed, "--arms", "vit_micro_2", f"vit_micro_2,weights={first}", "--image-size", 8,
            "--seeds", 2, "--images-seen", 16, "--tune-lr", "off", "--device", "cpu", "--workers", 0,
            "--augment", "none", "--output-dir", home / "compared", "--tb", "scalars", "--jobs", 1]  # fmt: skip


def test_all_arms_of_a_comparison_are_scored_on_what_none_of_their_starts_has_seen(home, first, mixed, capsys):
    code, out, err = call(capsys, *arms_of(home, mixed, first))
    assert code == 0, err
    assert "5 of 20 test images were seen by" in out
    assert "scored: 15 test images" in out
    report = next((home / "compared" / "mixed").glob("compare*/report.html")).read_text()
    assert "5 of 20 test images were seen by" in report
    runs = [*(home / "compared" / "mixed").glob("compare/*/*/s*")]
    assert len(runs) == 4
    assert {read_json(run / "summary.json")["test"]["n"] for run in runs} == {15}


def test_runs_with_different_starts_are_compared_on_what_no_start_has_seen(home, first, mixed, capsys):
    names = ["scratch0", "scratch1", "started0", "started1"]
    runs = [
        train(options(home, mixed, name, weights=first if "started" in name else "none", seed=int(name[-1]))).run_dir
        for name in names
    ]
    code, out, err = call(capsys, "compare", *runs, "--output-dir", home / "compared_runs")
    assert code == 0, err
    assert "5 images of 20 had been seen by what some of these runs started from: left out for all of them" in out
    assert "scored: 15 test images" in out


def test_rank_judges_backbones_on_what_none_of_them_was_trained_on(home, first, tmp_path, capsys):
    pool = noise_set(tmp_path / "pool", train=[*range(8), *range(NEW, NEW + 32)], val=range(NEW + 40, NEW + 48))
    words = ["rank", pool, "--models", first, "vit_micro_2,weights=none,image_size=8", "--shots", 1, "--device", "cpu"]
    words += ["--workers", 0, "--output-dir", home / "ranked"]
    code, out, err = call(capsys, *words)
    assert code == 0, err
    assert f"8 of 48 train and val images were trained on by {first} (weights): left out of the scores" in out
    assert "on 40 images of train and val" in out
    code, out, err = call(capsys, *words, "--allow-seen")
    assert code == 0, err
    assert "scored all the same" in out
    assert "on 48 images of train and val" in out


def test_the_commands_that_are_printed_hold_the_option(tmp_path):
    assert words(DataConfig("digits", allow_seen=True)) == ["--data", "digits", "--allow-seen"]


def test_clean_says_which_images_no_fold_could_judge(home, first, tmp_path, capsys):
    pool = noise_set(tmp_path / "pool", all=[*range(4), *range(NEW, NEW + 40)]) / "all"
    runs = [
        train(options(home, pool, f"k_fold{fold}", weights=first, data={"folds": 2, "fold": fold})).run_dir
        for fold in (1, 2)
    ]
    lost = sum(read_json(run / "summary.json")["seen"]["val"] for run in runs)
    lost += read_json(runs[0] / "summary.json")["seen"]["test"]
    assert lost == 4
    code, out, err = call(capsys, "clean", runs[0], "--output", tmp_path / "clean")
    assert code == 0, err
    assert "4 images had been seen by what these runs started from: not judged" in out


def test_a_million_images_take_eight_bytes_each():
    keys = sorted_once(np.random.default_rng(0).integers(0, 2**63, 1_000_000, np.uint64))
    tree = to_tree(Seen({("content_hash", TRAINED): keys}))
    assert sum(tensor.nbytes for tensor in tree.values() if isinstance(tensor, torch.Tensor)) == 8 * len(keys)


def test_records_add_up_and_come_back_from_files_as_they_were():
    one = Seen({("content_hash", TRAINED): np.array([1, 2**64 - 1], np.uint64)})
    two = Seen({("content_hash", TRAINED): np.array([2], np.uint64), ("path_hash", SELECTED): np.array([3], np.uint64)})
    both = one | two | NOTHING
    for back in (both, from_tree(to_tree(both), "file"), from_text(to_text(both), "file")):
        assert back.complete
        assert {place: keys.tolist() for place, keys in back.keys.items()} == {
            ("content_hash", TRAINED): [1, 2, 2**64 - 1], ("path_hash", SELECTED): [3],
        }  # fmt: skip
    assert not (both | Seen(complete=False)).complete


@pytest.mark.parametrize(
    "record",
    [None, 3, [], {}, {"complete": 1}, {"complete": True, "content_hash.trained": [1]},
     {"complete": True, "content_hash.trained": torch.zeros(2, 2, dtype=torch.int64)},
     {"complete": True, "content_hash.trained": torch.zeros(2)},
     {"complete": True, "other_hash.trained": torch.zeros(2, dtype=torch.int64)},
     {"complete": True, "content_hash.tested": torch.zeros(2, dtype=torch.int64)}],
)  # fmt: skip
def test_a_damaged_record_is_refused_in_one_line(record):
    with pytest.raises(WeightsError, match="file.* is damaged"):
        from_tree(record, "file")


@pytest.mark.parametrize(
    "text", ["", "3", "[]", "{", '{"complete": true, "content_hash.trained": "AAA"}', "[" * 100_000,
             '{"complete": true, "content_hash.trained": 7}', '{"complete": true, "content_hash.trained": "AAAAAAA="}'],
)  # fmt: skip
def test_a_damaged_record_of_an_export_is_refused_in_one_line(text):
    with pytest.raises(WeightsError, match="file is damaged"):
        from_text(text, "file")


@pytest.mark.parametrize("content", ["", "nothing\n", "path,split\na,val\n", "\0\0", '"'])
def test_a_damaged_list_of_seen_images_is_named_in_one_line(home, first, mixed, tmp_path, capsys, content):
    run = shutil.copytree(train(options(home, mixed, f"list{len(content)}", weights=first)).run_dir, tmp_path / "run")
    (run / "seen.csv").write_text(content)
    code, _, err = call(capsys, "evaluate", run)
    assert (code, err.count("\n")) == (3, 1)
    assert "seen.csv" in err
