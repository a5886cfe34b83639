"""Everyday mistakes in Python, and everyday wishes: each mistake is one line that says what would work."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import EarlyStopping, ProgressBar, Timer
from own_objects import net, options, splits, tensors
from PIL import Image
from small_run import call
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)
from torchvision.datasets import FakeData, ImageFolder
from torchvision.transforms import Compose, ToTensor

from common.errors import DataError, Diverged, OptionError, TrainingError, WeightsError
from common.image_spec import ImageSpec
from datasets import build_dataloaders
from datasets.config import DataConfig
from datasets.loaders import stop_workers
from datasets.own_dataset import own_dataloaders
from datasets.transforms import preprocess
from trainers.auto_resume import train_or_resume
from trainers.budget.pace import measure
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.resolve import UserObjects
from trainers.resume import resume
from trainers.run import train
from trainers.setup import prepare
from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import RunResult, read_result


def built_and_own():
    spec = ImageSpec(image_size=8, mean=(0.0,), std=(1.0,), in_channels=1)
    built = build_dataloaders(DataConfig(source="digits", labels_per_class=2, workers=0, augment="light"), spec)
    return {"built": built, "own": bundle_of(tensors(9, 0))}


@pytest.mark.parametrize("which", ["built", "own"])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "part",
    [
        lambda images: images,
        lambda images: Subset(images, [5, 0, 3]),
        lambda images: random_split(images, [0.5, 0.5])[0],
        lambda images: ConcatDataset([images, Subset(images, [1])]),
    ],
    ids=["itself", "Subset", "random_split", "ConcatDataset"],
)
def test_the_dataset_of_a_loader_goes_into_a_loader_of_ones_own(which, part, workers):
    images = part(built_and_own()[which].dataloaders["train"].dataset)
    batches = list(DataLoader(images, 4, num_workers=workers))
    expected = default_collate([images[row] for row in range(len(images))])
    for found, whole in zip(zip(*batches, strict=True), expected, strict=True):
        assert torch.equal(torch.cat(found), whole)
    assert expected[0].dtype is torch.float32
    with pytest.raises(IndexError):
        images[len(images)]


def test_ignites_deterministic_engine_takes_such_a_loader():
    model = net()
    engine = create_supervised_trainer(
        model, torch.optim.SGD(model.parameters(), 0.1), nn.functional.cross_entropy, deterministic=True
    )
    loader = DataLoader(built_and_own()["own"].dataloaders["train"].dataset, 4, shuffle=True)
    assert engine.run(loader, max_epochs=2).iteration == 2 * len(loader)


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

    def __init__(self, item):
        self.item = item

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.item


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (DataLoader(tensors(6, 0)), "dataloaders=a DataLoader: give a mapping"),
        ({"train": Stream(), "val": tensors(6, 0)}, "the train Dataset Stream has no images by number"),
        (
            {"train": Rows({"image": torch.zeros(1, 8, 8), "label": 0}), "val": tensors(6, 0)},
            r"the train Dataset Rows gives no \(image, label\) but a dict: wrap it",
        ),
        (
            {"train": Batches(), "val": tensors(6, 0)},
            "the train Dataset Batches has no images by number",
        ),
        ({"train": tensors(6, 0)}, "dataloaders=train: give a mapping with train and val"),
        (
            {"train": TensorDataset(torch.zeros(4, 1, 8, 8)), "val": tensors(6, 0)},
            "train Dataset TensorDataset gives no",
        ),
        (
            {"train": TensorDataset(torch.zeros(2, 1, 8, 8), torch.tensor([-1, 0])), "val": tensors(6, 0)},
            "or some below 0",
        ),
        (
            {"train": TensorDataset(torch.zeros(2, 8, 8), torch.tensor([0, 1])), "val": tensors(6, 0)},
            r"images of tensordataset are Tensor \(8, 8\), not tensors \(C, H, W\)",
        ),
        ({"train": FakeData(2, (3, 8, 8), 2), "val": tensors(6, 0)}, "images of fakedata are Image, not tensors"),
    ],
)
def test_data_of_another_shape_gets_one_line_and_leaves_nothing(tmp_path, given, line):
    with pytest.raises(DataError, match=line):
        train(options(tmp_path), model=net(), dataloaders=given)
    assert not list(tmp_path.iterdir())


class Pets(Dataset):
    """Nine images of three named classes, as torchvision's sets hold them."""

    classes = ("ant", "bee", "cat")

    def __init__(self, target_transform=None, shape=(9,), held="targets", item=int):
        self.target_transform, self.item = target_transform, item
        setattr(self, held, (np.arange(9) % 3).reshape(shape))

    def __len__(self):
        return 9

    def __getitem__(self, index):
        label = self.item(index % 3)
        return torch.zeros(1, 8, 8), label if self.target_transform is None else self.target_transform(label)


