"""Augmentation: equal to torchvision's where the operation is the same, stateless, and safe for the label."""

from typing import get_args

import numpy as np
import pytest
import torch
from fake_sets import Spec, picture
from PIL import Image
from torchvision.transforms import v2

from datasets import DataConfig
from datasets.seeding import AUGMENT, mix, uniforms
from datasets.transforms import PRESETS, BatchMix, CropFlip, SmallAffine, _blend, preprocess, train_pipeline

DRAWS = np.arange(8)
LARGE = Spec(image_size=96, crop_fraction=0.875, interpolation="bicubic")


def run(pipeline, images, *, seed=0, epoch=0, draws=DRAWS):
    return pipeline([pipeline.store(image) for image in images], seed=seed, epoch=epoch, draws=draws)


def pictures(count=8, size=(150, 120)):
    return [picture(i, size) for i in range(count)]


def test_preprocess_equals_torchvisions():
    oracle = v2.Compose(
        [
            v2.Resize(round(96 / 0.875), interpolation=v2.InterpolationMode.BICUBIC),
            v2.CenterCrop(96),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(LARGE.mean, LARGE.std),
        ]
    )
    for image in pictures(3):
        torch.testing.assert_close(preprocess(image, LARGE), oracle(image), atol=2e-6, rtol=0)


def test_light_equals_torchvisions_crop_and_flip():
    pipeline = CropFlip(LARGE, mirror=True)
    images = pictures()
    batch = run(pipeline, images, epoch=3)
    random = uniforms(mix(0, AUGMENT, 3), DRAWS, 3)
    flips = 0
    for row, image in enumerate(images):
        resized = v2.functional.resize(image, [round(96 * 8 / 7)], interpolation=v2.InterpolationMode.BICUBIC)
        top = int(random[row, 0] * (resized.height - 96 + 1))
        left = int(random[row, 1] * (resized.width - 96 + 1))
        expected = v2.functional.crop(resized, top, left, 96, 96)
        if random[row, 2] < 0.5:
            expected, flips = v2.functional.horizontal_flip(expected), flips + 1
        expected = v2.functional.normalize(v2.functional.to_image(expected) / 255, LARGE.mean, LARGE.std)
        torch.testing.assert_close(batch[row], torch.as_tensor(expected), atol=2e-6, rtol=0)
    assert 0 < flips < len(images)


