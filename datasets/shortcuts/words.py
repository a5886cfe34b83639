"""Sentences about a shortcut: the fact, how well it tells the classes, by which trait, and what to do about it."""

from collections.abc import Sequence
from typing import Any

from datasets.shortcuts.trait import Shortcut

_SAME_SIZE = (
    "give all pictures one size before you train: magick mogrify -resize '256x256^' FILES; where small ones stay "
    "blurred, take better ones"
)
_SAME_FILE = "save all pictures in one way, from the originals: magick mogrify -format jpg -quality 90 FILES"
_COVER = "cut it off or cover it in all pictures, or add pictures of the other classes that have it"
_LIGHT = "take pictures of each class in the same light; --augment strong changes brightness and colour at random"
_APART = "add pictures of each class from each of them"
FACTS: dict[str, tuple[str, str]] = {
    "camera": ("the camera that EXIF names", _APART),
    "folder": ("the folder that a picture comes from", _APART),
    "date": ("the day that EXIF names", _APART),
    "file type": ("the type of the file", _SAME_FILE),
    "aspect ratio": ("the aspect ratio", "cut all pictures to one aspect ratio, or train with --fit squash"),
    "size": ("the size in pixels", _SAME_SIZE),
    "grey or colour": (
        "whether a picture is grey",
        "make all pictures grey (magick mogrify -colorspace gray FILES), or add coloured ones of the grey class",
    ),
    "JPEG quality": ("the JPEG compression", _SAME_FILE),
    "number in the name": (
        "the number in a file's name",
        "a model does not see it, but whatever was photographed in this order it may see: look what changed meanwhile",
    ),
    "frame": ("a frame around the picture", _COVER),
    "corners": ("a corner of the picture", _COVER),
    "border": ("the border of the picture", _COVER),
    "sharpness": ("how sharp a picture is", "give all pictures one size and one sharpness, or blur at random"),
    "bytes per pixel": ("bytes per pixel, so compression,", _SAME_FILE),
    "brightness": ("brightness", _LIGHT),
    "colour": ("colour", _LIGHT),
    "detail": ("how much coarse detail there is", _LIGHT),
}
"""Name of a fact -> how a sentence calls it, and what to do."""


def sentence(one: Shortcut) -> str:
    """Fact, how well it tells, and trait."""
    trait, chance = one.trait, 1 / one.told.classes
    # Of many classes a fact may tell halves apart, and hardly ever guess one.
    guessed = f"the class of {one.told.accuracy:.0%} of the pictures, {chance:.0%} by chance"
    found = guessed if one.told.accuracy > chance else "some classes from others"
    shares = f"{trait.share:.0%} of {trait.most!r}, {trait.other:.0%} of {trait.least!r}"
    return f"{FACTS[one.fact.name][0]} alone tells {found} ({trait.words}: {shares})"


def advice(name: str) -> str:
    return FACTS[name][1]


def note(light: Sequence[Shortcut]) -> str:
    """Describe facts that the content may be the reason for."""
    first = sentence(light[0])
    others = f"; so do {', '.join(one.fact.name for one in light[1:])}" if light[1:] else ""
    if light[0].fact.name == "number in the name":
        return f"{first}{others}: files are numbered class by class, which is no fault"
    return f"{first}{others}: it may be what the pictures show, or how they were taken"


def as_json(one: Shortcut) -> dict[str, Any]:
    return {
        "fact": one.fact.name,
        "guessed_right": round(one.told.accuracy, 4),
        "by_chance": round(1 / one.told.classes, 4),
        "trait": one.trait.words,
        "shares": {one.trait.most: round(one.trait.share, 4), one.trait.least: round(one.trait.other, 4)},
        "advice": advice(one.fact.name),
    }