class Mapped(Dataset):
    """A wrapper that changes labels, and hands on all else."""

    def __init__(self, inner, change):
        self.inner, self.change = inner, change

    def __getattr__(self, name):
        return getattr(self.__dict__["inner"], name)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        image, label = self.inner[index]
        return image, self.change(label)


def bundle_of(dataset, val=None, **options):
    given = {"train": dataset, "val": val or Subset(dataset, range(len(dataset)))}
    return own_dataloaders(given, DataConfig(**{"batch_size": 90, "workers": 0} | options), seed=0)


def labels_in(bundle):
    table = bundle.dataloaders["train"].dataset
    (batch,) = [labels for _, labels in bundle.dataloaders["train"]]
    assert sorted(batch.tolist()) == sorted(table.labels.tolist())
    return table.labels.tolist()


def notes_of(bundle):
    return bundle.dataloaders["train"].dataset.samples.notes[1:]


def is_first(label):
    return int(label == 0)


@pytest.mark.parametrize(
    "dataset",
    [
        Pets(is_first),
        ConcatDataset([Pets(is_first)]),
        Subset(Mapped(Pets(held="labels"), is_first), range(9)),
        Mapped(Pets(is_first), int),
    ],
)
def test_labels_are_what_the_items_say_and_lose_names_that_do_not_fit(dataset):
    bundle = bundle_of(dataset)
    assert labels_in(bundle) == [1, 0, 0] * 3
    assert bundle.class_names == ("0", "1")


@pytest.mark.parametrize(
    "dataset", [Pets(int), Pets(shape=(9, 1), item=lambda y: np.array([y])), Pets(item=torch.tensor)]
)
def test_labels_that_only_look_otherwise_keep_the_names(dataset):
    bundle = bundle_of(dataset)
    assert labels_in(bundle) == [0, 1, 2] * 3
    assert (bundle.class_names, notes_of(bundle)) == (Pets.classes, ())


def test_an_item_that_changes_its_label_is_named_with_both():
    dataset = Pets()
    bundle = bundle_of(dataset)
    dataset.item = lambda label: 2
    with pytest.raises(DataError, match="label 2"):
        list(bundle.dataloaders["val"])


@pytest.mark.parametrize(
    "change", [lambda y: y + 0.9, str, lambda y: [y, 0], lambda y: None, lambda y: float("nan"), lambda y: y - 1]
)
def test_labels_that_are_no_whole_numbers_from_0_on_are_refused(change):
    for dataset in (Pets(change), Mapped(Pets(), change)):
        with pytest.raises(DataError, match="train"):
            bundle_of(dataset)


def test_labels_that_start_at_1_are_asked_about_and_an_empty_set_is_refused():
    assert "start at 1" in "".join(notes_of(bundle_of(Pets(lambda y: y + 1))))
    with pytest.raises(DataError, match="empty"):
        bundle_of(Subset(Pets(), []), Pets())


def test_joined_datasets_keep_names_on_which_they_agree_and_splits_must_agree():
    other = Pets()
    other.classes = ("ant", "cat", "bee")
    assert bundle_of(ConcatDataset([Pets(), Subset(Pets(), [4])])).class_names == Pets.classes
    assert bundle_of(ConcatDataset([Pets(), other])).class_names == ("0", "1", "2")
    with pytest.raises(DataError, match="val"):
        bundle_of(Pets(), other)


def collate(items):
    return default_collate(items)


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (DataLoader(Pets(), 90, shuffle=True), []),
        (DataLoader(Pets(), batch_sampler=BatchSampler(RandomSampler(Pets()), 90, False)), []),
        (DataLoader(Pets(), batch_sampler=[[0, 1], [2]]), ["batch_sampler"]),
        (
            DataLoader(Pets(), 3, sampler=WeightedRandomSampler(torch.ones(9), 9), collate_fn=collate),
            ["WeightedRandomSampler", "collate", "batch_size=3"],
        ),
    ],
)
def test_what_a_loader_does_and_the_run_does_not_is_said(loader, said):
    notes = notes_of(bundle_of(loader, Pets()))
    assert len(notes) == len(said)
    assert all(word in note for word, note in zip(said, notes, strict=True))


