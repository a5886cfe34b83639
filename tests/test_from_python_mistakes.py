"""Everyday mistakes in Python: each is one line that says what would work, mostly before anything is written."""

import numpy as np
import pytest
import torch
from ignite.engine import Events
from ignite.handlers import ProgressBar, Timer
from own_objects import net, options, splits, tensors
from PIL import Image
from small_run import call
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torchvision.datasets import FakeData

from common.errors import DataError, Diverged, OptionError, TrainingError, WeightsError
from common.image_spec import ImageSpec
from datasets.transforms import preprocess
from trainers.auto_resume import train_or_resume
from trainers.budget.pace import measure
from trainers.config import RunConfig, TrainConfig
from trainers.resolve import UserObjects
from trainers.resume import resume
from trainers.run import train
from trainers.setup import prepare

MICRO = {"name": "vit_micro_2", "image_size": 8, "in_channels": 1}


def refused(folder, error, line, *, config=None, **given):
    """`train` says this line and writes nothing; `given`: in place of a network and Datasets that suit each other."""
    with pytest.raises(error, match=line):
        train(config or options(folder), **{"model": net(), "dataloaders": splits()} | given)
    assert not list(folder.iterdir())


class Stream(IterableDataset):
    def __iter__(self):
        yield from ((torch.zeros(1, 8, 8), 0) for _ in range(4))


class Batches:
    """An iterable over batches that knows its length, such as timm's PrefetchLoader."""

    def __len__(self):
        return 1

    def __iter__(self):
        yield torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)


