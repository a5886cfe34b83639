"""Folders and tables of made-up photographs with known faults in them: the oracle of the tests of `check`.

Shares no code with `check`: only Pillow, NumPy and the file system.
"""

import io
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

Planted = set[tuple[str, str]]
"""(kind, path of the file or name of the class) of every fault."""


def photograph(seed: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    """A picture with the 1/f spectrum of photographs (Field, 1987), different for every seed."""
    rng = np.random.default_rng(seed)
    width, height = size
    frequency = np.hypot(np.fft.fftfreq(height)[:, None] * height, np.fft.fftfreq(width)[None] * width)
    frequency[0, 0] = np.inf
    planes = []
    shared = rng.standard_normal((height, width))
    for _ in range(3):
        noise = shared + 0.4 * rng.standard_normal((height, width))
        plane = np.fft.ifft2(np.fft.fft2(noise) / frequency**1.2).real
        planes.append(128 + 50 * plane / plane.std())
    return Image.fromarray(np.stack(planes, -1).clip(0, 255).astype(np.uint8))


def save(image: Image.Image, path: Path, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)  # type: ignore[arg-type]
    return path


def clean_folder(root: Path, *, classes: tuple[str, ...] = ("ant", "bee"), train: int = 7, val: int = 3) -> Path:
    """`root/{train,val}/<class>/NN.jpg` without any fault, with what a clean folder may hold beside images."""
    seed = 0
    for split, count in (("train", train), ("val", val)):
        for label in classes:
            for k in range(count):
                size = (160, 120) if k % 2 else (120, 150)
                save(photograph(1000 * sum(map(ord, root.name)) + seed, size), root / split / label / f"{k:02}.jpg")
                seed += 1
    (root / "README.md").write_text("Photographs.")
    (root / "train" / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    (root / "train" / classes[0] / "Thumbs.db").write_bytes(b"\xd0\xcf\x11\xe0")
    return root


def faulty_folder(root: Path) -> Planted:
    """A folder with every fault that a folder can have; returns them."""
    clean_folder(root, train=60)
    planted: Planted = set()
    for plant in (_broken_files, _odd_files, _strays, _classes, _copies, _near_copies):
        planted |= plant(root)
    return planted


def _broken_files(root: Path) -> Planted:
    ant = root / "train" / "ant"
    jpeg, png = io.BytesIO(), io.BytesIO()
    photograph(1).save(jpeg, "JPEG")
    photograph(2).save(png, "PNG")
    (ant / "cut.jpg").write_bytes(jpeg.getvalue()[: len(jpeg.getvalue()) * 2 // 3])
    (ant / "cut.png").write_bytes(png.getvalue()[: len(png.getvalue()) // 2])
    (ant / "empty.jpg").write_bytes(b"")
    (ant / "header.jpg").write_bytes(b"\xff\xd8\xff" + bytes(500))
    (ant / "zeros.jpg").write_bytes(bytes(4000))
    (ant / "page.jpg").write_text("<!DOCTYPE html><html><body>404</body></html>")
    (ant / "noise.png").write_bytes(np.random.default_rng(0).bytes(3000))
    (ant / "bomb.png").write_bytes(png_header(60_000, 60_000))
    (ant / "link.jpg").symlink_to(root / "nowhere.jpg")
    damaged = bytearray(png.getvalue())
    damaged[len(damaged) // 2 : len(damaged) // 2 + 20] = bytes(20)
    (ant / "damaged.png").write_bytes(damaged)
    return {
        ("truncated", "train/ant/cut.jpg"),
        ("truncated", "train/ant/cut.png"),
        ("zero_bytes", "train/ant/empty.jpg"),
        ("unreadable", "train/ant/header.jpg"),
        ("unreadable", "train/ant/zeros.jpg"),
        ("unreadable", "train/ant/damaged.png"),
        ("not_an_image", "train/ant/page.jpg"),
        ("not_an_image", "train/ant/noise.png"),
        ("decompression_bomb", "train/ant/bomb.png"),
        ("broken_link", "train/ant/link.jpg"),
    }


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims to be huge and holds next to nothing."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def _odd_files(root: Path) -> Planted:
    bee = root / "train" / "bee"
    save(photograph(10), bee / "really_png.jpg", format="PNG")
    save(Image.new("RGB", (160, 120), (200, 30, 30)), bee / "red.png")
    save(Image.new("1", (90, 60)), root / "train" / "bee" / "poster.png")
    save(photograph(12), bee / "animation.gif")
    (bee / "notes.txt").write_text("to do")
    (bee / "._07.jpg").write_bytes(b"\0\5\x16\7")
    return {
        ("wrong_extension", "train/bee/really_png.jpg"),
        ("blank_image", "train/bee/red.png"),
        ("blank_image", "train/bee/poster.png"),
        ("unread_picture", "train/bee/animation.gif"),
        ("unsupported_file", "train/bee/notes.txt"),
    }


def _strays(root: Path) -> Planted:
    save(photograph(20), root / "lost.jpg")
    save(photograph(21), root / "val" / "lost.png")
    save(photograph(22), root / "extra" / "ant" / "1.jpg")
    save(photograph(23), root / "train" / ".ipynb_checkpoints" / "1-checkpoint.jpg")
    save(photograph(24), root / "train" / "ant" / ".trash" / "1.jpg")
    save(photograph(25), root / "test" / "unlabelled.jpg")
    (root / "train" / "ant" / "loop").symlink_to(root / "train")
    return {
        ("stray_image", "lost.jpg"),
        ("stray_image", "val/lost.png"),
        ("stray_folder", "extra"),
        ("hidden_folder", "train/.ipynb_checkpoints"),
        ("hidden_folder", "train/ant/.trash"),
        ("split_without_classes", "test"),
        ("broken_link", "train/ant/loop"),
    }


def _classes(root: Path) -> Planted:
    (root / "train" / "wasp").mkdir()
    (root / "train" / "hornet").mkdir()
    save(photograph(31), root / "train" / "hornet" / "1.gif")
    save(photograph(30), root / "val" / "moth" / "1.jpg")
    for k in range(3):
        save(photograph(40 + k), root / "train" / "Bee" / f"{k}.jpg")
    for k in range(6):
        save(photograph(50 + k), root / "train" / "ant " / f"{k}.jpg")
    return {
        ("class_without_images", "wasp"),
        ("empty_class", "hornet"),
        ("unread_picture", "train/hornet/1.gif"),
        ("class_not_in_train", "moth"),
        ("class_names_differ_in_case", "bee"),
        ("class_folders_same", "ant "),
        ("class_missing", "Bee"),
        ("class_missing", "ant "),
        ("few_images", "Bee"),
        ("imbalance", "Bee"),
    }


def _copies(root: Path) -> Planted:
    shutil.copy(root / "train" / "ant" / "00.jpg", root / "train" / "ant" / "x_again.jpg")
    shutil.copy(root / "train" / "ant" / "01.jpg", root / "val" / "ant" / "leak.jpg")
    shutil.copy(root / "train" / "ant" / "02.jpg", root / "train" / "bee" / "clash.jpg")
    shutil.copy(root / "train" / "ant" / "03.jpg", root / "val" / "bee" / "both.jpg")
    return {
        ("duplicate", "train/ant/x_again.jpg"),
        ("duplicate_across_splits", "val/ant/leak.jpg"),
        ("duplicate_with_two_labels", "train/bee/clash.jpg"),
        ("duplicate_across_splits", "val/bee/both.jpg"),
        ("duplicate_with_two_labels", "val/bee/both.jpg"),
    }


def _near_copies(root: Path) -> Planted:
    planted: Planted = set()
    for k, (name, change) in enumerate(EDITS.items()):
        source = Image.open(root / "train" / "bee" / f"{k:02}.jpg")
        target = f"val/bee/{name}.jpg"
        (root / target).write_bytes(as_jpeg(change(source)))
        planted.add(("near_duplicate_across_splits", target))
    source = Image.open(root / "train" / "bee" / "20.jpg")
    (root / "train" / "bee" / "y_small.jpg").write_bytes(as_jpeg(source.resize((80, 60))))
    source = Image.open(root / "train" / "ant" / "21.jpg")
    (root / "train" / "bee" / "z_ant.jpg").write_bytes(as_jpeg(source.resize((100, 75))))
    planted.add(("near_duplicate", "train/bee/y_small.jpg"))
    planted.add(("near_duplicate_with_two_labels", "train/bee/z_ant.jpg"))
    return planted


def as_jpeg(image: Image.Image, quality: int = 85) -> bytes:
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


EDITS = {
    "reencoded": lambda image: Image.open(io.BytesIO(as_jpeg(image, 30))),
    "halved": lambda image: image.resize((image.width // 2, image.height // 2)),
    "squashed": lambda image: image.resize((96, 96)),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.25),
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.7),
    "grey": lambda image: image.convert("L"),
    "mirrored": ImageOps.mirror,
}
"""What people and programs do to pictures without making new ones of them."""


def faulty_table(root: Path) -> tuple[Path, Planted]:
    """A table with every fault that a table can have, and the faults."""
    rows = ["path,label,split"]
    for split, count in (("train", 6), ("val", 3)):
        for c, label in enumerate(("ant", "bee")):
            for k in range(count):
                path = f"images/{split}_{label}_{k}.jpg"
                save(photograph(5000 + 100 * c + 10 * len(split) + k), root / path)
                rows.append(f"{path},{label},{split}")
    table = root / "labels.csv"
    table.write_text("\n".join(rows) + "\n", encoding="utf-8")
    save(photograph(9001), root / "images" / "unlabelled.jpg")
    with table.open("a", encoding="utf-8") as file:
        file.write("images/gone.jpg,ant,train\n")
        file.write("images/unlabelled.jpg,,train\n")
        file.write("images/train_ant_0.jpg,ant,train\n")
        file.write("images/train_ant_1.jpg,bee,train\n")
        file.write("images/train_ant_2.jpg,ant,val\n")
        file.write("images/train_ant_3.jpg,ant,holdout\n")
        file.write("images/train_ant_4.jpg,ant,\n")
    return table, {
        ("missing_file", "images/gone.jpg"),
        ("empty_label", "images/unlabelled.jpg"),
        ("repeated_row", "images/train_ant_0.jpg"),
        ("duplicate_row", "images/train_ant_1.jpg"),
        ("duplicate_row", "images/train_ant_2.jpg"),
        ("unknown_split", "images/train_ant_3.jpg"),
        ("unknown_split", "images/train_ant_4.jpg"),
    }
