"""The regular expression to type for the groups that names suggest: the shortest that makes exactly these."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from datasets.grouping.candidates import CandidateGrouping
from datasets.grouping.names import Name, names_of
from datasets.grouping.option import found_names
from datasets.grouping.search import OF_EACH_CLASS, added_form, plain, stem

WORD, SIGNS = r"[^\W_]+", r"[\W_]+"
ENDING = r"\.[^./]+$"


def pattern_of(candidate: CandidateGrouping, paths: Sequence[str]) -> str | None:
    """Return the value of `--group` that makes these groups of these paths; None where no pattern of a simple form
    does."""
    wanted = _partition(candidate.keys)
    for form in _forms(candidate, names_of(tuple(map(stem, paths)))):
        if _partition(found_names(form, paths)) == wanted:
            return form
    return None


def _partition(names: Sequence[str | None]) -> list[int]:
    """Return for each image the first one of its group: itself where it is alone, or has no group."""
    first: dict[str, int] = {}
    return [row if name is None else first.setdefault(name, row) for row, name in enumerate(names)]


def _forms(candidate: CandidateGrouping, names: Sequence[Name]) -> Iterator[str]:
    """Regular expressions that may make these groups, short ones first."""
    if candidate.kind in ("copies", "prefixed"):
        added = f"(?:{'|'.join(sorted({added_form(rest) for rest in candidate.rests if rest}))})?"
        yield f"^(.+?){added}{ENDING}" if candidate.kind == "copies" else f"(?:^|/){added}([^/]+){ENDING}"
    elif candidate.kind == "shapes":
        parts = [_Shape(part, names).prefix() for part in candidate.parts]
        # What fits most names comes last, or it would take a part of a longer key.
        keys, ends = (sorted(set(forms), key=_exact_first) for forms in zip(*parts, strict=True))
        for after in (f"(?:{'|'.join(ends)})", f"(?:{'|'.join(ends)})[^/]*$", ""):
            yield f"(?:^|/)({'|'.join(keys)}){after}"
    elif candidate.kind == "right":
        more = f"(?:{SIGNS}{WORD}){{{candidate.place - 1}}}" if candidate.place > 1 else ""
        for form in dict.fromkeys((_form(candidate.rests), WORD + more)):
            yield rf"([^/]*[^\W_]){SIGNS}{form}{ENDING}"
    else:
        yield from _Shape(candidate, names).forms(candidate)
        if candidate.kind in ("prefix", "left"):
            more = f"(?:{SIGNS}{WORD}){{{candidate.place - 1}}}" if candidate.place > 1 else ""
            yield f"(?:^|/)({WORD}{more})"


class _Shape:
    """The commonest shape of the names that a candidate reads, piece by piece as regular expressions."""

    def __init__(self, candidate: CandidateGrouping, names: Sequence[Name]) -> None:
        read = [name for name, key in zip(names, candidate.keys, strict=True) if key is not None]
        self.place = candidate.place
        seps = Counter(name.seps for name in read).most_common(1)[0][0]
        same = [name for name in read if name.seps == seps]
        self.pieces = [_form([name.pieces[place] for name in same]) for place in range(len(seps) - 1)]
        self.seps = [plain(sep) for sep in seps]

    def text(self, start: int, stop: int) -> str:
        return "".join(self.seps[place] * (place > start) + self.pieces[place] for place in range(start, stop))

    def prefix(self) -> tuple[str, str]:
        """The first pieces, and what stands after them."""
        stop = min(self.place, len(self.pieces))
        return self.seps[0] + self.text(0, stop), self.seps[stop]

    def forms(self, candidate: CandidateGrouping) -> Iterator[str]:
        place, count = self.place, len(self.pieces)
        if candidate.kind == "piece":
            yield f"{self.seps[place] or '/'}({self.pieces[place]}){self.seps[place + 1]}"
            before = self.text(0, place) + self.seps[place]
            yield f"(?:^|/){before}({self.pieces[place]}){self.seps[place + 1]}[^/]*$"
        elif candidate.kind == "suffix":
            yield f"{self.seps[place]}({self.text(place, count)}){self.seps[count]}{ENDING}"
        else:
            key, end = self.prefix()
            for edge in ("([^/]+/",) if candidate.kind.endswith(OF_EACH_CLASS) else ("/(", "(?:^|/)("):
                for after in (end, f"{end}[^/]*$", ""):
                    yield f"{edge}{key}){after}"


def _exact_first(form: str) -> tuple[bool, int, str]:
    return "[^" in form, -len(form), form


def _form(texts: Sequence[str]) -> str:
    """A regular expression for all of these pieces: with their own letters where these are always the same."""
    forms = {re.sub(r"\d+", r"\\d+", plain(text)) for text in texts}
    if len(forms) == 1:
        return forms.pop()
    if len({re.sub(r"\w+", "", text) for text in texts}) > 1 or any(re.search(r"[\W_]", text) for text in texts):
        return r"[^/]+?"
    return r"[^\W\d_]+" if all(text.isalpha() for text in texts) else WORD
