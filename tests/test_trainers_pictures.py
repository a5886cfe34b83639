"""The pictures of a run: what TensorBoard shows, at which step, and as a file too."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import small_run
import torch
from fake_sets import class_folders
from killed_runs import Crash, crash, signal_myself, stopped_in_validation
from PIL import Image
from sklearn.metrics import recall_score
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from common.errors import Interrupted
from trainers.config import RunConfig
from trainers.engine.engines import Scores
from trainers.engine.predictions import predictions_from
from trainers.reporting import pictures
from trainers.reporting.figures.sheets import batch_sheet
from trainers.resume import resume
from trainers.run import train
from trainers.setup import prepare
from trainers.storage.checkpoint_file import load

pytestmark = pytest.mark.drawn

ONCE = {"2_mistakes/by_image", "2_mistakes/confusion_matrix", "4_calibration/answers", "4_calibration/reliability"}
OFTEN = {"3_attention/by_image", "3_attention/distance"}
FULL = {"7_model/position_similarity"}


def digits_run(folder: Path, *, tb: str = "standard", **train_options) -> RunConfig:
    data = {"labels_per_class": 16, "batch_size": 40, "val_fraction": None, "test_fraction": None}
    options = {"epochs": 2, "log_every": 2} | train_options
    return small_run.digits_run(folder, data=data, output={"run_name": "r", "tb": tb}, **options)


def averaged_run(folder: Path) -> RunConfig:
    """What is validated, and shown, is then another model than the one that trains."""
    return digits_run(folder, tb="full", ema_decay=0.9)


@pytest.fixture(scope="module", autouse=True)
def maps_of_one_point():
    """What a map along several points gains, tests/test_explanations.py has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainers.reporting.explanations.subject.POINTS", (1.0,))
        yield


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run, the mistakes that it showed, and its attention each time."""
    mistakes, looks = [], []
    worst, attention = pictures.worst, pictures.validation_attention
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "worst", lambda *args: mistakes.extend(images := worst(*args)) or images)
        patch.setattr(pictures, "validation_attention", lambda *args: looks.append(attention(*args)) or looks[-1])
        run_dir = train(averaged_run(tmp_path_factory.mktemp("full"))).run_dir
    return run_dir, mistakes, looks


@pytest.fixture(scope="module")
def full(watched):
    return watched[0]


def val_events(run_dir: Path) -> EventAccumulator:
    return EventAccumulator(
        str(run_dir / "tb" / "val"), size_guidance={"images": 0, "tensors": 0, "scalars": 0}
    ).Reload()


def shown(run_dir: Path) -> dict[str, list[int]]:
    """Tag -> steps of all pictures."""
    events = val_events(run_dir)
    return {tag: [event.step for event in events.Images(tag)] for tag in events.Tags()["images"]}


def rows_of_predictions(run_dir: Path) -> list[dict[str, str]]:
    """Of the validation images; digits are their own class numbers."""
    with open(run_dir / "eval" / "val_predictions.csv", newline="") as file:
        return list(csv.DictReader(file))


def val_images(folder: Path):
    """The validation images of such a run, and the row of each path."""
    dataset = prepare(digits_run(folder)).data.dataloaders["val"].dataset
    return dataset, {dataset.path(row): row for row in range(len(dataset))}


def test_pictures_are_shown_at_the_promised_steps(full):
    last = 8  # 2 epochs of 4 steps
    assert shown(full) == {
        "6_data/augmented_batch": [0],
        **{key: [0, last] for key in OFTEN},
        **{key: [last] for key in ONCE | FULL},
    }
    curves = {tag for tag in val_events(full).Tags()["tensors"] if tag.startswith("pr/")}
    assert curves == {f"pr/{digit}" for digit in range(10)}


def test_every_picture_is_a_file(full):
    events = val_events(full)
    files = {path.name for path in (full / "figures").glob("*.png")}
    for tag in events.Tags()["images"]:
        for event in events.Images(tag):
            name = f"{tag[2:].replace('/', '_')}_step_{event.step}.png"
            assert (full / "figures" / name).read_bytes() == event.encoded_image_string
            with Image.open(io.BytesIO(event.encoded_image_string)) as image:
                assert (image.mode, image.size) == ("RGB", (event.width, event.height))
                assert image.convert("L").getextrema()[0] < 100, f"{tag} is blank"
            files.remove(name)
    assert not files


def test_pictures_change_not_a_bit_of_the_training(full, tmp_path):
    bare = train(averaged_run(tmp_path).changed(output={"tb": "scalars"})).run_dir
    assert shown(bare) == {}
    assert not (bare / "figures").exists()
    (with_pictures, _, _), (without, _, _) = load(full), load(bare)
    for one, other in zip(with_pictures.parameters(), without.parameters(), strict=True):
        assert torch.equal(one, other)


def test_mistakes_are_shown_surest_first(watched, tmp_path):
    run_dir, taken, _ = watched
    wrong = [row for row in rows_of_predictions(run_dir) if row["label"] != row["predicted"]]
    expected = sorted(wrong, key=lambda row: -max(map(float, row["probabilities"].split())))[: pictures.MISTAKES]
    assert len(wrong) > pictures.MISTAKES
    assert [(guess.path, guess.label, guess.predicted) for guess in taken] == [
        (row["path"], row["label"], row["predicted"]) for row in expected
    ]
    assert [dict(guess.ranked)[guess.label] for guess in taken] == pytest.approx(
        [float(row["probabilities"].split()[int(row["label"])]) for row in expected], rel=1e-5
    )
    dataset, by_path = val_images(tmp_path)
    for guess in taken:
        assert np.array_equal(guess.pixels, dataset.original(by_path[guess.path]))


def test_without_mistakes_the_least_sure_are_shown(tmp_path):
    setup = prepare(digits_run(tmp_path))
    dataset = setup.data.dataloaders["val"].dataset
    logits = nn.functional.one_hot(torch.from_numpy(dataset.labels), 10) * 3.0
    logits[5, int(dataset.labels[5])] -= 1.0
    scores = Scores({"ece": 0.0}, predictions_from(logits, torch.from_numpy(dataset.labels)))
    assert pictures.worst(setup, scores)[0].path == dataset.path(5)
    assert pictures.mistakes_title(scores).startswith("no mistake on 179")


def test_attention_is_the_models_at_that_time(watched, tmp_path):
    run_dir, _, looks = watched
    paths = [[image.path for image in images] for images, _, _ in looks]
    assert len(paths) == 2
    assert len(set(paths[0])) == 8
    assert paths[1] == paths[0]
    assert len({image.label for image in looks[0][0]}) >= 4  # spread over the classes
    assert not torch.equal(looks[0][0][0].heat, looks[1][0][0].heat)
    model, _, _ = load(run_dir)
    setup = prepare(digits_run(tmp_path))
    images, distance, what = pictures.validation_attention(setup, model)
    assert "integrated AttnLRP" in what
    assert torch.equal(looks[-1][1], distance)
    assert distance.shape == (model.config.depth, model.config.num_heads)
    for last, again in zip(looks[-1][0], images, strict=True):
        assert torch.equal(last.heat, again.heat)
        assert last.heat.sum().item() == pytest.approx(1, abs=1e-5)


def test_looking_changes_nothing(tmp_path):
    setup = prepare(digits_run(tmp_path))
    setup.model.train()
    setup.model.norm.eval()
    setup.model.head.weight.grad = torch.ones_like(setup.model.head.weight)
    before, modes = torch.get_rng_state(), [module.training for module in setup.model.modules()]
    assert len(pictures.validation_attention(setup, setup.model)[0]) == 8
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in setup.model.modules()] == modes
    assert torch.equal(setup.model.head.weight.grad, torch.ones_like(setup.model.head.weight))
    assert all(p.requires_grad for p in setup.model.parameters())


def test_a_stopped_run_shows_what_a_whole_one_does(tmp_path, full):
    with pytest.raises(Interrupted), stopped_in_validation(4, signal_myself):
        train(averaged_run(tmp_path))
    run_dir = tmp_path / "digits" / "r"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        patch.setattr(pictures, "draw_scores", lambda *args, **kwargs: crash())
        resume(run_dir)
    resume(run_dir)  # a conclusion that was stopped is shown again, at the same step
    one, other = val_events(run_dir), val_events(full)
    assert one.Tags() == other.Tags()
    for tag in shown(full):
        pngs = [{(event.step, event.encoded_image_string) for event in events.Images(tag)} for events in (one, other)]
        assert pngs[0] == pngs[1], tag
    configs = [folder / "tb" / "val" / "projector_config.pbtxt" for folder in (run_dir, full)]
    assert configs[0].read_bytes() == configs[1].read_bytes()


# Attention, or none; frozen parts; cached features; one channel. Names that need escaping.
KINDS = [
    ({"name": "resnet18", "weights": "none", "image_size": 32}, {}, False),
    ({"name": "vit_micro_2", "trainable": "head", "weights": "none"}, {"cache_features": "on"}, True),
    ({"name": "vit_micro_2", "weights": "none", "in_channels": 1, "pool": "mean"}, {}, True),
]


@pytest.mark.parametrize(("model", "train_options", "attends"), KINDS, ids=["resnet18", "cached", "grey"])
def test_every_kind_of_model_has_pictures(model, train_options, attends, tmp_path, capsys):
    names = ["$a_b$ <x>", "猫\u202e"]
    folder = class_folders(tmp_path / "set", dict.fromkeys(names, 12))  # four images in val: fewer than are shown
    for name in names:
        (folder / name / "000.png").rename(folder / name / "\u732b $\\ ._.png")
    data = {"source": str(folder), "batch_size": 8, "augment": "none", "val_fraction": 0.2, "test_fraction": None}
    output = {"run_name": "r", "tb": "full"}
    config = small_run.digits_run(tmp_path / "runs", model=model, data=data, output=output, **train_options)
    run_dir = train(config).run_dir
    assert "could not be drawn" not in capsys.readouterr().out
    tags = set(shown(run_dir))
    assert tags >= ONCE
    assert "3_attention/by_image" in tags
    assert (tags >= OFTEN) == attends
    assert (tags >= FULL) == (model["name"] != "resnet18")
    (table,) = (run_dir / "tb" / "val").glob("*/val/metadata.tsv")
    rows = table.read_text().splitlines()
    assert {len(row.split("\t")) for row in rows} == {5}


def test_a_picture_that_fails_costs_a_line(monkeypatch, tmp_path, capsys):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")

    monkeypatch.setattr(pictures, "validation_attention", fail)
    run_dir = train(small_run.tiny_run(tmp_path, tb="standard")).run_dir
    assert "CUDA out of memory. Tried to allocate 2 GiB\n" in capsys.readouterr().out
    assert json.loads((run_dir / "summary.json").read_text())["status"] == "finished"
    assert set(shown(run_dir)) == {"6_data/augmented_batch", *ONCE}  # and none of those of --tb full


def test_the_projector_has_a_row_for_each_image(full):
    (folder,) = (full / "tb" / "val").glob("*/val")
    tensors = np.loadtxt(folder / "tensors.tsv", delimiter="\t")
    header, *rows = [line.split("\t") for line in (folder / "metadata.tsv").read_text().splitlines()]
    assert header == ["shown", "label", "predicted", "loss", "path"]
    assert len(tensors) == len(rows) == 179
    dataset, by_path = val_images(full)
    model, _, _ = load(full)
    rows_of = [by_path[row[-1]] for row in rows]
    images = torch.stack([dataset[row][0] for row in rows_of])
    with torch.no_grad():  # what reaches the head gives the logits: the features are those of the best weights
        expected = model(images)
        logits = model.head(torch.from_numpy(tensors).float())
    assert torch.allclose(logits, expected, atol=1e-3)
    assert [row[2] for row in rows] == [str(int(index)) for index in expected.argmax(dim=1)]
    sprite = np.asarray(Image.open(folder / "sprite.png"))[..., 0]  # 14 x 14 thumbnails of 64 px hold 179
    assert np.array_equal(
        sprite[448:512, 128:192], dataset.stored([rows_of[7 * 14 + 2]])[0][0].repeat(8, 0).repeat(8, 1)
    )


def test_the_recall_of_every_class_is_followed(full):
    events = val_events(full)
    rows = rows_of_predictions(full)
    best = json.loads((full / "summary.json").read_text())["best"]["epoch"]
    expected = recall_score([row["label"] for row in rows], [row["predicted"] for row in rows], average=None)
    for digit, share in enumerate(expected):
        points = {event.step: event.value for event in events.Scalars(f"recall/{digit}")}
        assert list(points) == [0, 4, 8]
        assert points[4 * best] == pytest.approx(share)


def test_an_augmented_picture_has_its_own_original(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        pictures, "batch_sheet", lambda *sides, **words: drawn.update(sides=sides) or batch_sheet(*sides, **words)
    )
    monkeypatch.setattr(pictures, "draw_best", lambda *_, **__: None)  # its pictures are other tests'
    config = small_run.tiny_run(tmp_path, tb="standard")
    run_dir = train(config.changed(data={"augment": "none", "balance": "sampler", "batch_size": 16})).run_dir
    originals, images = drawn["sides"]  # not augmented, one is the other
    assert len(originals) == len(images) == 16
    for original, image in zip(originals, images, strict=True):
        assert np.array_equal(original, (127.5 * (image + 1)).round().byte().numpy())
    assert (run_dir / "figures" / "data_augmented_batch_step_0.png").exists()
