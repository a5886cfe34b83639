"""Make sets of images that no choice here was made on: emoji, letters, icons, stamps.

    python -m benchmarks.made_sets --sets FOLDER [--only emoji letters icons stamps]

Each is a folder with train/ and test/, for `benchmarks.five_minutes --only`. `emoji` needs Noto Color Emoji and
Unicode's list of emoji (on Debian: apt-get install fonts-noto-color-emoji unicode-data); an emoji, whatever its gender
and colour of skin, is in one split only. `letters` takes every typeface that `fc-list` names and that has the letters;
all styles of a typeface are in one split. Other fonts make another set: `typefaces.txt` next to the letters lists them.
`icons` are a desktop's, by what they stand for (oxygen-icon-theme, gnome-icon-theme, faenza-icon-theme,
elementary-xfce-icon-theme, adwaita-icon-theme); icons of one name are in one split. `stamps` are photographs and
drawings of Tux Paint by their folder (tuxpaint-stamps-default). What `check` calls an error is left out: a test picture
that is nearly one of the training, and pictures of two labels.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from datasets.checking.check import check_source
from datasets.copies import perceptual_hashes

SIDE = 64
EMOJI_FONT = Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
EMOJI_LIST = Path("/usr/share/unicode/emoji/emoji-test.txt")
EMOJI_SIZE = 109
"""The one size of the font's pictures."""
STYLES = 4
"""Most styles of a typeface."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
LINE = re.compile(r"(?P<codes>[0-9A-F ]+?)\s*; fully-qualified\s*# \S+ E[\d.]+ (?P<name>.*)")
PEOPLE = re.compile(r"\b(man|men|woman|women|person|people|boy|girl|mx|mrs)\b|[:,].*")


def part_of(name: str) -> str:
    """Train or test: by the name alone, a quarter of all names is the test."""
    return "test" if hashlib.sha256(name.encode()).digest()[0] < 64 else "train"


def emoji() -> Iterator[tuple[str, Image.Image]]:
    font, group = ImageFont.truetype(EMOJI_FONT, EMOJI_SIZE), ""
    for line in EMOJI_LIST.read_text(encoding="utf-8").splitlines():
        if line.startswith("# group: "):
            group = re.sub(r"\W+", "_", line.removeprefix("# group: ")).lower()
        found = LINE.match(line)
        if found is None or ("skin tone" in found["name"] and "medium skin tone" not in found["name"]):
            continue
        picture = Image.new("RGB", (136, 136), "white")
        text = "".join(chr(int(code, 16)) for code in found["codes"].split())
        ImageDraw.Draw(picture).text((68, 68), text, font=font, anchor="mm", embedded_color=True)
        kind = PEOPLE.sub("", found["name"]).split() if group != "flags" else [found["name"]]
        place = f"{part_of(' '.join(kind))}/{group}/{found['codes'].replace(' ', '-')}.png"
        yield place, picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def typefaces() -> dict[str, list[Path]]:
    """List the files of each typeface here that has the letters, a few styles each."""
    listed = subprocess.run(
        ["fc-list", "--format", "%{family[0]}\t%{file}\n", ":lang=en"], capture_output=True, text=True, check=True
    )
    found: dict[str, list[Path]] = defaultdict(list)
    for line in sorted(set(listed.stdout.splitlines())):
        family, _, file = line.partition("\t")
        if len(found[family]) < STYLES and file.endswith((".ttf", ".otf")) and has_letters(Path(file)):
            found[family].append(Path(file))
    return {family: files for family, files in sorted(found.items()) if files}


def has_letters(file: Path) -> bool:
    """Return whether each letter has a form of its own."""
    font = ImageFont.truetype(file, 32)
    return len({bytes(font.getmask(letter)) for letter in LETTERS}) == len(LETTERS)


def letters() -> Iterator[tuple[str, Image.Image]]:
    for family, files in typefaces().items():
        for file in files:
            font = ImageFont.truetype(file, 44)
            for letter in LETTERS:
                picture = Image.new("RGB", (SIDE, SIDE), "white")
                ImageDraw.Draw(picture).text((SIDE / 2, SIDE / 2), letter, font=font, anchor="mm", fill="black")
                yield f"{part_of(family)}/{letter}/{file.stem}.png", picture


def on_white(file: Path, side: int) -> Image.Image:
    """Open the picture of a file, no larger than `side` pixels, on white."""
    with Image.open(file) as opened:
        picture = opened.convert("RGBA")
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")


def icons() -> Iterator[tuple[str, Image.Image]]:
    for theme in THEMES:
        for file in sorted((ICONS / theme).rglob("*.png")):
            words = {*file.relative_to(ICONS).parts}
            if words & {"48", "48x48"} and not file.is_symlink():
                for kind in sorted(words & KINDS):
                    name = re.sub(r"-symbolic$", "", file.stem)
                    yield f"{part_of(name)}/{kind}/{theme}_{file.name}", on_white(file, SIDE)


def stamps() -> Iterator[tuple[str, Image.Image]]:
    for file in sorted(STAMPS.rglob("*.png")):
        kind, *folders = file.relative_to(STAMPS).parts
        if kind in STAMPED:
            yield f"{part_of(file.stem)}/{kind}/{'_'.join(folders)}", on_white(file, 2 * SIDE)


ICONS = Path("/usr/share/icons")
THEMES = ("oxygen", "gnome", "Faenza", "elementary-xfce", "Adwaita")
KINDS = {"actions", "apps", "devices", "mimetypes", "places", "status"}
STAMPS = Path("/usr/share/tuxpaint/stamps")
STAMPED = {"animals", "food", "plants", "seasonal", "symbols", "town", "vehicles"}
"""Folders with enough pictures."""
ERRORS = {f"{near}duplicate_{where}" for near in ("", "near_") for where in ("across_splits", "with_two_labels")}
MAKERS = {"emoji": emoji, "letters": letters, "icons": icons, "stamps": stamps}


def without_errors(folder: Path) -> int:
    """Delete copies across the split and in two classes; return how many."""
    found = [each for each in check_source(str(folder)).findings if each.kind in ERRORS]
    places = {place for each in found for place in (each.path, each.other) if place}
    in_two = {place for each in found if "two_labels" in each.kind for place in (each.path, each.other)}
    wrong = [place for place in places if place in in_two or place.startswith("test/")]
    for place in wrong:
        (folder / place).unlink()
    return len(wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=MAKERS, default=list(MAKERS))
    options = parser.parse_args()
    for name in options.only:
        counts: dict[str, int] = defaultdict(int)
        drawn: set[bytes] = set()
        for place, picture in MAKERS[name]():
            thumbnail = np.asarray(picture.convert("L").resize((32, 32)))[None]
            drawing = perceptual_hashes(thumbnail).tobytes()
            if drawing in drawn:
                continue  # a font may draw several emoji alike, and two typefaces may share a letter
            drawn.add(drawing)
            path = options.sets / name / place
            path.parent.mkdir(parents=True, exist_ok=True)
            picture.save(path)
            counts[place.split("/")[0]] += 1
        print(name, dict(counts), "of which are left out:", without_errors(options.sets / name))
        if name == "letters":
            text = "".join(f"{part_of(family)}\t{family}\t{len(files)}\n" for family, files in typefaces().items())
            (options.sets / "typefaces.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
