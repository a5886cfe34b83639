"""A person's mistake is one line with exit code 2 or 3, in every command; a bug is not taken for one."""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_run import call, make_run, tiny_run

from common.errors import OptionError
from common.image_spec import ImageSpec
from common.shell import PROGRAM
from datasets import DataConfig, DataError
from datasets.loaders import CPU
from datasets.open import OpenedImages, open_samples
from datasets.split import assign_splits
from inference.evaluate import evaluate_run
from trainers.resolve import UserObjects, read_data
from trainers.run import train
from trainers.storage.run_folder import RunFolder
from trainers.system import distributed
from vit.config import ModelConfig

OPEN = "train --data digits --labels-per-class 3 --epochs 1 --output-dir {folder}/out "
TRAIN = f"{OPEN}--device cpu --model vit_micro_2 "
COMPARE = "compare --data digits --labels-per-class 4 --device cpu --workers 0 --tb scalars"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of a ViT, one of a network without attention, and a picture."""
    folder = tmp_path_factory.mktemp("mistakes")
    train(tiny_run(folder, run_name="vit").changed(train={"epochs": 1, "amp": "off"}))
    make_run(folder / "digits" / "resnet", name="resnet18", image_size=8)
    Image.fromarray(np.full((9, 9, 3), 70, np.uint8)).save(folder / "a.png")
    files = {"folds": "[data]\nfolds = 1", "mean": "mean = [0.1, 0.2]", "dropout": "dropout = 0.1"}
    files |= {"warmup": "warmup-epochs = 5", "fraction": "data.fraction = 0.5", "fold": "folds = 100000\nfold = 1"}
    files["fit"] = 'start-head = "fit"\ntrainable = "head"\naugment = "none"'
    files |= {"section": "epochs = 3\ntrain = 5", "output": 'output = 5\noutput-dir = "x"', "top": "data = 3"}
    files |= {"model": "model = 'resnet18'", "patience": "patience = 3", "three_folds": "folds = 3"}
    for name, content in files.items():
        (folder / f"{name}.toml").write_text(content)
    (folder / "model.onnx").write_bytes(b"anything")
    (folder / "empty").mkdir()
    (folder / "photos").mkdir()
    shutil.copy(folder / "a.png", folder / "photos")
    return folder


MISTAKES = [  # a command, words of its answer, and its exit code unless that is 2
    (TRAIN + "--seed -1", "seed=-1"),
    (TRAIN + "--trainable last:99", "4 blocks"),
    (TRAIN + "--trainable lora:65", "lora:65"),
    (TRAIN + "--image-size 7", "nearest: 6, 8"),
    (TRAIN + "--image-size 99999999999", "at most 4096"),
    (TRAIN + "--config {folder}/mean.toml", "in_channels=3"),
    (TRAIN + "--config {folder}/folds.toml", "folds=1"),
    (TRAIN + "--layer-norm-eps 1e-5", "--layer-norm-eps"),
    (OPEN + "--model timm:nonsense", "timm"),
    (OPEN + "--model resnet18 --weights none --config {folder}/dropout.toml", "no option dropout"),
    (TRAIN + "--config {folder}/warmup.toml", "warmup_epochs=5"),
    (TRAIN + "--accumulate 1000", "accumulate=1000"),
    (TRAIN + "--config {folder}/fold.toml", "use fewer folds", 3),
    (TRAIN + "--config {folder}/fit.toml --find-lr", "fitted at once"),
    ("train {folder} --find-lr", "--model"),
    (TRAIN + "--config {folder}/fraction.toml", "give one of them"),
    (TRAIN + "--val-fraction 0.5 --test-fraction 0.5", "val_fraction=0.5"),
    (TRAIN + "--val-fraction 1e-9", "no val images", 3),
    (OPEN + "--device cpu:3", "'cpu:3'"),
    (TRAIN + "--run-name ..", "run_name='..'"),
    ("resume {folder}/digits/vit --epochs 0", "epochs=0"),
    ("resume {folder}/digits/vit --epochs 0.05", "epochs=0.05"),
    ("evaluate {folder}/digits/vit --data {folder}/empty", "{folder}/empty", 3),
    ("evaluate {folder}/a.png", "{folder}/a.png is not a run directory", 3),
    ("predict {folder}/digits/vit {folder}/a.png --top 0", "top=0"),
    ("explain {folder}/digits/vit {folder}/a.png --layer 99", "layers 0 to 3"),
    ("explain {folder}/digits/vit {folder}/a.png --layer 0 --head 99", "heads 0 to 3"),
    ("explain {folder}/digits/vit {folder}/a.png --target zebra", "'zebra'"),
    ("explain {folder}/digits/resnet {folder}/a.png --layer 0", "no attention weights"),
    ("explain {folder}/digits/resnet {folder}/a.png --method rollout", "no attention weights"),
    ("explain {folder}/digits/resnet {folder}/a.png --method nonsense", "integrated-attnlrp"),
    ("export {folder}/digits/vit --images {folder}/empty", "no image to compare on", 3),
    ("check digits --workers -1", "workers=-1"),
    ("check digits --sample 0", "sample=0"),
    ("summary --model vit_tiny_16 --image-size 100", "nearest: 96, 112"),
    ("summary --num-classes 0", "num_classes=0"),
    ("compare --arms vit_micro_2,lr=-1 vit_micro_2", "lr=-1.0"),
    ("compare {folder}/digits/vit", "nothing to compare it with"),
    ("train digits --config {folder}/section.toml", "section.toml: train must be a table"),
    ("train digits --config {folder}/output.toml", "output must be a table"),
    ("train --config {folder}/top.toml", "source=3"),
    ("compare --config finetune-small", "a recipe is for"),
    ("compare --arms vit_nano_8,mean=0.5 vit_nano_8", "'mean=0.5'"),
    ("compare --arms vit_nano_8,weights=a,b.pth vit_nano_8", "a,b.pth: no such", 3),
    ("rank digits --models vit_nano_8,weights=fashion_mnist,lr=0.1", "lr=0.1"),
    ("rank digits --models fashion_mnist vit_nano_8,weights=fashion_mnist", "the same"),
    ("rank {folder}/nowhere/x", "no data at {folder}/nowhere/x", 3),
    ("pack {folder}/empty", "path/to/images FOLDER"),
    ("summary vit_tiny_16", "summary --help"),
    ("evaluate {folder}/digits", "'vit'", 3),
    ("train digits --weights auto --config scratch-small", "--config scratch-small"),
    ("tain", "unknown command 'tain'; did you mean train?"),
    ("train --model vit_tinny_16", "did you mean vit_tiny_16?"),
    ("train digit", "did you mean digits?"),
    ("train digits --data fashion_mnist", "digits and --data fashion_mnist: name one set of images"),
    ("train digits fashion_mnist", "unrecognized arguments: fashion_mnist"),
    ("train --images digits", "unknown option --images"),
    ("check --data digit", "did you mean digits?"),
    ("pack out --data=digit", "did you mean digits?"),
    ("check --data", "--data: expected one"),
    ("check", f"name the images: {PROGRAM} check path/to/images"),
    ("train --model xyzzy", "unknown model 'xyzzy'. Known: vit_micro_2"),
    ("train --epoch 3", "unknown option --epoch; did you mean --epochs?"),
    ("train --batch_size 3", "unknown option --batch_size; here it is --batch-size."),
    ("train --resume x", "unknown option --resume; here it is the command `resume RUN`."),
    ("train --epochs many", "--epochs: 'many' is not INT or FLOAT"),
    ("train --config finetune-smal", "did you mean finetune-small?"),
    ("train --device", "--device: expected one"),
    ("train --device gpu", "unknown device 'gpu'; known: auto, cpu, cuda, cuda:N, mps"),
    ("train --device cpu --amp fp16", "--amp fp16 needs a GPU; on this device use bf16 or off"),
    ("train --split split.csv --folds 3", "folds draw their own split; leave out split"),
    ("train --mean 0.5", "--config FILE with the line model.mean = VALUE"),
    ("compare --pool mean", "--arms MODEL,pool=VALUE"),
    ("evaluate latest --pool mean", "unknown option --pool"),
    ("compare digits", f"digits is not a run directory; to train models on images: {PROGRAM} compare --data digits"),
    ("compare .", f". is not a run directory; to train models on images: {PROGRAM} compare --data ."),
    ("evaluate latest again", "unrecognized arguments: again"),
    ("train --device cuda:99", "device 'cuda:99' is not there"),
    ("train --weights nothing.pth", "nothing.pth", 3),
    ("train --config nothing.json", "nothing.json"),
    ("evaluate nowhere", "nowhere is not a run directory: it does not exist", 3),
    ("evaluate latest", "no run in runs/", 3),
    ("evaluate", "RUN"),
    ("evaluate {folder}/digits/vit --data nowhere/", "no data at nowhere", 3),
    ("evaluate weights.pth", "weights.pth brings no images; name labelled ones with --data"),
    ("evaluate {folder}/digits/vit --split dev", "dev"),
    ("evaluate {folder}/digits/vit --output-dir x", "--output-dir is where `latest`"),
    ("evaluate {folder}/digits/vit --data digits --label-column l", "digits is a built-in set"),
    ("predict {folder}/digits/vit", "no images named"),
    ("predict nowhere a.png", "nowhere is not a run directory", 3),
    ("predict {folder}/digits/vit a.png --grid-images 9", "--grid FILE.png"),
    ("predict {folder}/digits/vit a.png --device cuda:99", "is not there"),
    ("predict {folder}/digits/vit a.png --output /proc/nothing/x.csv", "cannot write /proc/nothing/x.csv"),
    ("serve {folder}/digits/vit --max-megabytes 1e303", "max_megabytes=1e+303"),
    ("next {folder}/photos -n 0", "number=0 must be"),
    ("next {folder}/photos --port 0", "--port is of the page of --review"),
    ("next {folder}/photos --labelled digits", "digits is not made of files", 3),
    ("rank digits --models vit_nano_9", "did you mean vit_nano_8?"),
    ("rank digits --models vit_nano_8,weights=gone.pth", "none of these models can be had", 3),
    ("export {folder}/model.onnx", "is an export itself; export the run or the weights it came from"),
    ("export RUN --format safetensors --input picture", "--input"),
    (f"{COMPARE} --arms vit_micro_2 vit_micro_4 --plan-only --minutes 5", "--plan-only"),
    (f"{COMPARE} --arms vit_micro_2 vit_micro_4 --plan-only --on slurm", "--plan-only"),
    ("compare --on time=3", "must be slurm"),
    ("compare --on slurm gres", "'gres' is not KEY=VALUE"),
]
MISTAKES += [
    (f"evaluate {{folder}}/digits/vit {words}", words.split()[0])
    for words in (
        "--output o", "--model vit_micro_4", "--class-names n.txt", "--group folder", "--path-column p",
        "--label-column l", "--exclude t.csv", "--on-bad-image skip",  # for other images than those of a run
    )
]  # fmt: skip
OF_ARMS = [
    ("--arms vit_nano_8", "two models"),
    ("--arms vit_nano_8 vit_nano_9", "did you mean vit_nano_8?"),
    ("--arms vit_nano_8 vit_nano_8", "two models are the same"),
    ("--arms vit_nano_8 vit_nano_8,epochs=3", "'epochs=3'"),
    ("--arms vit_nano_8 vit_nano_8,lr=fast", "'fast'"),
    ("--arms vit_nano_8 vit_nano_8,weights=absent.pth", "absent.pth", 3),
    ("--arms vit_nano_8 vit_micro_4,weights=fashion_mnist", "vit_nano_8"),
    ("--model resnet18", "--arms"),
    ("--config {folder}/model.toml", "--arms"),
    ("--config {folder}/patience.toml", "patience"),
    ("--config {folder}/three_folds.toml", "folds"),
    ("--seeds 0", "seeds=0"),
    ("--labels 5", "--labels-per-class"),
    ("--labels-per-class ten", "labels=('ten',)"),
    ("--labels-per-class 5 --config {folder}/fraction.toml", "fraction"),
    ("--tune-lr 0", "greater than 0"),
    ("--tune-lr on 0.1", "tune_lr"),
    ("--batch-size 4", "--arms MODEL,batch_size=VALUE"),
    ("runs/absent", "runs/absent"),
    ("runs/absent runs/none --arms vit_nano_8", "not both"),
]
MISTAKES += [(f"compare {words} --output-dir {{folder}}/out --device cpu", *answer) for words, *answer in OF_ARMS]


@pytest.mark.parametrize(
    ("line", "said", "code"),
    [pytest.param(*(*row, 2)[:3], id=row[0].replace(TRAIN, "train ").replace("{folder}/", "")) for row in MISTAKES],
)
def test_mistake_is_one_line_and_leaves_nothing(capsys, folder, tmp_path, monkeypatch, line, said, code):
    monkeypatch.chdir(tmp_path)
    found, _, error = call(capsys, *shlex.split(line.format(folder=folder)))
    assert (found, error[:7], error.count("\n")) == (code, "error: ", 1), error
    assert said.replace("{folder}", str(folder)) in error
    assert not (folder / "out").exists()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def data_for(folder: Path, processes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "world_size", lambda: processes)
        config = tiny_run(folder).changed(data={"batch_size": processes})
        read_data(config, ImageSpec(), UserObjects(), OpenedImages(), None, CPU)


@pytest.mark.parametrize(
    ("mistaken", "said"),
    [
        (lambda _: ImageSpec(mean=(0.5,)), "mean has 1 values"),
        (lambda _: ImageSpec(image_size=0), "image_size=0"),
        (lambda _: ImageSpec(mean=(), std=(), in_channels=0), "in_channels=0"),
        (lambda _: ModelConfig(image_size=0), "image_size=0"),
        (lambda _: ImageSpec(image_size=4097), "at most 4096"),
        (lambda _: ImageSpec(std=(0.5, 0.0, 0.5)), "std=(0.5, 0.0, 0.5)"),
        (lambda _: ImageSpec(crop_fraction=0.0), "crop_fraction=0.0"),
        (lambda _: assign_splits(open_samples(DataConfig(source="digits")), DataConfig(folds=3)), "needs fold"),
        (lambda folder: evaluate_run(RunFolder(folder / "digits/vit"), split="extra"), "no extra split"),
        (lambda folder: data_for(folder, 55), "too few for 55 processes"),
    ],
)
def test_mistake_in_python_says_what_would_work(folder, mistaken, said):
    with pytest.raises((DataError, OptionError), match=re.escape(said)):
        mistaken(folder)


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("vit.factory.Blueprint.build", "summary --model vit_micro_2"),
        ("vit.factory.Blueprint.build", TRAIN),
        ("datasets.open.open_samples", TRAIN),
        ("inference.explain.maps_of", "explain {folder}/digits/vit {folder}/a.png"),
        ("inference.page.document.maps_of", "explain {folder}/digits/vit {folder}/a.png --page"),
    ],
)
def test_bug_is_not_taken_for_a_wrong_option(capsys, monkeypatch, folder, place, line):
    """Each ValueError, of numpy or of whatever a program gives, read as a mistake on the command line."""

    def broken(*_args, **_options):
        raise ValueError("operands could not be broadcast together")

    monkeypatch.setattr(place, broken)
    code, _, error = call(capsys, *shlex.split(line.format(folder=folder)))
    assert code == 1
    assert "Traceback" in error
    assert error.endswith("operands could not be broadcast together\n")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("train digits --val 0.2", "--val-fraction"), ("train digits --freeze", "--trainable"),
        ("train digits --gpu 0", "--device"), ("train digits --gpus 2", "torchrun"),
        ("train digits --qwert 2", None), ("predict r --lr 2", None),
    ],
)  # fmt: skip
def test_misspelt_option_names_the_one_that_was_meant(capsys, words, meant):
    code, _, error = call(capsys, *words.split())
    assert code == 2
    assert re.findall(r"(?:did you mean|here it is) (\S+?)[?.,]", error) == ([meant] if meant else [])


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("train --data a --data b", "--data"), ("check --data a --data b", "--data"),
        ("train a --lr -1 --lr=-2", "--lr"), ("compare --arms a --arms b c", "--arms"),
        ("predict r a.png --top 1 --top 2", "--top"),
    ],
)  # fmt: skip
def test_option_given_twice_is_named(capsys, words, option):
    code, _, error = call(capsys, *words.split())
    assert code in (2, 3)
    assert option in error.splitlines()[0]
    assert "twice" in error.splitlines()[0]


def test_pictures_without_classes_lead_to_next(capsys, folder, tmp_path):
    (tmp_path / "photo.png").write_bytes((folder / "a.png").read_bytes())
    code, _, error = call(capsys, "train", tmp_path)
    assert (code, f"next {tmp_path} --review" in error) == (3, True)


def test_what_follows_two_dashes_is_no_option(capsys, folder, tmp_path, monkeypatch):
    (tmp_path / "--x.png").write_bytes((folder / "a.png").read_bytes())
    monkeypatch.chdir(tmp_path)
    code, out, error = call(capsys, "predict", folder / "digits/vit", "--", "--x.png")
    assert (code, len(out.splitlines())) == (0, 2), error


def test_misspelt_folder_names_the_one_that_is_there(capsys, tmp_path, monkeypatch):
    (tmp_path / "scenes").mkdir()
    monkeypatch.chdir(tmp_path)
    code, _, error = call(capsys, "train", "scnes")
    assert (code, "did you mean scenes?" in error) == (2, True)
