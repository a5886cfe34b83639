"""The parts of image names: what a person who made them up would call a number, a word, a date or a hash.

`p012s03_left.png` has the pieces p012, s03 and left. A piece is a word with the number after it, or a number; letters
and digits that alternate without a rule, as in a hash, stay in one piece; so do a date with its time, and a size.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

_WORDS = re.compile(r"[^\W_]+|[\W_]+")
_PIECES = re.compile(r"\d+x\d+$|[^\W\d_]*\d+|[^\W\d_]+")
_NUMBERS = re.compile(r"\d+")
_DATE = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])|(?:0\d|[12]\d|3[01]){2}(?:19|20)\d\d")
_TIME = re.compile(r"(?:[01]\d|2[0-3])[0-5]\d(?:[0-5]\d\d{0,3})?")
USUAL = 0.8
"""A word is cut into pieces where this share of the names has it cut in the same way."""


class Name(NamedTuple):
    """A name without its ending: the signs `seps[i]` stand before `pieces[i]`, the last ones after all. Names with the
    same signs have one shape."""

    pieces: tuple[str, ...]
    seps: tuple[str, ...]

    def text(self, start: int, stop: int) -> str:
        """The name from one piece to before another, without what stands around them."""
        inner = chain.from_iterable(zip(("", *self.seps[start + 1 : stop]), self.pieces[start:stop], strict=False))
        return "".join(inner)


@lru_cache(maxsize=1)
def names_of(stems: tuple[str, ...]) -> tuple[Name, ...]:
    """The pieces of each name, as all names suggest them."""
    names = [_cut_at_signs(stem) for stem in stems]
    for shape, count in Counter(name.seps for name in names).most_common(3):
        if count >= max(8, 0.1 * len(names)):
            of_shape = [place for place, name in enumerate(names) if name.seps == shape]
            for place, name in zip(of_shape, _cut_words([names[place] for place in of_shape]), strict=True):
                names[place] = name
    return tuple(names)


def _cut_at_signs(stem: str) -> Name:
    pieces, seps = [], [""]
    for word in _WORDS.findall(stem):
        if word[0].isalnum():
            pieces.append(word)
            seps.append("")
        else:
            seps[-1] += word
    return Name(tuple(pieces), tuple(seps))


def _cut_words(names: Sequence[Name]) -> list[Name]:
    """Names of one shape with their words cut where letters and digits alternate by a rule, and dates with their times
    in one piece."""
    seps = names[0].seps
    columns: list[list[str]] = []
    between: list[str] = []
    for place in range(len(seps) - 1):
        words = [name.pieces[place] for name in names]
        parts = _by_rule(words)
        columns += parts
        between += [seps[place]] + [""] * (len(parts) - 1)
    between.append(seps[-1])
    return _with_moments([Name(row, tuple(between)) for row in zip(*columns, strict=True)] if columns else list(names))


def _by_rule(words: Sequence[str]) -> list[list[str]]:
    """One column of words as the columns of their pieces; as it is where they are cut in different ways."""
    cut = [_PIECES.findall(word) for word in words]
    shapes = Counter(tuple(_kind(piece) for piece in pieces) for pieces in cut)
    shape, count = shapes.most_common(1)[0]
    if len(shape) < 2 or len(shape) > 4 or count < USUAL * len(words):
        return [list(words)]
    if count < len(words):  # the few that are cut otherwise are no reason to leave the others whole
        empty = [""] * (len(shape) - 1)
        cut = [part if len(part) == len(shape) else [word, *empty] for word, part in zip(words, cut, strict=True)]
    return [list(column) for column in zip(*cut, strict=True)]


def _kind(piece: str) -> str:
    return ("9" if piece[0].isdigit() else "a9") if piece[-1].isdigit() else "a"


def _with_moments(names: list[Name]) -> list[Name]:
    """Pieces that together are a date, a time or both, as one piece."""
    place = 0
    while place < len(names[0].pieces):
        for stop in range(min(len(names[0].pieces), place + 7), place + 1, -1):
            if is_moment([name.text(place, stop) for name in names]):
                names = [
                    Name(
                        (*name.pieces[:place], name.text(place, stop), *name.pieces[stop:]),
                        (*name.seps[: place + 1], *name.seps[stop:]),
                    )
                    for name in names
                ]
                break
        place += 1
    return names


def is_moment(texts: Sequence[str]) -> bool:
    """Return whether nearly all texts are a date, or a date and a time."""
    some = texts[:: max(1, len(texts) // 64)]
    return sum(_is_moment(text) for text in some) >= 0.95 * len(some)


def _is_moment(text: str) -> bool:
    digits = "".join(_NUMBERS.findall(text))
    if re.search(r"[^\W\d_]", text.replace("T", "")) or not _DATE.match(digits):
        return False
    rest = digits[8:]
    return not rest or bool(_TIME.fullmatch(rest))