@pytest.mark.parametrize("preset", ["light", "standard", "strong"])
@pytest.mark.parametrize("size", [16, 64])
def test_no_preset_mirrors_where_it_may_not(preset, size):
    """Left half black, right half white: after any label-safe transform the right half is the brighter one."""
    spec = Spec(image_size=size, mean=(0, 0, 0), std=(1, 1, 1))
    array = np.zeros((size, size, 3), np.uint8)
    array[:, size // 2 :] = 255
    images = [Image.fromarray(array)] * 200

    def mirrored(mirror: bool) -> int:
        pipeline = train_pipeline(preset, spec, mirror=mirror)
        if preset != "light":  # RandAugment may invert or rotate: the geometry alone is at stake
            geometry = pipeline.transform.transforms[: 2 if mirror else 1]
            pipeline.transform = v2.Compose(geometry)
        batch = run(pipeline, images, draws=np.arange(200))
        half = size // 2
        return int((batch[..., :half].mean(dim=(1, 2, 3)) > batch[..., half:].mean(dim=(1, 2, 3)) + 1e-6).sum())

    assert mirrored(False) == 0
    assert mirrored(True) > 40


def test_the_affine_of_digits_equals_torchvisions():
    spec = Spec(image_size=28, mean=(0, 0, 0), std=(1, 1, 1))
    pipeline = SmallAffine(spec)
    images = pictures(8, (28, 28))
    batch = run(pipeline, images)
    random = uniforms(mix(0, AUGMENT, 0), DRAWS, 4) * 2 - 1
    for row, image in enumerate(images):
        turn, zoom = random[row, :2]
        expected = v2.functional.affine(
            v2.functional.to_dtype(v2.functional.to_image(image), torch.float32, scale=True),
            angle=-turn * 10,
            translate=[0, 0],
            scale=1 + zoom * 0.1,
            shear=[0.0],
            interpolation=v2.InterpolationMode.NEAREST,
        )
        centred = SmallAffine(spec)
        centred.shift = 0.0
        close = torch.isclose(run(centred, images)[row], torch.as_tensor(expected), atol=1e-4, rtol=0)
        assert close.float().mean() > 0.97  # a pixel centre half-way between two may round to either
    assert not torch.allclose(batch, run(centred, images))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("size", [16, 96])
def test_sample_follows_from_seed_epoch_and_draw(preset, size):
    pipeline = train_pipeline(preset, Spec(image_size=size))
    images = pictures(8, (130, 110))
    batch = run(pipeline, images)
    assert batch.shape == (8, 3, size, size)
    torch.manual_seed(99)
    backwards = run(pipeline, images[::-1], draws=DRAWS[::-1].copy())
    assert torch.equal(backwards.flip(0), batch)
    assert torch.equal(run(pipeline, images[3:4], draws=DRAWS[3:4])[0], batch[3])
    for change in ({"epoch": 1}, {"seed": 1}, {"draws": DRAWS + 8}):
        assert torch.equal(run(pipeline, images, **change), batch) == (preset == "none")


@pytest.mark.parametrize("preset", ["standard", "strong"])
def test_augmentation_leaves_torchs_random_state(preset):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    run(train_pipeline(preset, Spec()), pictures(2), draws=DRAWS[:2])
    assert torch.equal(torch.rand(3), expected)


def test_presets_are_the_words_of_the_option():
    words = get_args(get_args(DataConfig.__annotations__["augment"])[0])
    assert {*words} == {"auto", *PRESETS}
    with pytest.raises(ValueError, match="unknown augmentation preset 'wild'; known: none, light"):
        train_pipeline("wild", Spec())


def test_uniforms_are_uniform_and_uncorrelated():
    table = np.stack([uniforms(mix(0, AUGMENT, epoch), np.arange(4000), 2) for epoch in range(4)])
    assert abs(table.mean() - 0.5) < 0.01
    assert abs(table.var() - 1 / 12) < 0.002
    columns = table.transpose(1, 0, 2).reshape(4000, -1)  # sample x (epoch, draw)
    assert np.abs(np.corrcoef(columns.T) - np.eye(8)).max() < 0.06
    assert np.abs(np.corrcoef(table[0, :-1, 0], table[0, 1:, 0])[0, 1]) < 0.06


class TestBatchMix:
    images = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0, 1, 2])

    def mixed(self, seed=0, **alphas):
        return BatchMix(3, **alphas)(self.images, self.labels, torch.Generator().manual_seed(seed))

    def test_is_a_pure_function_of_the_generator(self):
        first, second = self.mixed(mixup_alpha=0.8, cutmix_alpha=1.0), self.mixed(mixup_alpha=0.8, cutmix_alpha=1.0)
        assert torch.equal(first[0], second[0])
        assert torch.equal(first[1], second[1])
        assert not torch.equal(first[0], self.mixed(1, mixup_alpha=0.8, cutmix_alpha=1.0)[0])

    def test_mixup_equals_torchvisions_at_the_same_share(self):
        images, targets = self.mixed(mixup_alpha=0.8)
        share = targets[0, 0].item()
        oracle = v2.MixUp(alpha=0.8, num_classes=3)
        oracle.make_params = lambda _: {"lam": share}
        expected, expected_targets = oracle(self.images, self.labels)
        torch.testing.assert_close(images, expected)
        torch.testing.assert_close(targets, expected_targets)

    def test_cutmix_targets_say_how_large_its_box_is(self):
        for seed in range(20):
            images, targets = self.mixed(seed, cutmix_alpha=1.0)
            own = (images == self.images).all(dim=1)
            assert torch.equal(own[0], own[1])
            assert targets[0, 0].item() == pytest.approx(own[0].float().mean().item(), abs=1e-6)
            assert torch.equal(images[:, :, ~own[0]], self.images.roll(1, 0)[:, :, ~own[0]])

    @pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
    def test_mixup_has_the_bits_of_a_rolled_blend(self, layout):
        for size in ((1, 3, 5, 7), (2, 1, 9, 3), (5, 3, 7, 13), (6, 3, 16, 16)):
            images = torch.rand(size, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=layout)
            for kept in (0.0, 0.2, 0.5, 0.9, 1.0):
                assert torch.equal(_blend(images, kept), torch.lerp(images.roll(1, 0), images, kept))

    @pytest.mark.parametrize("alphas", [{"mixup_alpha": 0.8}, {"cutmix_alpha": 1.0}])
    def test_no_whole_batch_is_rolled(self, monkeypatch, alphas):
        rolled, roll = [], torch.Tensor.roll
        monkeypatch.setattr(torch.Tensor, "roll", lambda x, *by: rolled.append(x.numel()) or roll(x, *by))
        self.mixed(**alphas)
        assert max(rolled) < self.images.numel()

    def test_both_are_used_when_both_are_on(self):
        shares = [self.mixed(seed, mixup_alpha=0.8, cutmix_alpha=1.0)[0] for seed in range(20)]
        own_or_others = [((each == self.images) | (each == self.images.roll(1, 0))).all() for each in shares]
        assert {bool(cut) for cut in own_or_others} == {True, False}

    def test_without_mixing_the_targets_are_one_hot(self):
        images, targets = self.mixed()
        assert torch.equal(images, self.images)
        assert torch.equal(targets, torch.eye(3)[self.labels])


def test_standard_crops_as_torchvision_does_by_default():
    image = v2.functional.to_image(picture(0, (200, 150)))
    crops = []
    for crop in (
        train_pipeline("standard", LARGE).transform.transforms[0],
        v2.RandomResizedCrop(96, interpolation=v2.InterpolationMode.BICUBIC),
    ):
        torch.manual_seed(0)
        crops.append(torch.stack([crop(image) for _ in range(8)]))
    assert torch.equal(*crops)


def test_strong_changes_a_picture_more_than_standard():
    spec, draws = Spec(image_size=32), np.arange(32)

    def drawn(preset, **changes):
        pipeline = train_pipeline(preset, spec)
        vars(pipeline).update(changes)
        stored = [pipeline.store(picture(number, (80, 80))) for number in range(32)]
        return pipeline.pixels(stored, seed=0, epoch=0, draws=draws).float()

    calm = drawn("strong", magnitude=0, erase=0.0)  # crops and mirrors, as those of standard
    standard, strong = ((drawn(name, erase=0.0) - calm).abs().mean() for name in ("standard", "strong"))
    assert strong > 1.5 * standard > 0
    erased = (drawn("strong", magnitude=0) != calm).flatten(1).any(dim=1)
    assert 0.1 < erased.float().mean() < 0.5