@pytest.mark.parametrize("explicit", [False, True])
def test_a_sampler_of_some_images_gives_the_run_these_alone(explicit):
    sampler = SubsetRandomSampler([5, 0, 4])
    words = {"batch_sampler": BatchSampler(sampler, 2, False)} if explicit else {"sampler": sampler}
    assert labels_in(bundle_of(DataLoader(Pets(), **words), Pets())) == [0, 1, 2]


class Jitter:
    """Draws from a generator of its own, which takes a seed, as albumentations do."""

    def __init__(self):
        self.generator = random.Random()

    def set_random_seed(self, seed):
        self.generator.seed(seed)

    def __call__(self, image):
        return image + self.generator.random()


class Unseeded(Jitter):
    set_random_seed = None


class Augmented(Pets):
    def __init__(self, transform):
        super().__init__()
        self.transform = transform

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return self.transform(image), label


@pytest.mark.parametrize("workers", [0, 2])
def test_generators_of_transforms_that_take_a_seed_get_that_of_the_image(workers):
    def passes():
        nested = Compose([Compose([torch.abs]), Jitter()])
        bundle = bundle_of(Subset(Augmented(nested), range(9)), workers=workers, batch_size=4)
        return bundle, [torch.cat([images for images, _ in bundle.dataloaders["train"]]) for _ in range(2)]

    bundle, (first, second) = passes()
    _, (again, _) = passes()
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert len(first.flatten(1).unique(dim=0)) == 9
    assert notes_of(bundle) == ()


def test_a_dataset_whose_images_cannot_be_repeated_is_said_to_be_one():
    assert len(notes_of(bundle_of(Augmented(Unseeded())))) == 1


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
    ("change", "said"),
    [
        (lambda logits: (logits, logits), "a tuple"),
        (lambda logits: logits[:, :2], "shape (2, 2)"),
        (lambda logits: logits[0], "shape (3,)"),
        (complain, "needs 75 px"),
    ],
)
def test_a_module_whose_output_differs_in_training_is_refused_before_anything_is_written(tmp_path, change, said):
    model = OtherwiseInTraining(change)
    with pytest.raises(OptionError, match="in training") as stop:
        train(options(tmp_path), model=model, dataloaders=splits())
    assert said in str(stop.value)
    assert not list(tmp_path.iterdir())
    assert model.training
    assert model.inner[0].num_batches_tracked == 0


def test_a_module_that_is_tried_in_training_begins_with_the_statistics_that_it_had():
    model = OtherwiseInTraining(torch.abs)
    model.inner[0].eval()  # frozen
    prepare(options("unused"), given=UserObjects(model, splits()))
    assert (model.training, model.inner[0].training) == (True, False)
    assert model.inner[0].running_mean.item() == 0


class OfShapes(Dataset):
    """Images whose shape `shape_of` their row."""

    def __init__(self, shape_of):
        self.shape_of = shape_of

    def __len__(self):
        return 9

    def __getitem__(self, row):
        return torch.zeros(self.shape_of(row)), row % 3


@pytest.mark.parametrize("odd", [(1, 8, 7), (1, 9, 9), (3, 8, 8), (8, 8)])
@pytest.mark.parametrize("workers", [0, 2])
# A thread of multiprocessing may hand over one more batch when its pipe is closed already.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_image_of_another_shape_than_the_others_of_its_batch_is_named(odd, workers):
    bundle = bundle_of(OfShapes(lambda row: odd if row == 5 else (1, 8, 8)), tensors(9, 0), workers=workers)
    with pytest.raises(DataError, match="Dataset OfShapes") as stop:
        list(bundle.dataloaders["train"])
    stop_workers(bundle.dataloaders.values())
    assert f"5 {odd}" in str(stop.value)


@pytest.mark.parametrize(
    ("model", "shapes"),
    [(None, {"train": (3, 8, 8)}), (None, {"train": (1, 9, 9)}), (None, {"val": (3, 8, 8)}), (net, {"val": (1, 6, 6)})],
)
def test_images_of_any_split_that_the_model_cannot_take_are_one_line_before_anything_is_written(
    tmp_path, model, shapes
):
    shapes = {"train": (1, 8, 8), "val": (1, 8, 8)} | shapes
    given = {split: OfShapes(lambda row, shape=shape: shape) for split, shape in shapes.items()}
    micro = {"name": "vit_micro_2", "image_size": 8, "in_channels": 1}
    with pytest.raises(OptionError, match="cannot take images of shape"):
        train(options(tmp_path, model=None if model else micro), model=model and model(), dataloaders=given)
    assert not list(tmp_path.iterdir())


