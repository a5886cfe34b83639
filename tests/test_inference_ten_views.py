"""Ten views of an image: what they are, and that their mean is one of probabilities."""

from __future__ import annotations

import torch
from small_run import call, make_run, photo
from torch import nn

from datasets.tables import read_rows
from datasets.transforms import Pipeline
from inference.classifier import open_classifier
from inference.images import find_images, read_pixels
from inference.ten_views import TenViews, with_ten_views
from trainers.storage.run_folder import read_json, write_json


class Corner(nn.Module):
    """Notes what it is shown; its logits are the top left pixel of both channels."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append(images)
        return images[:, :, 0, 0]


def test_the_views_are_the_image_its_four_shifts_and_their_mirror_images():
    images, model = torch.randn(2, 2, 32, 32), Corner()
    logits = TenViews(model)(images)
    assert len(model.seen) == 10
    plain, mirrored = model.seen[:5], model.seen[5:]
    assert all(torch.equal(a.flip(-1), b) for a, b in zip(plain, mirrored, strict=True))
    assert torch.equal(plain[0], images)
    inner = slice(2, -2)  # a sixteenth of 32 is 2
    for view, (down, right) in zip(plain[1:], [(2, 2), (2, -2), (-2, 2), (-2, -2)], strict=True):
        assert torch.equal(view[..., inner, inner], images.roll((down, right), dims=(-2, -1))[..., inner, inner])
    mean = torch.stack([view[:, :, 0, 0].softmax(dim=1) for view in model.seen]).mean(dim=0)
    torch.testing.assert_close(logits.exp(), mean)


def test_what_changes_in_a_mirror_is_not_mirrored(tmp_path):
    images, model = torch.randn(2, 2, 32, 32), Corner()
    TenViews(model)(images)
    logits = TenViews(unmirrored := Corner(), mirror=False)(images)
    assert all(torch.equal(a, b) for a, b in zip(model.seen[:5], unmirrored.seen, strict=True))
    torch.testing.assert_close(logits.exp().sum(dim=1), torch.ones(2))
    run = make_run(tmp_path / "run")
    assert with_ten_views(open_classifier(str(run), device="cpu")).model.mirror
    config = read_json(run / "config.json")
    config["data"]["source"] = "digits"
    write_json(run / "config.json", config)
    assert not with_ten_views(open_classifier(str(run), device="cpu")).model.mirror


def test_probabilities_that_round_to_zero_have_finite_logarithms():
    images = torch.full((1, 2, 16, 16), 0.0)
    images[:, 0] = 1000.0
    assert TenViews(Corner())(images).isfinite().all()


def test_predict_and_evaluate_answer_for_ten_views(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    files = [photo(tmp_path / "photos" / name / f"{seed}.png", seed=seed) for seed, name in enumerate(("ant", "bee"))]
    code, out, err = call(capsys, "predict", run, *files, "--tta", "--top", 3, "--output", tmp_path / "p.csv")
    assert code == 0, out + err
    classifier = open_classifier(str(run), device="cpu")
    pipeline = Pipeline(classifier.spec)
    pixels = [torch.from_numpy(read_pixels(file, pipeline)) for file in find_images([str(path) for path in files])]
    expected = TenViews(classifier.model)(pipeline.normalise(torch.stack(pixels))).exp().max(dim=1).values
    found = [float(row["probability"]) for row in read_rows(tmp_path / "p.csv", ("probability",))]
    torch.testing.assert_close(torch.tensor(found), expected, atol=1e-6, rtol=0)
    code, out, err = call(
        capsys, "evaluate", run, "--tta", "--data", tmp_path / "photos", "--output", tmp_path / "eval"
    )
    assert code == 0, out + err
    assert (tmp_path / "eval" / "photos_tta_predictions.csv").is_file()


def test_a_temperature_of_one_view_is_not_that_of_ten(tmp_path, capsys):
    code, _, err = call(capsys, "predict", tmp_path, "x.png", "--tta", "--calibrated")
    assert (code, "leave out it or --tta" in err) == (2, True)
