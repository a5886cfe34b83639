"""What TensorBoard shows beside curves: right, once, at its step, and as a file too."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_run
import torch
from fake_sets import Spec, class_folders
from killed_runs import Crash, crash, signal_myself, stopped_in_validation
from PIL import Image, ImageOps
from sklearn.metrics import recall_score
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torchvision.models import VisionTransformer as Torchvision

from common.errors import Interrupted
from datasets.config import DataConfig
from datasets.fitting import view_of
from trainers.config import RunConfig
from trainers.engine.engines import Scores
from trainers.engine.predictions import predictions_from
from trainers.reporting import pictures
from trainers.reporting.figures.results import confusion_figure, reliability_figure
from trainers.reporting.figures.sheets import batch_sheet, png, upsampled
from trainers.reporting.pictures import hardest
from trainers.reporting.tensorboard import recall
from trainers.resume import resume
from trainers.run import train
from trainers.setup import prepare
from trainers.storage.checkpoint_file import load
from vit.anatomy import position_embeddings
from vit.config import ModelConfig

pytestmark = pytest.mark.drawn

ONCE = {"2_mistakes/by_image", "2_mistakes/confusion_matrix", "4_calibration/answers", "4_calibration/reliability"}
OFTEN = {"3_attention/by_image", "3_attention/distance"}
FULL = {"7_model/position_similarity"}


def digits_run(folder: Path, *, tb: str = "standard", **train_options) -> RunConfig:
    data = {"labels_per_class": 16, "batch_size": 40, "val_fraction": None, "test_fraction": None}
    options = {"epochs": 3, "log_every": 2} | train_options
    return small_run.digits_run(folder, data=data, output={"run_name": "r", "tb": tb}, **options)


def averaged_run(folder: Path) -> RunConfig:
    """What is validated, and shown, is then another model than the one that trains."""
    return digits_run(folder, tb="full", ema_decay=0.9)


@pytest.fixture(scope="module", autouse=True)
def maps_of_one_point():
    """What a map along several points is worth, tests/test_explanations.py has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainers.reporting.explanations.subject.POINTS", (1.0,))
        yield


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run, the mistakes that it showed, and its attention each time."""
    mistakes, seen = [], []
    worst, attention = pictures.worst, pictures.validation_attention
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "worst", lambda *args: mistakes.extend(images := worst(*args)) or images)
        patch.setattr(pictures, "validation_attention", lambda *args: seen.append(attention(*args)) or seen[-1])
        run_dir = train(averaged_run(tmp_path_factory.mktemp("full"))).run_dir
    return run_dir, mistakes, seen


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


def test_a_run_shows_its_pictures_at_the_promised_steps(full):
    last = 12  # 3 epochs of 4 steps
    assert shown(full) == {
        "6_data/augmented_batch": [0],
        **{key: [0, last] for key in OFTEN},
        **{key: [last] for key in ONCE | FULL},
    }
    curves = {tag for tag in val_events(full).Tags()["tensors"] if tag.startswith("pr/")}
    assert curves == {f"pr/{digit}" for digit in range(10)}


def test_every_picture_is_a_file_with_the_same_bytes(full):
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


def test_without_pictures_not_a_bit_of_the_training_is_another(full, tmp_path):
    bare = train(averaged_run(tmp_path).changed(output={"tb": "scalars"})).run_dir
    assert shown(bare) == {}
    assert not (bare / "figures").exists()
    (with_pictures, _, _), (without, _, _) = load(full), load(bare)
    for one, other in zip(with_pictures.parameters(), without.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_mistakes_are_shown_surest_first_in_their_original_pixels(watched, tmp_path):
    run_dir, taken, _ = watched
    with open(run_dir / "eval" / "val_predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    # By brute force from the file of all predictions: digits are their own class numbers.
    wrong = [row for row in rows if row["label"] != row["predicted"]]
    expected = sorted(wrong, key=lambda row: -max(map(float, row["probabilities"].split())))[: pictures.MISTAKES]
    assert len(wrong) > pictures.MISTAKES
    assert [(guess.path, guess.label, guess.predicted) for guess in taken] == [
        (row["path"], row["label"], row["predicted"]) for row in expected
    ]
    assert [dict(guess.ranked)[guess.label] for guess in taken] == pytest.approx(
        [float(row["probabilities"].split()[int(row["label"])]) for row in expected], rel=1e-5
    )
    dataset = prepare(digits_run(tmp_path)).data.dataloaders["val"].dataset
    by_path = {dataset.path(row): row for row in range(len(dataset))}
    for guess in taken:
        assert np.array_equal(guess.pixels, dataset.original(by_path[guess.path]))


def test_a_model_without_mistakes_shows_what_it_is_least_certain_of(tmp_path):
    setup = prepare(digits_run(tmp_path))
    dataset = setup.data.dataloaders["val"].dataset
    logits = nn.functional.one_hot(torch.from_numpy(dataset.labels), 10) * 3.0
    logits[5, int(dataset.labels[5])] -= 1.0
    scores = Scores({"ece": 0.0}, predictions_from(logits, torch.from_numpy(dataset.labels)))
    assert pictures.worst(setup, scores)[0].path == dataset.path(5)
    assert pictures.mistakes_title(scores).startswith("no mistake on 179")


def test_attention_is_that_of_the_same_images_each_time_and_of_the_model_at_that_time(watched, tmp_path):
    run_dir, _, seen = watched
    paths = [[image.path for image in images] for images, _, _ in seen]
    assert len(paths) == 2
    assert len(set(paths[0])) == 8
    assert paths[1] == paths[0]
    assert len({image.label for image in seen[0][0]}) >= 4  # spread over the classes
    assert not torch.equal(seen[0][0][0].heat, seen[1][0][0].heat)
    model, _, _ = load(run_dir)
    setup = prepare(digits_run(tmp_path))
    images, distance, what = pictures.validation_attention(setup, model)
    assert "integrated AttnLRP" in what
    assert torch.equal(seen[-1][1], distance)
    assert distance.shape == (model.config.depth, model.config.num_heads)
    for last, again in zip(seen[-1][0], images, strict=True):
        assert torch.equal(last.heat, again.heat)
        assert last.heat.sum().item() == pytest.approx(1, abs=1e-5)


def test_looking_leaves_modes_gradients_and_random_state_alone(tmp_path):
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


def test_a_run_stopped_in_a_validation_and_again_in_its_conclusion_shows_what_an_uninterrupted_one_does(tmp_path, full):
    with pytest.raises(Interrupted), stopped_in_validation(8, signal_myself):
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
    ({"name": "vit_micro_4", "trainable": "head", "weights": "none"}, {"cache_features": "on"}, True),
    ({"name": "vit_micro_4", "weights": "none", "in_channels": 1, "pool": "mean"}, {}, True),
]


@pytest.mark.parametrize(("model", "train_options", "attends"), KINDS, ids=["resnet18", "cached", "grey"])
def test_every_kind_of_model_and_data_gets_the_pictures_it_can_have(model, train_options, attends, tmp_path, capsys):
    names = ["$a_b$ <x>", "猫\u202e"]
    folder = class_folders(tmp_path / "set", dict.fromkeys(names, 12))  # four images in val: fewer than are shown
    for name in names:
        (folder / name / "000.png").rename(folder / name / "\u732b $\\ ._.png")
    config = replace(
        digits_run(tmp_path / "runs", tb="full", epochs=1, **train_options),
        model=ModelConfig(**model),
        data=DataConfig(source=str(folder), workers=0, batch_size=8, augment="none", val_fraction=0.2),
    )
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


def test_a_picture_that_cannot_be_drawn_costs_a_line_and_not_the_run(monkeypatch, tmp_path, capsys):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")

    monkeypatch.setattr(pictures, "validation_attention", fail)
    run_dir = train(digits_run(tmp_path, epochs=1)).run_dir
    assert "CUDA out of memory. Tried to allocate 2 GiB\n" in capsys.readouterr().out
    assert json.loads((run_dir / "summary.json").read_text())["status"] == "finished"
    assert set(shown(run_dir)) == {"6_data/augmented_batch", *ONCE}  # and none of those of --tb full


def test_rows_of_the_confusion_matrix_are_true_classes():
    confusion = np.array([[0, 9], [0, 0]])  # nine images of class `first`, all taken for `second`
    axis = confusion_figure(confusion, ("first", "second"), title="").axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["first", "second"]
    assert (axis.get_ylabel(), axis.get_xlabel()) == ("true", "predicted")
    (text,) = axis.texts
    assert (text.get_text(), text.get_position()) == ("9", (1, 0))  # column 1: predicted `second`; row 0: true `first`


def test_the_projector_has_one_row_for_each_of_tensors_metadata_and_thumbnails(full):
    (folder,) = (full / "tb" / "val").glob("*/val")
    tensors = np.loadtxt(folder / "tensors.tsv", delimiter="\t")
    header, *rows = [line.split("\t") for line in (folder / "metadata.tsv").read_text().splitlines()]
    assert header == ["shown", "label", "predicted", "loss", "path"]
    assert len(tensors) == len(rows) == 179
    setup = prepare(digits_run(full))
    dataset = setup.data.dataloaders["val"].dataset
    by_path = {dataset.path(row): row for row in range(len(dataset))}
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


def test_the_recall_of_every_class_follows_its_epochs(full):
    events = val_events(full)
    with open(full / "eval" / "val_predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    best = json.loads((full / "summary.json").read_text())["best"]["epoch"]
    expected = recall_score([row["label"] for row in rows], [row["predicted"] for row in rows], average=None)
    for digit, share in enumerate(expected):
        points = {event.step: event.value for event in events.Scalars(f"recall/{digit}")}
        assert list(points) == [0, 4, 8, 12]
        assert points[4 * best] == pytest.approx(share)


def test_of_many_classes_the_worst_tenth_is_followed_and_of_a_class_without_images_nothing():
    shares = torch.tensor([math.nan, *(0.03 * number for number in range(1, 31))])
    names = [f"class {number}" for number in range(31)]
    assert recall(shares, names) == {"of_worst_tenth": pytest.approx(0.06)}
    few = recall(shares[:3], ("a/b", "a_b", "c"))
    assert few == {"a_b": pytest.approx(0.03), "c": pytest.approx(0.06)}
    assert len(recall(torch.ones(3), ("a/b", "a_b", "c"))) == 3
    assert recall(torch.full((31,), math.nan), names) == {}


def test_of_many_classes_the_hardest_get_a_pr_curve():
    labels = torch.arange(30).repeat_interleave(10)
    guesses = labels.where((labels != 7) & (labels != 20), labels + 1)
    some = labels != 3  # no images: no curve
    outputs = predictions_from(nn.functional.one_hot(guesses[some], 30).float(), labels[some])
    indices = hardest(Scores({}, outputs), [str(number) for number in range(30)])
    assert len(indices) == 20
    assert indices == sorted(indices)
    assert {7, 8, 20, 21} <= set(indices)
    assert 3 not in indices


def test_position_embeddings_are_found():
    model = Torchvision(image_size=32, patch_size=16, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=16)
    assert torch.equal(position_embeddings(model), model.encoder.pos_embedding[0])


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
@pytest.mark.parametrize("size", [(60, 20), (20, 60), (40, 40)])
def test_a_map_lies_over_the_whole_picture_where_the_model_saw_it(fit, size):
    """A mark in the picture, prepared as the model sees it, is where the map of its pixels lies."""
    width, height = size
    spec = Spec(image_size=20, fit=fit)
    row, column = height // 2 + 3, width // 2 - 4
    mark = np.zeros((height, width), np.uint8)
    mark[row - 2 : row + 2, column - 2 : column + 2] = 255
    prepared = {
        "crop": lambda image: ImageOps.fit(image, (20, 20), Image.Resampling.BILINEAR),
        "pad": lambda image: ImageOps.pad(image, (20, 20), Image.Resampling.BILINEAR),
        "squash": lambda image: image.resize((20, 20), Image.Resampling.BILINEAR),
    }[fit](Image.fromarray(mark))
    seen = torch.from_numpy(np.asarray(prepared, np.float32))
    laid, inside = upsampled(seen, (height, width), view_of(width, height, spec))
    assert inside.mean() == pytest.approx(min(size) / max(size) if fit == "crop" else 1, abs=0.04)
    rows, columns = np.mgrid[:height, :width]
    weights = laid * inside / (laid * inside).sum()
    centre = (weights * rows).sum(), (weights * columns).sum()
    assert centre == pytest.approx((row - 0.5, column - 0.5), abs=1.5)


@pytest.mark.parametrize(("channels", "side", "count"), [(3, 80, 5), (1, 8, 16)])
def test_the_first_batch_is_shown_with_its_normalisation_undone_each_beside_its_original(channels, side, count):
    generator = torch.Generator().manual_seed(0)
    originals = torch.randint(256, (count, channels, side, side), generator=generator, dtype=torch.uint8)
    images = torch.randint(256, originals.shape, generator=generator) / 255
    figure = batch_sheet([*originals.numpy()], 2 * images - 1, mean=[0.5] * channels, std=[0.5] * channels, title="t")
    with Image.open(io.BytesIO(png(figure))) as image:
        pixels = np.asarray(image)
    pairs = torch.stack([originals, (255 * images).round().byte()], 1).flatten(0, 1)
    large = pairs.expand(-1, 3, -1, -1).repeat_interleave(80 // side, 2)
    for number, expected in enumerate(large.repeat_interleave(80 // side, 3).permute(0, 2, 3, 1).numpy()):
        y, x = 36 + number // 4 * 94, 14 + number % 4 * 94
        assert np.array_equal(pixels[y : y + 80, x : x + 80], expected)


def test_what_stands_beside_an_augmented_picture_is_its_own_original(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        pictures, "batch_sheet", lambda *sides, **words: drawn.update(sides=sides) or batch_sheet(*sides, **words)
    )
    monkeypatch.setattr(pictures, "draw_best", lambda *_, **__: None)  # its pictures are other tests'
    config = digits_run(tmp_path, epochs=1).changed(data={"augment": "none", "balance": "sampler"})
    run_dir = train(config).run_dir
    originals, images = drawn["sides"]  # not augmented, one is the other
    assert len(originals) == len(images) == 16
    for original, image in zip(originals, images, strict=True):
        assert np.array_equal(original, (127.5 * (image + 1)).round().byte().numpy())
    assert (run_dir / "figures" / "data_augmented_batch_step_0.png").exists()


def test_the_bars_of_a_reliability_figure_stand_side_by_side_and_its_curve_on_their_means():
    images, confidence, right = torch.tensor([4.0, 0.0, 10.0, 6.0]), torch.tensor([0.4, 0.0, 6.0, 5.4]), [1.0, 0, 7, 6]
    figure = reliability_figure(torch.stack([images, confidence, torch.tensor(right)]), ece=0.1, title="a run")
    top, bottom = figure.axes
    bars = [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in bottom.patches]
    assert bars == [(0.0, 0.25, 4.0), (0.25, 0.25, 0.0), (0.5, 0.25, 10.0), (0.75, 0.25, 6.0)]
    np.testing.assert_allclose(top.lines[1].get_xydata(), [(0.1, 0.25), (0.6, 0.7), (0.9, 1.0)], rtol=1e-6)