def one_broken(value):
    """The digits' splits with one pixel of one image, training image 7, that is `value`."""
    images, labels = tensors(48, 0).tensors
    images = images.clone()
    images[7, 0, 0, 0] = value
    return splits() | {"train": TensorDataset(images, labels)}


def spoilt(value):
    model = net()
    with torch.no_grad():
        model[1].weight[0, 0] = value
    return model


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 1e30])
def test_a_loss_that_an_image_spoils_names_the_image(tmp_path, value):
    with pytest.raises(DataError, match=r"train/7 has the value"):
        train(options(tmp_path), model=net(), dataloaders=one_broken(value))
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_a_weight_spoils_names_the_weight(tmp_path, value):
    with pytest.raises(WeightsError, match=r"1\.weight"):
        train(options(tmp_path), model=spoilt(value), dataloaders=splits())


def test_a_rate_that_is_too_high_is_not_to_be_resumed(tmp_path):
    def raise_it(trainer):
        def spoil():
            with torch.no_grad():
                trainer.state.run.setup.model[1].weight.fill_(3e38)

        trainer.add_event_handler(Events.ITERATION_STARTED(once=9), spoil)

    with pytest.raises(TrainingError, match="--lr") as stop:
        train(options(tmp_path, save_every=2), model=net(), dataloaders=splits(), handlers=[raise_it])
    assert isinstance(stop.value.__cause__, Diverged)
    assert "resume with" not in str(stop.value)


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 2)),
            r"own:Sequential gives logits of shape \(1, 2\) .* must return logits of shape \(1, 3\)",
        ),
        (lambda: nn.Conv2d(1, 3, 3), r"own:Conv2d gives logits of shape \(1, 3, 6, 6\)"),
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 3)),
            r"own:Sequential cannot take images of shape \(1, 8, 8\) of train: mat1 and mat2",
        ),
        (Wrapped, "own:Wrapped gives a dict for 1 image"),
    ],
    ids=["too few", "maps", "other images", "dict"],
)
def test_a_module_is_tried_on_one_image_before_anything_is_written(tmp_path, model, line):
    module = model().train()
    with pytest.raises(OptionError, match=line):
        train(options(tmp_path), model=module, dataloaders=splits())
    assert not list(tmp_path.iterdir())
    assert all(part.training for part in module.modules())


def test_a_model_by_name_is_tried_on_one_image_of_a_dataset(tmp_path):
    wanted = options(tmp_path, model={"name": "vit_micro_2", "image_size": 8, "in_channels": 3})
    with pytest.raises(OptionError, match=r"vit_micro_2 cannot take images of shape \(1, 8, 8\)"):
        train(wanted, dataloaders=splits())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("image", [np.zeros((8, 8, 3), np.uint8), torch.zeros(3, 8, 8), Image.new("P", (8, 8))])
def test_what_preprocess_cannot_take_is_named(image):
    with pytest.raises(DataError, match=r"not an? .*(ndarray|Tensor|mode P)"):
        preprocess(image, ImageSpec(image_size=8))


@pytest.mark.parametrize("model", [None, net()], ids=["a model by name", "a module"])
def test_a_run_on_datasets_of_a_program_says_that_they_are_to_be_given_again(tmp_path, capsys, model):
    named = {"name": "vit_micro_2", "image_size": 8, "in_channels": 1} if model is None else None
    run = train(options(tmp_path, model=named, epochs=1), model=model, dataloaders=splits()).run_dir
    with pytest.raises(DataError, match="dataloaders="):
        resume(run, epochs=2)
    assert resume(run, epochs=2, model=model, dataloaders=splits()).epochs[-1]["epoch"] == 2
    assert call(capsys, "evaluate", run)[0] == 3


class Raising(Pets):
    def __getitem__(self, index):
        if index == 5:
            raise ValueError("picture 5 is bad")
        return super().__getitem__(index)


def test_an_error_of_a_programs_own_dataset_passes_as_it_is_with_the_item():
    with pytest.raises(ValueError, match="picture 5 is bad") as caught:
        bundle_of(Raising(held="nothing"))
    assert not isinstance(caught.value, DataError)
    assert "item 5 of the train Dataset Raising" in caught.value.__notes__[0]


