"""Heat maps: each method against a library or a law, every method on every kind of model, and how faithful maps are."""

import copy
import json
from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from common.image_spec import ImageSpec
from trainers.budget.networks import PASSES
from trainers.reporting.explanations import faithfulness, methods
from trainers.reporting.explanations import subject as subjects
from trainers.reporting.explanations.faithfulness import Faithfulness, costs_of, measure_maps, paired
from trainers.reporting.explanations.methods import METHODS, heat_maps
from trainers.reporting.explanations.subject import NoMap, Subject, cells, shares
from trainers.storage.checkpoint_file import write_checkpoint
from vit.config import Network
from vit.ensemble import SideBySide, shared_picture
from vit.factory import build_model

pytestmark = pytest.mark.drawn

SIDE = 32


def pictures(count: int = 2, *, side: int = SIDE, channels: int = 3) -> torch.Tensor:
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(7))


def stirred(model: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.03 * torch.randn_like(parameter))
    return model.eval()


def convolutions() -> nn.Module:
    """A network of a program's own."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, stride=2, padding=1),
        nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    ).eval()  # fmt: skip


def linear() -> nn.Module:
    """Logits that are sums over the pixels, each with its own weight."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 3)).eval()


def built(name: str) -> nn.Module:
    return build_model(name, num_classes=3, weights="none", image_size=SIDE)


OF_MAPS = {"integrated-layercam", "occlusion"}
MODELS = {  # and the methods that they have
    "vit_nano_8": (lambda: built("vit_nano_8"), {*METHODS}),
    "torchvision": (lambda: built("vit_b_16"), {*METHODS}),
    "resnet18": (lambda: built("resnet18"), OF_MAPS),
    "timm's ViT": (lambda: built("timm:vit_tiny_patch16_224"), {*METHODS} - {"rollout"}),
    "own convolutions": (convolutions, OF_MAPS),
    "own linear": (linear, {"occlusion"}),
}
SLOW = {"torchvision", "resnet18", "timm's ViT"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in MODELS])
def test_methods_have_maps_of_models_they_can_read(name):
    make, takes = MODELS[name]
    model, images = stirred(make()), pictures()
    for parameter in model.parameters():
        parameter.requires_grad_(False)  # as a probe leaves them
    with torch.no_grad():
        expected = model(images)
    for method in METHODS:
        if method not in takes:
            with pytest.raises(NoMap):
                heat_maps(model, images, method=method)
            continue
        found, again = (heat_maps(model, images, method=method) for _ in range(2))
        assert torch.equal(found.values, again.values), method  # the same bits
        assert torch.allclose(found.logits, expected, atol=1e-5)
        assert torch.equal(found.classes, expected.argmax(dim=1))
        assert found.values.min() >= 0
        total = found.values.sum(dim=(1, 2))
        assert ((total - 1).abs() < 1e-4).logical_or(total == 0).all(), method
        alone = heat_maps(model, images[1:], method=method)
        assert torch.allclose(found.values[1:], alone.values, atol=1e-3), method
    assert heat_maps(model, images).method == next(method for method in METHODS if method in takes)
    assert not images.requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())


def test_layercam_is_that_of_its_paper():
    """Equations 5 and 6: activations weighted by their own positive gradients (Jiang et al. 2021)."""
    model, images, classes = convolutions(), pictures(), torch.tensor([2, 0])
    activations, logits = methods.deepest(Subject(model, images, classes))
    assert activations.shape == (2, 8, 8, 8)
    [gradients] = torch.autograd.grad(logits.gather(1, classes[:, None]).sum(), activations)
    found = methods.layer_map(activations.detach(), gradients)
    for image, place, own in zip(images, classes, found, strict=True):
        maps = model[:4](image[None]).detach()
        slopes = torch.autograd.functional.jacobian(lambda maps, place=place: model[4:](maps)[0, place], maps)
        expected = sum(slope.clamp(min=0) * one for slope, one in zip(slopes[0], maps[0], strict=True)).clamp(min=0)
        torch.testing.assert_close(own, expected)


def test_layercam_asks_the_deepest_large_layer():
    subject = Subject(stirred(built("resnet18")), pictures(), torch.tensor([0, 1]))
    assert methods.deepest(subject)[0].shape == (2, 128, 4, 4)  # those after it have 2 and 1 per side


def test_rules_keep_the_values_of_a_wide_norm():
    norm, x = nn.LayerNorm((3, 4, 4)), torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    with methods.Rules():
        found = norm(x)
    torch.testing.assert_close(found, norm(x))


