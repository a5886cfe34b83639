"""What an error advises is typed, and gets further: the same command with the options that its line names."""

import re

import pytest
from small_run import call, labelled_photos, make_run, photo, tiny_run

from trainers.run import train


class Further(BaseException):
    """The command would now take its first step."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("advice")
    train(tiny_run(folder / "runs").changed(train={"epochs": 1}))
    make_run(folder / "foreign")
    labelled_photos(folder / "photos", n=12)
    labelled_photos(folder / "few", n=2)
    photo(folder / "a.png")
    for name, line in {
        "mixup": "train.mixup = 0.2", "fold": "folds = 3\nfold = 1", "on": 'cache-features = "on"\ntrainable = "head"',
        "unmixed": 'cache-features = "on"\ntrainable = "head"\nmixup = 0\ncutmix = 0', "mixed":
        'cache-features = "on"\ntrainable = "head"\nmixup = 0.2', "off": 'cache-features = "off"\ntrainable = "head"',
    }.items():  # fmt: skip
        (folder / f"{name}.toml").write_text(f"{line}\n")
    return folder


OPEN = "train digits --device cpu "
TRAIN = OPEN + "--model vit_micro_2 --epochs 1 "
EXPLAIN = "explain {folder}/runs/digits/r {folder}/a.png "
TO_PHOTOS = "train {folder}/photos --epochs 1 --output-dir "
ADVICE = [
    (TRAIN + "--dry-run --find-lr", TRAIN + "--dry-run"),
    (TRAIN + "--dry-run --seeds 2", TRAIN + "--dry-run"),
    (TRAIN + "--find-lr --folds 3", TRAIN + "--find-lr"),
    ("train {folder}/photos --find-lr", "train {folder}/photos --find-lr --model vit_nano_8"),
    ("train {folder}/photos --find-lr", "train {folder}/photos --find-lr --epochs 1"),
    (TRAIN + "--find-lr --minutes 1", TRAIN + "--find-lr"),
    (OPEN + "--minutes 1 --epochs 3", OPEN + "--minutes 1"),
    (OPEN + "--minutes 1 --folds 3", OPEN + "--epochs 1 --folds 3"),
    (OPEN + "--minutes 1 --folds 3", OPEN + "--minutes 1 --config {folder}/fold.toml"),
    (OPEN + "--minutes 1 --seeds 2", OPEN + "--epochs 1 --seeds 2"),
    (OPEN + "--weights auto --lr 0.5", OPEN + "--weights auto"),
    (OPEN + "--weights auto --model vit_nano_8", OPEN + "--weights auto"),
    (TRAIN + "--jobs 2", TRAIN + "--jobs 2 --seeds 2"),
    (TRAIN + "--jobs 2", TRAIN + "--jobs 2 --folds 3"),
    (TRAIN + "--mixup 0.2", TRAIN + "--config {folder}/mixup.toml"),
    (TRAIN + "--augment light --config {folder}/on.toml", TRAIN + "--augment none --config {folder}/on.toml"),
    (TRAIN + "--augment none --config {folder}/mixed.toml", TRAIN + "--augment none --config {folder}/unmixed.toml"),
    (TRAIN + "--select last --patience 3", TRAIN + "--select last"),
    (TRAIN + "--seeds 2 --folds 3", TRAIN + "--seeds 2"),
    (TRAIN + "--device cuda", TRAIN + "--device cpu"),
    (TRAIN + "--learning-rate 0.1", TRAIN + "--lr 0.1"),
    (OPEN + "--model vit_micro_2 --weights fashion_mnist", OPEN + "--model vit_nano_8 --weights fashion_mnist"),
    (TRAIN + "--output-dir {folder}/runs --run-name r", TRAIN + "--output-dir {folder}/runs --run-name q"),
    ("train {folder}/few --epochs 1", "train {folder}/few --epochs 1 --val-fraction 0.5 --test-fraction 0"),
    (TO_PHOTOS + "{folder}/photos", TO_PHOTOS + "x"),
    ("compare --data digits --epochs 1 --images-seen 40", "compare --data digits --epochs 1"),
    ("compare --data digits --epochs 1 --images-seen 40", "compare --data digits --images-seen 40"),
    ("compare --data digits --minutes 1 --epochs 1", "compare --data digits --minutes 1"),
    ("compare --data digits --minutes 1 --epochs 1", "compare --data digits --epochs 1"),
    ("compare --data digits --lr 0.3", "compare --data digits --arms vit_nano_8,lr=0.3 vit_nano_8,lr=0.1"),
    ("compare --data digits --model vit_nano_8", "compare --data digits --arms vit_nano_8,lr=0.3 vit_nano_8"),
    ("compare {folder}/photos", "compare --data {folder}/photos"),
    ("compare --data digits --plan-only --on slurm", "compare --data digits --plan-only"),
    ("evaluate {folder}/runs/digits/r --split train", "evaluate {folder}/runs/digits/r --data digits"),
    ("resume {folder}/runs/digits/r --data x", "resume {folder}/runs/digits/r --data-root x"),
    ("resume {folder}/runs/digits/r", "resume {folder}/runs/digits/r --epochs 2"),
    ("summary --weights fashion_mnist", "summary --model vit_micro_2"),
    (EXPLAIN + "--head 1", EXPLAIN + "--head 1 --layer 0"),
    ("check {folder}/photos --data digits", "check {folder}/photos"),
]  # fmt: skip
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@pytest.mark.parametrize(("words", "then"), ADVICE)
def test_what_an_error_advises_gets_further(words, then, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def further(*_, **__):
        raise Further

    for place in ("trainers.run.execute", "trainers.resume.execute", "trainers.multirun.seeds_and_folds.train_all",
                  "trainers.rehearsal.dry_run", "trainers.rehearsal.find_lr", "trainers.budget.plan.mixture",
                  "comparison.compare.plan_comparison", "trainers.budget.networks.priced"):  # fmt: skip
        monkeypatch.setattr(place, further)
    code, out, err = call(capsys, *words.format(folder=folder).split())
    said = {*FLAG.findall(out + err)}
    assert code in (2, 3) or "nothing to do" in out, (code, out, err)
    changed = ({*FLAG.findall(words)} ^ {*FLAG.findall(then)}) - {"--config"}
    assert changed <= said, (changed, err)
    try:
        code, _, still = call(capsys, *then.format(folder=folder).split())
    except Further:
        return
    assert code == 0, still