def test_trying_a_module_leaves_its_modes_and_its_numbers_alone(tmp_path):
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))
    module[1].eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    seen = []

    def look(trainer):
        seen.append(([part.training for part in module], {n: v.clone() for n, v in module.state_dict().items()}))

    train(options(tmp_path, epochs=1), model=module, dataloaders=splits(), handlers=[look])
    modes, state = seen[0]
    assert modes == [True, False, True, True]
    assert all(torch.equal(before[name], value) for name, value in state.items())


@pytest.mark.parametrize("given", [{"data": "digits"}, {"model": "vit_tiny_16"}, {"train": {"lr": 1}}])
def test_an_option_in_the_place_of_a_section_is_answered_with_its_class(given):
    (name,) = given
    with pytest.raises(OptionError, match=f"{name}=.* is no section of options.* {name}={name.title()}Config"):
        RunConfig(**given)


def test_paths_may_be_strings_everywhere(tmp_path):
    output = OutputConfig(output_dir=str(tmp_path / "runs"), run_name="r")
    config = RunConfig(
        data=DataConfig(batch_size=8, workers=0, root=str(tmp_path / "data")),
        train=TrainConfig(epochs=1, device="cpu"),
        output=output,
    )
    result = train(config, model=net(), dataloaders=splits())
    run = str(result.run_dir)
    assert run == str(tmp_path / "runs" / "noisy" / "r")
    again = resume(run, epochs=2, model=net(), dataloaders=splits())
    assert read_result(RunFolder(Path(run))).val == again.val
    assert RunFolder.find("latest", str(tmp_path / "runs")).path == result.run_dir
    assert DataConfig(source=tmp_path).source == str(tmp_path)


def test_a_random_split_keeps_name_and_classes_and_reads_no_image_for_its_labels(tmp_path):
    for number, name in enumerate(("ant", "bee")):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for row in range(8):
            Image.new("L", (8, 8), 100 * number + row).save(tmp_path / "pets" / name / f"{row}.png")
    whole = ImageFolder(str(tmp_path / "pets"), ToTensor())
    parts = random_split(whole, [12, 4], torch.Generator().manual_seed(0))
    flat = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    result = train(options(tmp_path / "runs", epochs=1), model=flat, dataloaders={"train": parts[0], "val": parts[1]})
    assert result.run_dir.parent.name == "imagefolder"
    assert {"p(ant)", "p(bee)"} <= set(result.predictions("val"))
    assert result.predictions("val")["label"].tolist() == [
        whole.classes[whole.targets[row]] for row in parts[1].indices
    ]


def test_a_network_of_ones_own_is_not_given_what_suits_vits(tmp_path):
    config = RunConfig(train=TrainConfig(epochs=1, device="cpu"), output=OutputConfig(output_dir=tmp_path))
    result = train(config, model=net(), dataloaders=splits())
    chosen = json.loads((result.run_dir / "config.json").read_text())["train"]
    assert (chosen["label_smoothing"], chosen["weight_decay"], chosen["amp"]) == (0.0, 0.01, "off")


def test_a_handler_reaches_everything_by_one_name(tmp_path):
    """Ignite's own example: EarlyStopping on the evaluator, by the validation loss; its end is said and kept."""
    reached = []

    def attach(trainer):
        run = trainer.state.run
        stopping = EarlyStopping(patience=1, score_function=lambda engine: 0.0, trainer=trainer)
        run.evaluator.add_event_handler(Events.COMPLETED, stopping)
        trainer.add_event_handler(
            Events.EPOCH_COMPLETED,
            lambda: reached.append((run.evaluator.state.metrics["accuracy"], run.history[-1]["val_accuracy"])),
        )
        assert run.trainer is trainer
        assert run.optimizer is run.setup.optimizer
        assert run.setup.data.class_names == ("0", "1", "2")

    result = train(options(tmp_path, epochs=8), model=net(), dataloaders=splits(), handlers=[attach])
    assert reached
    assert all(evaluated == kept for evaluated, kept in reached)
    summary = json.loads((result.run_dir / "summary.json").read_text())
    assert (summary["status"], summary["planned_epochs"]) == ("finished", 8)
    assert summary["epochs"] < 8
    assert summary["stopped"] == f"a handler of your own ended the run after {summary['epochs']} of 8 epochs"