class Rows(Dataset):
    """Samples as dictionaries, as Hugging Face's sets give them."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"image": torch.zeros(1, 8, 8), "label": 0}


@pytest.mark.parametrize(
    ("train_set", "line"),
    [
        (Stream(), "train Dataset Stream has no images by number"),
        (Batches(), "train Dataset Batches has no images by number"),
        (Rows(), r"train Dataset Rows gives no \(image, label\) but a dict"),
        (TensorDataset(torch.zeros(4, 1, 8, 8)), "train Dataset TensorDataset gives no"),
        (TensorDataset(torch.zeros(2, 8, 8), torch.tensor([0, 1])), r"of tensordataset are Tensor \(8, 8\)"),
        (FakeData(2, (3, 8, 8), 2), "of fakedata are Image"),
    ],
)
def test_a_dataset_of_another_kind_is_refused(tmp_path, train_set, line):
    refused(tmp_path, DataError, line, dataloaders={"train": train_set, "val": tensors(6, 0)})


@pytest.mark.parametrize("given", [DataLoader(tensors(6, 0)), {"train": tensors(6, 0)}])
def test_dataloaders_map_train_and_val(tmp_path, given):
    refused(tmp_path, DataError, "give a mapping with train and val", dataloaders=given)


def of_shape(*shape):
    return TensorDataset(torch.zeros(9, *shape), torch.arange(9) % 3)


@pytest.mark.parametrize(
    ("model", "name", "split", "shape"),
    [
        (None, "vit_micro_2", "train", (3, 8, 8)),
        (None, "vit_micro_2", "train", (1, 9, 9)),
        (None, "vit_micro_2", "val", (3, 8, 8)),
        (net(), "own:Sequential", "val", (1, 6, 6)),
    ],
)
def test_images_that_do_not_fit_are_refused(tmp_path, model, name, split, shape):
    given = {"train": of_shape(1, 8, 8), "val": of_shape(1, 8, 8), split: of_shape(*shape)}
    config = options(tmp_path, model=None if model else MICRO)
    refused(tmp_path, OptionError, f"{name} cannot take images of shape", config=config, model=model, dataloaders=given)


@pytest.mark.parametrize(
    ("side", "channels", "line"), [(16, 1, "image_size=16.*=8"), (8, 3, "in_channels=3.*=1")], ids=["side", "channels"]
)
@pytest.mark.parametrize("model", [None, net()], ids=["named", "own"])
def test_a_spec_that_does_not_fit_is_refused(tmp_path, model, side, channels, line):
    spec = ImageSpec(image_size=side, mean=(0.0,) * channels, std=(1.0,) * channels, in_channels=channels)
    config = options(tmp_path, model=None if model else MICRO)
    refused(tmp_path, OptionError, line, config=config, model=model, spec=spec)


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, images):
        return {"logits": self.inner(images)}


class OtherwiseInTraining(nn.Module):
    """Gives in training what `change` makes of its logits, as GoogLeNet and Inception do."""

    def __init__(self, change):
        super().__init__()
        self.inner, self.change = nn.Sequential(nn.BatchNorm2d(1), net()), change

    def forward(self, images):
        logits = self.inner(images)
        return self.change(logits) if self.training else logits


def complain(_):
    raise RuntimeError("an auxiliary head needs 75 px")


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), r"Sequential gives logits of shape \(1, 2\) .* shape \(1, 3\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), r"Sequential cannot .* \(1, 8, 8\) of train: mat1 and mat2"),
        (nn.Conv2d(1, 3, 3), r"own:Conv2d gives logits of shape \(1, 3, 6, 6\)"),
        (Wrapped(), "own:Wrapped gives a dict for 1 image"),
        (OtherwiseInTraining(lambda logits: (logits, logits)), "a tuple .* in training"),
        (OtherwiseInTraining(lambda logits: logits[:, :2]), r"shape \(2, 2\) .* in training"),
        (OtherwiseInTraining(lambda logits: logits[0]), r"shape \(3,\) .* in training"),
        (OtherwiseInTraining(complain), "in training.* needs 75 px"),
    ],
)
def test_a_module_is_tried_and_left_as_it_was(tmp_path, module, line):
    before = {name: value.clone() for name, value in module.train().state_dict().items()}
    refused(tmp_path, OptionError, line, model=module)
    assert all(part.training for part in module.modules())
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def wide():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))


def test_training_begins_with_the_module_as_it_was(tmp_path):
    module, begun = wide(), []
    module[1].eval()  # frozen
    before = {name: value.clone() for name, value in module.state_dict().items()}

    def look(trainer):
        begun.append(([part.training for part in module], {n: v.clone() for n, v in module.state_dict().items()}))

    train(options(tmp_path, epochs=1), model=module, dataloaders=splits(), handlers=[look])
    ((modes, state),) = begun
    assert modes == [True, False, True, True]
    assert all(torch.equal(before[name], value) for name, value in state.items())


@pytest.mark.parametrize("handler", [ProgressBar(), ProgressBar, Timer(), None])
def test_handlers_are_functions_of_the_trainer(tmp_path, handler):
    refused(tmp_path, OptionError, "attach", handlers=[handler])
    with pytest.raises(OptionError, match="attach"):
        resume(tmp_path, handlers=[handler])


def pooled():
    return nn.Sequential(nn.Conv2d(1, 4, 8), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3))


@pytest.mark.parametrize(("batch_size", "accumulate", "better"), [(47, 1, 46), (8, 8, 16), (40, 8, 32)])
def test_an_image_alone_is_refused_by_batch_norms(tmp_path, batch_size, accumulate, better):
    config = options(tmp_path, epochs=1, accumulate=accumulate).changed(data={"batch_size": batch_size})
    refused(tmp_path, OptionError, rf"--batch-size {better}\b", config=config, model=pooled())
    train(config.changed(data={"batch_size": better}), model=pooled(), dataloaders=splits())


@pytest.mark.parametrize("model", [net, wide])
def test_an_image_alone_is_trained_on_elsewhere(tmp_path, model):
    config = options(tmp_path, epochs=1).changed(data={"batch_size": 47})
    train(config, model=model(), dataloaders=splits())


def test_a_step_is_timed_with_no_image_alone(tmp_path):
    config = options(tmp_path, epochs=1, accumulate=2)
    assert measure(prepare(config, given=UserObjects(pooled(), splits())), seconds=0.1).step > 0


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 1e30])
def test_an_image_that_spoils_the_loss_is_named(tmp_path, value):
    images, labels = tensors(48, 0).tensors
    images[7, 0, 0, 0] = value
    with pytest.raises(DataError, match=r"train/7 has the value"):
        train(options(tmp_path), model=net(), dataloaders=splits() | {"train": TensorDataset(images, labels)})
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_spoils_the_loss_is_named(tmp_path, value):
    model = net()
    model[1].weight.data[0, 0] = value
    with pytest.raises(WeightsError, match=r"1\.weight"):
        train(options(tmp_path), model=model, dataloaders=splits())


def test_a_rate_too_high_is_not_to_be_resumed(tmp_path):
    model = net()

    def spoil_step_9(trainer):
        trainer.add_event_handler(Events.ITERATION_STARTED(once=9), lambda: model[1].weight.data.fill_(3e38))

    with pytest.raises(TrainingError, match="--lr") as stop:
        train(options(tmp_path, save_every=2), model=model, dataloaders=splits(), handlers=[spoil_step_9])
    assert isinstance(stop.value.__cause__, Diverged)
    assert "resume with" not in str(stop.value)


@pytest.mark.parametrize("model", [None, net()], ids=["named", "own"])
def test_a_resumed_run_wants_its_datasets_again(tmp_path, capsys, model):
    config = options(tmp_path, model=None if model else MICRO, epochs=1)
    run = train(config, model=model, dataloaders=splits()).run_dir
    with pytest.raises(DataError, match="dataloaders="):
        resume(run, epochs=2)
    assert resume(run, epochs=2, model=model, dataloaders=splits()).epochs[-1]["epoch"] == 2
    assert call(capsys, "evaluate", run)[0] == 3


@pytest.mark.parametrize("image", [np.zeros((8, 8, 3), np.uint8), torch.zeros(3, 8, 8), Image.new("P", (8, 8))])
def test_what_preprocess_cannot_take_is_named(image):
    with pytest.raises(DataError, match=r"not an? .*(ndarray|Tensor|mode P)"):
        preprocess(image, ImageSpec(image_size=8))


@pytest.mark.parametrize("given", [{"data": "digits"}, {"model": "vit_tiny_16"}, {"train": {"lr": 1}}])
def test_an_option_is_no_section(given):
    (name,) = given
    with pytest.raises(OptionError, match=f"{name}=.* is no section of options.* {name}={name.title()}Config"):
        RunConfig(**given)


@pytest.mark.parametrize("start", [train, train_or_resume])
@pytest.mark.parametrize("given", ["digits", TrainConfig(), None, {"data": "digits"}])
def test_what_is_no_run_config_is_refused(start, given):
    with pytest.raises(OptionError, match="RunConfig"):
        start(given)
