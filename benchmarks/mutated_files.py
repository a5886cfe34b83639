"""Give damaged files to every reader, and tell what becomes of them.

Some are refused in one line, some load unchanged; the rest must not be. Each input is a whole file with one to eight
mutations (bits, bytes, lengths, cuts, copies; in JSON also values). A file of ours that carries a hash loads as it was
or not at all. Each is read in this process as the commands read it, and 20 s are a hang.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import socket
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import main
from comparison.plan import Request
from comparison.planning import find_folder
from comparison.runs import read_run, require_same_data
from datasets.config import DataConfig
from datasets.images import read_image
from datasets.open import read_samples, split_samples
from datasets.sources.archives import unpack
from datasets.split_csv import read_split
from inference.classifier import open_classifier
from inference.export import export
from inference.labels.suspects import write_cleaned
from trainers.config import ModelConfig, OutputConfig, RunConfig, load_config, to_dict
from trainers.engine.handlers import peak_memory_mb, reset_peak_memory
from trainers.storage.checkpoint_file import best_of, load, read_checkpoint, write_checkpoint
from trainers.storage.run_folder import RunFolder, write_json
from trainers.storage.run_result import read_result
from vit.factory import Blueprint, build_model
from vit.torch_files import read_torch_file
from vit.weight_files import read_weights

Reader = Callable[[Path], Any]
HANG = 20  # seconds
SEALED = {"checkpoint", "safetensors", "onnx", "torch", "npz", "zip", "tgz"}
"""Kinds whose files carry checksums: of these none may load with another content."""
NUMBERS = (0, -1, 1, 2**31, 2**63, 10**400, 1e308, float("nan"), float("inf"))
NAMES = ("../..", "../../../../out", "/out", "C:out", "..\\..\\..\\..\\out")
VALUES = (None, True, "", "x" * 1000, [], {}, [[]], *NAMES, "\x1b[2J", "hf:someone/repo", *NUMBERS)


class Hang(BaseException):
    """A reader took too long."""


FAULTS = ("traceback", "hang", "silent change", "outside", "connection", "memory")
"""Outcomes that must not be; the others are refused, and loaded, equal or other."""


def outcomes(numbers: Iterable[int]) -> Iterator[tuple[int, str, str, str]]:
    """Yield of each input its number, its kind, what became of it, and perhaps why."""
    torch.set_num_threads(1)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        targets = targets_in(Path(folder))
        for number in numbers:
            kind = list(targets)[number % len(targets)]
            yield number, kind, *one(kind, *targets[kind], seed=number)


def one(kind: str, whole: Path, read: Reader, *, seed: int) -> tuple[str, str]:
    """Return what became of one mutated file, and perhaps why."""
    rng, as_it_was = random.Random(seed), expected(whole, read)
    target = whole.with_name("mutated") / whole.name
    target.parent.mkdir(exist_ok=True)
    if whole.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(whole, target)
        damage(rng.choice(sorted(path for path in whole.rglob("*") if path.is_file())), whole, target, rng)
    else:
        damage(whole, whole, target, rng)
    beside = {path for path in whole.parent.rglob("*") if "mutated" not in path.parts}
    reset_peak_memory(torch.device("cpu"))
    before = peak_memory_mb(torch.device("cpu")) or 0.0
    try:
        with watched() as asked:
            found = read(target)
        outcome, detail = ("loaded, equal" if digest(found) == as_it_was else "loaded, other"), ""
        if outcome == "loaded, other" and kind in SEALED:
            outcome = "silent change"
    except Hang:
        outcome, detail = "hang", ""
    except Exception as error:
        own = hasattr(error, "exit_code") or isinstance(error, OSError)
        outcome, detail = ("refused" if own else "traceback"), f"{type(error).__name__}: {error}"[:300]
    if asked:
        outcome = "connection"
    now = {path for path in whole.parent.rglob("*") if "mutated" not in path.parts}
    if now != beside:
        outcome, detail = "outside", str(now ^ beside)
    if (peak_memory_mb(torch.device("cpu")) or 0.0) > before + 1000:
        outcome = "memory"
    return outcome, detail


def damage(file: Path, whole: Path, target: Path, rng: random.Random) -> None:
    content = file.read_bytes()
    (target / file.relative_to(whole)).write_bytes(
        mutated_json(content, rng) if file.suffix == ".json" and rng.random() < 0.5 else mutated(content, rng)
    )


@contextmanager
def watched() -> Iterator[list[Any]]:
    """End the block after 20 s; yield the addresses that it asks for."""
    asked: list[Any] = []

    def alarm(*_: Any) -> None:
        raise Hang

    def refuse(self: Any, address: Any) -> None:
        asked.append(address)
        raise ConnectionRefusedError

    connect, socket.socket.connect = socket.socket.connect, refuse  # type: ignore[method-assign,assignment]
    usual = signal.signal(signal.SIGALRM, alarm)
    signal.alarm(HANG)
    try:
        yield asked
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, usual)
        socket.socket.connect = connect  # type: ignore[method-assign]


def mutated(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        place = rng.randrange(len(data) + 1) if rng.random() < 0.5 else rng.randrange(min(len(data), 4096) + 1)
        length = rng.choice((1, 2, 4, 8, 64, 1024))
        kind = rng.randrange(7)
        if kind == 0 and place < len(data):
            data[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[place : place + length] = rng.randbytes(length)
        elif kind == 2:
            del data[place : place + length]
        elif kind == 3:
            data[place:place] = data[max(0, place - length) : place] * rng.choice((1, 2, 50))
        elif kind == 4:
            data[place : place + 4] = rng.choice((0, 1, 2**31, 2**32 - 1)).to_bytes(4, rng.choice(("little", "big")))
        elif kind == 5:
            del data[place:]
        else:
            data[place:place] = rng.choice((b"\0", b"[" * 5000, b'"', b"\xff\xfe", b"=1+1", b"../", b"\r\n", b"1e999"))
    return bytes(data)


def mutated_json(content: bytes, rng: random.Random) -> bytes:
    return json.dumps(mutated_tree(json.loads(content), rng)).encode()


def mutated_tree(tree: Any, rng: random.Random) -> Any:
    """Return the same with one value, somewhere, of another type, length or range."""
    if isinstance(tree, dict) and tree and rng.random() < 0.8:
        name = rng.choice(list(tree))
        if rng.random() < 0.15:
            return {key: value for key, value in tree.items() if key != name}
        return tree | {name: mutated_tree(tree[name], rng)}
    if isinstance(tree, list) and tree and rng.random() < 0.5:
        place = rng.randrange(len(tree))
        return [*tree[:place], mutated_tree(tree[place], rng), *tree[place + 1 :]]
    return rng.choice(VALUES)


def targets_in(folder: Path) -> dict[str, tuple[Path, Reader]]:
    """Make a file of each kind in its own folder; return each with its reader."""
    config = RunConfig(model=Blueprint(ModelConfig(name="vit_micro_2", weights="none")).resolved)
    model = build_model(config.model, num_classes=3)
    torch.manual_seed(0)
    facts = {
        "model": model.state_dict(), "epoch": 1, "format_version": 3, "class_names": ["ant", "bee", "cat"],
        "image_spec": to_dict(Blueprint(config.model).image_spec), "config": to_dict(config),
    }  # fmt: skip

    def place(name: str) -> Path:
        path = folder / name.partition(".")[0] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    run = folder / "run"
    write_checkpoint(run / "checkpoints" / "best.safetensors", facts)
    RunFolder(run).write_config(config)
    commands = of_commands(folder)
    trained = commands["run directory"][0]
    shutil.copy(trained / "meta.json", run)
    files: dict[str, tuple[Path, Reader]] = {"checkpoint": (place("some.safetensors"), read_checkpoint)}
    files["checkpoint"][0].write_bytes(best_of(run).read_bytes())
    facts_file = place("facts.json")
    facts_file.write_text(json.dumps({name: value for name, value in facts.items() if name != "model"}))

    def with_facts(path: Path) -> Any:
        again = json.loads(
            path.read_text(encoding="utf-8", errors="replace")
        )  # what is no JSON is no input of this kind
        other = path.parent / "run"
        write_checkpoint(other / "checkpoints" / "best.safetensors", {"model": model.state_dict()} | again)
        RunFolder(other).write_config(config)
        return open_classifier(str(other), device="cpu").model.state_dict()

    files["facts of a checkpoint"] = (facts_file, lambda path: with_facts(path) if is_object(path) else refuse(path))
    classifier = open_classifier(str(run), device="cpu")
    for kind in ("safetensors", "onnx"):
        export(classifier, kind, place(f"export_{kind}.{kind}"), images=[])
        opened = place(f"export_{kind}.{kind}")
        files[kind] = (opened, lambda path: open_classifier(str(path), device="cpu").logits(torch.zeros(1, 3, 8, 8)))
    torch.save(model.state_dict(), place("old.pth"))
    files["torch"] = (place("old.pth"), read_torch_file)
    np.savez(place("arrays.npz"), **{name: value.numpy() for name, value in model.state_dict().items()})
    files["npz"] = (place("arrays.npz"), lambda path: read_weights(path).tensors)
    place("config.json").write_bytes((run / "config.json").read_bytes())
    files["config.json"] = (place("config.json"), lambda path: RunFolder(path.parent).config)
    place("meta.json").write_bytes((run / "meta.json").read_bytes())
    files["meta.json"] = (place("meta.json"), lambda path: RunFolder(path.parent).meta)
    shutil.copy(trained / "summary.json", place("summary.json"))
    files["summary.json"] = (place("summary.json"), lambda path: RunFolder(path.parent).summary)
    place("recipe.toml").write_text(
        '[train]\nlr = 0.01\nepochs = 3\n[model]\nname = "vit_micro_2"\n[data]\nsource = "digits"\n'
    )
    files["toml"] = (place("recipe.toml"), load_config)
    place("split.csv").write_text("path,label,split,hash\n" + "".join(f"{n}.png,{n % 3},train,ab\n" for n in range(30)))
    files["split.csv"] = (place("split.csv"), read_split)
    return files | of_images(place) | commands


def of_commands(folder: Path) -> dict[str, tuple[Path, Reader]]:
    """Make what commands leave for later ones: a run directory, and a comparison's file.

    Of the run directory one file is damaged."""
    good, output = folder / "whole" / "digits" / "run", folder / "comparing" / "out"
    words = ["--labels-per-class", "2", "--model", "vit_micro_2", "--epochs", "1", "--workers", "0", "--tb", "scalars"]
    with redirect_stdout(StringIO()):
        main.main(["train", *words, "--output-dir", str(good.parent.parent), "--run-name", "run", "--device", "cpu"])
    request = Request(RunConfig(output=OutputConfig(output_dir=output)), ())
    begun = folder / "comparing" / "compare.json"
    begun.parent.mkdir()
    write_json(begun, {"status": "running", "requested": to_dict(request), "threads": 1})

    def of_run(path: Path) -> Any:
        with redirect_stdout(StringIO()):
            run, result, loaded = read_run(path), read_result(RunFolder(path)), load(path)
        require_same_data([run, read_run(good)])
        return run.predictions.to_dict("list"), result.epochs, loaded[0].state_dict(), loaded[2]

    def of_comparison(path: Path) -> Any:
        place = output / "digits" / "begun" / "compare.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
        with redirect_stdout(StringIO()):
            return find_folder(request)[1]

    return {"run directory": (good, of_run), "compare.json": (begun, of_comparison)}


def of_images(place: Callable[[str], Path]) -> dict[str, tuple[Path, Reader]]:
    """Make pictures, tables of them and archives of both."""
    files: dict[str, tuple[Path, Reader]] = {}
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8))
    for ending in ("jpg", "png", "tiff", "webp", "bmp", "gif", "ppm"):
        picture.save(place(f"picture_{ending}.{ending}"))
        files[ending] = (place(f"picture_{ending}.{ending}"), lambda path: np.asarray(read_image(path)))
    table = place("table.csv")
    for number in range(6):
        for folder in (table.parent, table.parent / "mutated"):
            folder.mkdir(exist_ok=True)
            picture.save(folder / f"{number}.png")
    table.write_text("path,label\n" + "".join(f"{n}.png,{'ab'[n % 2]}\n" for n in range(6)))
    files["table"] = (table, lambda path: list(read_samples(DataConfig(source=str(path))).paths))
    names = place("members.json")
    names.write_text(json.dumps({str(number): f"{'ab'[number % 2]}/{number}" for number in range(20)}))
    files["names in a shard"] = (names, lambda path: cleaned_in(path, table.with_name("0.png").read_bytes()))
    archive = place("photos.zip")
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        for number in range(6):
            opened.write(table.with_name(f"{number}.png"), f"{'ab'[number % 2]}/{number}.png")
    files["zip"] = (archive, unpacked)
    for name, mode in (("photos_tar.tar", "w"), ("photos_tgz.tar.gz", "w:gz")):
        with tarfile.open(place(name), mode) as opened:  # type: ignore[call-overload]
            opened.add(table.with_name("0.png"), "a/0.png")
            opened.add(table.with_name("1.png"), "b/1.png")
        files[name.partition("_")[2].partition(".")[0]] = (place(name), unpacked)
    return files


def unpacked(path: Path) -> Any:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        target = unpack(path, Path(folder) / "in" / "here")
        assert {other.name for other in Path(folder).iterdir()} == {"in"}
        return sorted((other.name, other.read_bytes()) for other in target.rglob("*") if other.is_file())


def cleaned_in(path: Path, picture: bytes) -> Any:
    """Return what `clean` writes of a shard whose members have the names in a file.

    Each has this picture and a label."""
    names = json.loads(path.read_text(encoding="utf-8", errors="replace")) if is_object(path) else refuse(path)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        home = Path(folder) / "some" / "where"
        (home / "shards").mkdir(parents=True)
        (home / "clean").mkdir()
        with tarfile.open(home / "shards" / "set.tar", "w") as opened:
            for number, name in enumerate(names.values()):
                add_member(opened, f"{name}.png", picture)
                add_member(opened, f"{name}.cls", b"ab"[number % 2 :][:1])
        write_cleaned(home / "clean" / "cleaned.csv", split_samples(DataConfig(source=str(home / "shards"))), [])
        inside = home / "clean" / "images" / "set.tar"
        return sorted(str(file.relative_to(inside)) for file in Path(folder).rglob("*.png"))  # an error: outside


def add_member(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, BytesIO(content))


def is_object(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_text(encoding="utf-8", errors="replace")), dict)
    except (ValueError, RecursionError):
        return False


def refuse(path: Path) -> None:
    raise OSError(f"{path} is no JSON: nothing that could be written into a checkpoint")


def expected(whole: Path, read: Reader) -> str:
    if whole not in _EXPECTED:
        _EXPECTED[whole] = digest(read(whole))
    return _EXPECTED[whole]


_EXPECTED: dict[Path, str] = {}


def digest(found: Any) -> str:
    """Return a hash of a content, to the bit."""
    summary = hashlib.sha256()

    def take(value: Any) -> None:
        if isinstance(value, dict):
            for name in sorted(value, key=str):
                summary.update(str(name).encode("utf-8", "surrogateescape"))
                take(value[name])
        elif isinstance(value, torch.Tensor):
            take(value.detach().contiguous().numpy())
        elif isinstance(value, np.ndarray):
            summary.update(str((value.shape, value.dtype)).encode() + value.tobytes())
        else:
            summary.update(repr(value).encode("utf-8", "surrogateescape"))

    take(found)
    return summary.hexdigest()