@pytest.mark.parametrize(
    "handler",
    [ProgressBar(), ProgressBar, Timer(), None],
    ids=lambda value: str(value)[:9],
)
def test_handlers_that_are_no_functions_of_the_trainer_are_refused_before_anything_is_written(tmp_path, handler):
    with pytest.raises(OptionError, match="attach"):
        train(options(tmp_path), model=net(), dataloaders=splits(), handlers=[handler])
    assert not list(tmp_path.iterdir())
    with pytest.raises(OptionError, match="attach"):
        resume(tmp_path, handlers=[handler])


def pooled():
    return nn.Sequential(nn.Conv2d(1, 4, 8), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3))


@pytest.mark.parametrize(("batch_size", "accumulate", "better"), [(47, 1, 46), (8, 8, 16), (40, 8, 32)])
def test_an_image_alone_is_refused_where_a_batch_norm_needs_two(tmp_path, batch_size, accumulate, better):
    config = options(tmp_path, epochs=1, accumulate=accumulate).changed(data={"batch_size": batch_size})
    with pytest.raises(OptionError, match=rf"--batch-size {better}\b"):
        train(config, model=pooled(), dataloaders=splits())
    assert not list(tmp_path.iterdir())
    train(config.changed(data={"batch_size": better}), model=pooled(), dataloaders=splits())


def wide():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))


@pytest.mark.parametrize("model", [net, wide])
def test_an_image_alone_is_trained_on_where_the_network_can(tmp_path, model):
    config = options(tmp_path, epochs=1).changed(data={"batch_size": 47})
    train(config, model=model(), dataloaders=splits())


@pytest.mark.parametrize("event", [Events.ITERATION_STARTED, Events.EPOCH_COMPLETED])
def test_the_history_names_the_rate_that_the_last_step_of_an_epoch_used(tmp_path, event):
    used = []

    def attach(trainer):
        optimizer = trainer.state.run.optimizer

        def scale():
            for group in optimizer.param_groups:
                group["lr"] *= 0.9

        trainer.add_event_handler(event, scale)
        trainer.add_event_handler(Events.ITERATION_STARTED, lambda: used.append(optimizer.param_groups[0]["lr"]))

    result = train(options(tmp_path, epochs=2), model=net(), dataloaders=splits(), handlers=[attach])
    assert [row["lr"] for row in result.epochs[1:]] == [used[row["step"] - 1] for row in result.epochs[1:]]


def test_a_result_is_short_in_a_shell_and_is_drawn(tmp_path):
    rows = [{"epoch": 0, "val_loss": 1.1, "val_accuracy": 0.3}, {"epoch": 1, "val_loss": 0.7, "val_accuracy": 0.8}]
    result = RunResult(
        tmp_path / "run", 1, {"accuracy": 0.8, "loss": 0.7}, {"accuracy": 0.75, "loss": 0.8}, rows, config=RunConfig()
    )
    assert len(repr(result).splitlines()) == 1
    assert result.scores.loc["test", "accuracy"] == 0.75
    loss, _ = result.plot().axes
    assert [line.get_xydata().tolist() for line in loss.lines if line.get_label() == "val"] == [[[0, 1.1], [1, 0.7]]]


def test_a_step_is_timed_with_no_image_alone(tmp_path):
    config = options(tmp_path, epochs=1, accumulate=2)
    assert measure(prepare(config, given=UserObjects(pooled(), splits())), seconds=0.1).step > 0


@pytest.mark.parametrize("start", [train, train_or_resume])
@pytest.mark.parametrize("given", ["digits", TrainConfig(), None, {"data": "digits"}])
def test_what_is_no_run_config_is_refused_in_a_line(start, given):
    with pytest.raises(OptionError, match="RunConfig"):
        start(given)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("side", "channels"), [(16, 1), (8, 3)])
def test_a_spec_of_another_shape_than_the_models_images_is_refused_before_anything_is_written(
    tmp_path, named, side, channels
):
    config = options(tmp_path, model={"name": "vit_micro_2", "image_size": 8, "in_channels": 1} if named else None)
    spec = ImageSpec(image_size=side, mean=(0.0,) * channels, std=(1.0,) * channels, in_channels=channels)
    with pytest.raises(OptionError, match="image_size=16.*=8" if side == 16 else "in_channels=3.*=1"):
        train(config, model=None if named else net(), dataloaders=splits(), spec=spec)
    assert not [*tmp_path.iterdir()]