def test_attnlrp_shares_out_the_whole_score():
    """Conservation: with one half to each factor, relevance is neither made nor lost in attention and activations."""
    torch.manual_seed(0)
    qkv, head = nn.Linear(12, 24, bias=False).double(), nn.Linear(8, 3, bias=False).double()

    def attend(images: torch.Tensor) -> torch.Tensor:
        tokens = F.unfold(images, 2, stride=2).transpose(1, 2)  # (B, N, 12)
        q, k, v = qkv(tokens).chunk(3, dim=2)
        weights = (q @ k.mT)[:, None] / 100  # without a softmax, the product of all three is cubic
        return head(F.gelu((weights @ v[:, None])[:, 0]).mean(dim=1))

    with methods.Rules():
        x = pictures(side=8).double().requires_grad_()
        logits = attend(x)
        [gradient] = torch.autograd.grad(logits[:, 1].sum(), x)
    # q k^T is a product that no rule halves here (three dimensions), so its two factors count twice: half of A, twice.
    share = (gradient * x).sum(dim=(1, 2, 3)) / logits[:, 1]
    torch.testing.assert_close(share.detach(), torch.full((2,), 1.5, dtype=torch.float64))


def test_occlusion_of_a_sum_is_what_each_part_adds():
    """Brute force: cover each window by hand."""
    model, images = linear(), pictures(1)
    subject, side = Subject(model, images, torch.tensor([1])), cells(SIDE)
    instead, expected, counts = subjects.blurred(images), torch.zeros(side, side), torch.zeros(side, side)
    whole = subject.odds(model(images))
    for row, column in product(range(side - 1), repeat=2):
        covered, step = images.clone(), SIDE // side
        window = (..., slice(row * step, (row + 2) * step), slice(column * step, (column + 2) * step))
        covered[window] = instead[window]
        expected[row : row + 2, column : column + 2] += (whole - subject.odds(model(covered))).detach()
        counts[row : row + 2, column : column + 2] += 1
    torch.testing.assert_close(methods.occlusion(subject)[0], expected / counts, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("side", [8, 33, 64])
def test_blurred_levels_busy_pictures_alone(side):
    even = torch.full((1, 3, side, side), 0.7)
    torch.testing.assert_close(subjects.blurred(even), even)
    busy = pictures(1, side=side)
    assert subjects.blurred(busy).std() < 0.75 * busy.std()


PLACE, STEP = (2, 5), SIDE // 8
PLANTED = tuple(slice(place * STEP, (place + 1) * STEP) for place in PLACE)


class Planted(nn.Module):
    """A model whose second class is the sum of one cell of 8 x 8, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SIDE, SIDE))
        self.weight.data[PLANTED] = 1

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        score = (images.mean(dim=1) * self.weight).sum(dim=(1, 2)) / 4 - 1
        return torch.stack([torch.zeros_like(score), score], dim=1)


def marked(count: int = 24) -> torch.Tensor:
    images = 0.1 * pictures(count)
    images[..., *PLANTED] += 1
    return images


def test_maps_of_a_planted_cell_are_faithful():
    model, images = Planted(), marked()
    values = heat_maps(model, images, method="occlusion").values
    assert (values.flatten(1).argmax(dim=1) == PLACE[0] * 8 + PLACE[1]).all()
    found = measure_maps(model, images.split(8), method="occlusion")
    assert found.faithful
    assert (found.method, found.images) == ("occlusion", 24)
    assert found.brightest > 0.3
    assert found.random < 0.5 * found.brightest
    assert "are faithful" in str(found)


def test_a_map_that_points_elsewhere_is_not_faithful():
    elsewhere = torch.zeros(24, 8, 8)
    elsewhere[:, 6:, :7] = 1
    bright, chance = costs_of(Subject(Planted(), marked(), torch.ones(24, dtype=torch.long)), elsewhere, seed=0)
    assert bright.abs().max() < 1e-6
    assert ((chance / chance.max() - 0.5).abs() < 0.25).any()  # the mean of several random fifths
    assert paired(bright - chance) > 0.5
    poor = Faithfulness("rollout", 24, float(bright.mean()), float(chance.mean()), paired(bright - chance))
    assert not poor.faithful
    assert "no better than random" in str(poor)
    assert not Faithfulness("rollout", 64, 0.015, 0.01, 1e-9).faithful  # sure, and too small to matter


def test_the_test_is_scipys_and_holds_its_level():
    rng = np.random.default_rng(0)
    leads = torch.from_numpy(rng.normal(0.1, 1, 40))
    assert paired(leads) == pytest.approx(stats.ttest_rel(leads, torch.zeros(40), alternative="greater").pvalue)
    assert paired(torch.zeros(9)) == 1
    assert paired(torch.full((9,), torch.nan)) == 1
    called = sum(paired(torch.from_numpy(rng.normal(0, 1, 64))) < faithfulness.LEVEL for _ in range(1_000))
    assert 3 <= called <= 20  # 10 are expected


class PlantedSet:
    """The marked images as a validation set."""

    def __len__(self) -> int:
        return 24

    def batch(self, key) -> tuple[torch.Tensor]:
        return (marked()[key.draws],)


@pytest.fixture
def run_dir(tmp_path):
    """A run that has its best weights."""
    (tmp_path / "checkpoints").mkdir()
    write_checkpoint(tmp_path / "checkpoints" / "best.safetensors", {"model": {"weight": torch.zeros(1)}})
    return tmp_path


def test_what_was_measured_is_for_the_same_weights(run_dir):
    found = faithfulness.measure_run(run_dir, Planted(), PlantedSet(), method="occlusion")
    assert faithfulness.read_faithfulness(run_dir) == {"occlusion": found}
    file = run_dir / faithfulness.FILE
    whole = json.loads(file.read_text())
    numbers = whole["methods"]["occlusion"]
    damaged = [{"occlusion": numbers | wrong} for wrong in ({"p": "x"}, {"random": None}, {"images": 1e999})]
    for content in (*({"methods": each} for each in (*damaged, [], {"occlusion": []})), {"weights": "of another"}):
        file.write_text(json.dumps(whole | content))
        assert faithfulness.read_faithfulness(run_dir) == {}
    file.write_text("[]")
    assert faithfulness.read_faithfulness(run_dir) == {}


def test_measuring_ends_where_all_would_take_long(run_dir, monkeypatch):
    monkeypatch.setattr(faithfulness, "IMAGES", 24)  # two batches
    assert faithfulness.measure_run(run_dir, Planted(), PlantedSet(), method="occlusion", seconds=0) is None
    assert faithfulness.read_faithfulness(run_dir) == {}


NETWORKS = Network("vit_nano_8", SIDE), Network("resnet18", SIDE // 2)


@pytest.fixture(scope="module")
def modules() -> list[nn.Module]:
    return [build_model(each.name, num_classes=3, weights="none", image_size=each.image_size) for each in NETWORKS]


@pytest.fixture
def ensemble(modules: list[nn.Module]) -> SideBySide:
    """A Transformer on the whole picture, and convolutions on the middle half of it."""
    specs = [ImageSpec(SIDE), ImageSpec(SIDE // 2, crop_fraction=0.5)]
    model = SideBySide(NETWORKS, copy.deepcopy(modules), specs, shared_picture(specs), num_classes=3).eval()
    nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(5))
    return model


@pytest.mark.parametrize("decides", [0, 1])
def test_an_ensemble_has_the_map_of_who_decides(ensemble, decides):
    images, view = pictures(), ensemble.views[decides]
    with torch.no_grad():
        ensemble.head.weight[:, ensemble.columns[1 - decides]] = 0
    found, inside = heat_maps(ensemble, images), slice(view.margin, view.margin + view.cut)
    head = nn.Linear(view.width, 3, bias=False)
    head.weight.data = ensemble.head.weight.data[:, ensemble.columns[decides]]
    alone = heat_maps(nn.Sequential(view.network, head), images[..., inside, inside], found.classes).values
    side = found.values.size(-1)
    part, margin = side * view.cut // SIDE, side * view.margin // SIDE
    expected = F.pad(F.interpolate(alone[:, None], size=(part, part), mode="bilinear"), [margin] * 4)[:, 0]
    torch.testing.assert_close(found.values, shares(expected), atol=1e-6, rtol=1e-3)


def test_an_ensemble_is_measured_by_each_method(ensemble):
    assert heat_maps(ensemble, pictures()).method == "auto"
    measured = measure_maps(ensemble, pictures(3).split(2))
    assert (measured.method, measured.images) == ("auto", 3)
    assert "each network by its own method" in str(measured)


def test_two_maps_show_first_where_both_are_bright():
    """And then what one of them missed."""
    first, second = torch.ones(2, 1, 10, 10)
    first[0, 0, :2], second[0, 0, :2] = torch.tensor([40.0, 3.0]), torch.tensor([0.0, 3.0])
    missed, agreed, *others = methods.both(first, second).flatten().tolist()
    assert agreed > missed > max(others)


@pytest.mark.parametrize("name", ["vit_nano_8", "resnet18"])
def test_a_plan_keeps_about_the_time_that_maps_take(name):
    """And the measurement of their faithfulness."""
    model, passes = built(name).eval(), []
    model.register_forward_hook(lambda _, args, __: passes.append(len(args[0])))
    measure_maps(model, [pictures(4)])
    assert PASSES / 2 < sum(passes) / 4 * faithfulness.IMAGES < 2 * PASSES


def test_a_random_fifth_has_the_shape_of_the_brightest():
    marks = torch.zeros(40, 8, 8, dtype=torch.bool)
    marks[:, 2:5, 3:7] = True
    moved = faithfulness.moved(marks, torch.Generator().manual_seed(0))
    shapes = [marks[0].roll((down, right), (0, 1)) for down in range(8) for right in range(8)]
    found = [next(place for place, shape in enumerate(shapes) if torch.equal(mark, shape)) for mark in moved]
    assert len(set(found)) > 20
    assert torch.equal(moved, faithfulness.moved(marks, torch.Generator().manual_seed(0)))
