"""report.html: one file without scripts or links to elsewhere, for a screen, a telephone and paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from comparison.pictures import data_uri
from comparison.results import ConditionResult, Pair
from comparison.runs import Arm, Comparison, settings_that_differ
from comparison.table import cost_table, notes, printable, result_table
from figures.comparison import COLOURS, MOST_CLASSES, Picture, confusion

MARK_WORDS = {"better": "better", "worse": "worse", "unclear": "cannot tell", "same": "the same"}
LISTED_PAIRS = 10  # of classes that an arm confuses


@dataclass(frozen=True)
class Example:
    """One image on which arms disagree: its row among the scored ones, and the usual predictions with their votes."""

    row: int
    path: str
    label: str
    first: tuple[str, int]
    second: tuple[str, int]
    thumbnail: str | None


@dataclass(frozen=True)
class Disagreement:
    """Images that only one of two arms gets right; `problem` says why there are no pictures."""

    first: Arm
    second: Arm
    only_first: tuple[Example, ...]
    only_second: tuple[Example, ...]
    problem: str = ""


STYLE = """
:root{color-scheme:light dark;--ink:#1c2128;--soft:#59636e;--line:#d1d9e0;--paper:#fff;--tint:#f6f8fa;--good:#1a7f37;
--bad:#cf222e}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa4af;--line:#3d444d;--paper:#0d1117;--tint:#161b22;
--good:#3fb950;--bad:#f85149}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:74rem;padding:1.2rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:anywhere}
h1{font-size:1rem;font-weight:600;color:var(--soft);margin:0 0 .6rem}
h2{font-size:1.2rem;margin:2.4rem 0 .5rem;padding-top:.6rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
p{margin:.4rem 0}.note{max-width:60rem}
.verdict{font-size:1.4rem;line-height:1.35;font-weight:600;margin:.2rem 0 .9rem}
.verdict small{display:block;font-size:.85rem;font-weight:600;color:var(--soft)}
.minor{font-size:1.05rem;font-weight:400}
.warning{border-left:4px solid #bf8700;background:var(--tint);padding:.5rem .8rem;margin:.5rem 0}
.note,figcaption,li{color:var(--soft);font-size:.9rem}
.wide{overflow-x:auto;margin:.6rem 0}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{padding:.32rem .7rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap;overflow-wrap:normal}
th{color:var(--soft);font-weight:600}
.name{text-align:left;white-space:normal;min-width:9rem}
tr.begin td{border-top:2px solid var(--line)}
.better{color:var(--good);font-weight:600}.worse{color:var(--bad);font-weight:600}
figure{margin:.6rem 0 1.4rem}
figure img{display:block;max-width:100%;height:auto;background:#fff;border-radius:6px;border:1px solid var(--line);
padding:6px}
figcaption{margin-top:.3rem}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(10rem,1fr));gap:.8rem;margin:.6rem 0}
.card{border:1px solid var(--line);border-radius:6px;padding:.5rem;font-size:.78rem;line-height:1.35}
.card img{display:block;width:100%;height:8rem;object-fit:contain;background:var(--tint);border-radius:4px;
margin-bottom:.35rem}
.card img.small{image-rendering:pixelated}
.card code{color:var(--soft);font-size:.72rem}
.dot{display:inline-block;width:.7em;height:.7em;border-radius:50%;margin-right:.4em;border:1px solid var(--line)}
pre{white-space:pre-wrap;background:var(--tint);border:1px solid var(--line);border-radius:6px;padding:.6rem .8rem;
font-size:.85rem}
@media(max-width:40rem){body{padding:.8rem}.verdict{font-size:1.15rem}.minor{font-size:1rem}
figure img{max-width:38rem}figure img.fits{max-width:100%}}
@media print{body{max-width:none;font-size:11pt}h2{break-after:avoid}figure,.card,tr{break-inside:avoid}
.wide{overflow:visible}table{font-size:7.5pt}th,td{padding:.2rem .3rem;white-space:normal}.name{min-width:0}}
"""


def page(
    comparison: Comparison,
    results: Sequence[ConditionResult],
    pictures: Sequence[Picture],
    disagreements: Sequence[Disagreement],
    *,
    unseen: Sequence[str] = (),
) -> str:
    """The whole document. Every name, path and line from outside is escaped."""
    arms = [arm.name for arm in results[0].condition.arms]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        # Nothing may be fetched, whatever a name tries; a page opened from a file has no icon to ask for either.
        """<meta http-equiv="Content-Security-Policy" content="default-src 'none';img-src data:;"""
        """style-src 'unsafe-inline'">""",
        '<link rel="icon" href="data:,">',
        f"<title>{text(comparison.data)}: {text(' vs '.join(arms))}</title><style>{STYLE}</style></head><body>",
        f"<h1>{text(comparison.data)}: {len(arms)} arms compared</h1>",
        *_verdicts(results),
        *(f'<p class="warning">{text(line)}</p>' for line in comparison.warnings),
        *_section(
            "Results",
            _table(*result_table(results), arms, results=results),
            _list(notes(comparison, results, marks="")),
        ),
        *_section("Costs", _table(*cost_table(results), arms), _note(
            "GFLOPs of one image's forward pass, 2 per multiply-add; time and memory are medians over the seeds, "
            "memory is the peak of the process, or of the device."
        )),
        *_figures(pictures, skip={"attention.png"}),
        *_confused(results),
        *_disagreements(results, disagreements),
        *_attention(pictures, unseen),
        *_settings(results),
        *_tuning(comparison.tuning),
        *(_section("Protocol", _list(comparison.protocol)) if comparison.protocol else ()),
        *_versions(results),
        *_section("Runs", _runs(results)),
        *_section("The command", f"<pre>{text(comparison.command)}</pre>"),
        "</body></html>\n",
    ]  # fmt: skip
    return "\n".join(parts)


def text(value: object) -> str:
    return escape(printable(str(value)))


def _verdicts(results: Sequence[ConditionResult]) -> Iterator[str]:
    """The pairs with the first arm large, those of other arms after them."""
    for result in results:
        above = f"<small>{text(result.title)}</small>" if len(results) > 1 else ""
        others = len(result.condition.arms) - 1
        for index, pair in enumerate(result.pairs):
            size = "verdict" if index < others else "verdict minor"
            yield f'<p class="{size}">{above if index == 0 else ""}{text(pair.sentence)}</p>'


def _section(title: str, *content: str) -> Iterator[str]:
    yield f"<section><h2>{text(title)}</h2>"
    yield from content
    yield "</section>"


def _note(line: str) -> str:
    return f'<p class="note">{text(line)}</p>'


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{text(line)}</li>" for line in lines) + "</ul>"


def _table(
    header: Sequence[str],
    lines: Sequence[Sequence[str]],
    arms: Sequence[str] = (),
    *,
    results: Sequence[ConditionResult] = (),
) -> str:
    """Cells as text; a column named arm gets the arm's colour, the last one of the results its verdict in words."""
    pairs: list[Pair | None] = [r.against_first(index) for r in results for index in range(len(r.scores))]
    rows = ["".join(f"<th{_kind(name)}>{text(name or 'verdict')}</th>" for name in header)]
    previous = None
    for number, line in enumerate(lines):
        cells = []
        for name, cell in zip(header, line, strict=True):
            content = text(cell)
            if name == "arm" and cell in arms:
                content = (
                    f'<span class="dot" style="background:{COLOURS[arms.index(cell) % len(COLOURS)]}"></span>{content}'
                )
            if name == "" and (pair := pairs[number]) is not None:
                content = f'<span class="{pair.mark}">{MARK_WORDS[pair.mark]}</span>'
            cells.append(f"<td{_kind(name)}>{content}</td>")
        begins = header[0] == "labels" and previous not in (None, line[0])
        previous = line[0]
        rows.append(f"<tr{' class=begin' if begins else ''}>{''.join(cells)}</tr>")
    return f'<div class="wide"><table><thead><tr>{rows[0]}</tr></thead><tbody>{"".join(rows[1:])}</tbody></table></div>'


def _kind(name: str) -> str:
    return ' class="name"' if name in {"arm", "setting", "runs", "true", "predicted", "value"} else ""


def _figures(pictures: Sequence[Picture], *, skip: set[str]) -> Iterator[str]:
    kinds: dict[str, list[Picture]] = {}
    for each in pictures:
        if each.file not in skip:
            kinds.setdefault(each.title.split(",")[0], []).append(each)
    for title, group in kinds.items():
        yield from _section(title, *(_figure(each, heading=len(group) > 1) for each in group))


def _figure(picture: Picture, *, heading: bool = False) -> str:
    above = f"<h3>{text(picture.title.partition(', ')[2])}</h3>" if heading and ", " in picture.title else ""
    width = int.from_bytes(picture.png[16:20], "big")  # of a PNG's header: one panel is readable on a telephone
    fits = ' class="fits"' if width <= 800 else ""
    return (
        f'{above}<figure><div class="wide"><img{fits} alt="{text(picture.title)}" '
        f'src="{data_uri(picture.png, "png")}"></div>'
        f"<figcaption>{text(picture.caption)}</figcaption></figure>"
    )


def _confused(results: Sequence[ConditionResult]) -> Iterator[str]:
    """Where a matrix would be too large to read: the classes that each arm takes for others most often."""
    names = results[-1].condition.arms[0].runs[0].class_names
    if len(names) <= MOST_CLASSES:
        return
    parts = [
        _note(f"{len(names)} classes are too many for a matrix: the {LISTED_PAIRS} commonest mistakes, all seeds.")
    ]
    for result in results:
        for arm in result.condition.arms:
            matrix = confusion(arm)
            np.fill_diagonal(matrix, 0)
            worst = np.argsort(-matrix, axis=None, kind="stable")[:LISTED_PAIRS]
            cells = [(int(cell) // len(names), int(cell) % len(names)) for cell in worst]
            lines = [
                [names[row], names[column], str(matrix[row, column])] for row, column in cells if matrix[row, column]
            ]
            where = f" ({result.title})" if len(results) > 1 else ""
            parts += [f"<h3>{text(arm.name)}{text(where)}</h3>", _table(["true", "predicted", "times"], lines)]
    yield from _section("Most confused classes", *parts)


def _disagreements(results: Sequence[ConditionResult], found: Sequence[Disagreement]) -> Iterator[str]:
    parts = []
    for result, each in zip(results, found, strict=True):
        if len(results) > 1:
            parts.append(f"<h3>{text(result.title)}</h3>")
        if each.problem:
            parts.append(_note(each.problem))
        for winner, loser, examples in (
            (each.first, each.second, each.only_first),
            (each.second, each.first, each.only_second),
        ):
            parts.append(f"<p><b>{text(winner.name)}</b> is right, <b>{text(loser.name)}</b> is not:</p>")
            if examples:
                cards = "".join(_card(example, each) for example in examples)
                parts.append(f'<div class="grid">{cards}</div>')
            else:
                parts.append(_note("No such image."))
    parts.append(_note("Right and wrong in most of the seeds. The clearest first, and the classes take turns."))
    yield from _section("Images only one arm gets right", *parts)


def _card(example: Example, pair: Disagreement) -> str:
    picture = ""
    if example.thumbnail:
        small = ' class="small"' if example.thumbnail.startswith("data:image/png") else ""
        picture = f'<img{small} alt="{text(example.label)}" src="{example.thumbnail}">'
    said = "".join(
        f"{text(arm.name)}: <b>{text(name)}</b>"
        + (f" ({votes} of {len(arm.runs)})" if len(arm.runs) > 1 else "")
        + "<br>"
        for arm, (name, votes) in ((pair.first, example.first), (pair.second, example.second))
    )
    true = f"true: <b>{text(example.label)}</b><br>"
    return f'<div class="card">{picture}{true}{said}<code>{text(example.path)}</code></div>'


def _attention(pictures: Sequence[Picture], unseen: Sequence[str]) -> Iterator[str]:
    shown = [_figure(each) for each in pictures if each.file == "attention.png"]
    if shown or unseen:
        yield from _section("Attention on the same images", *shown, *map(_note, unseen))


def _settings(results: Sequence[ConditionResult]) -> Iterator[str]:
    """Options that are not the same in all arms; lr may also differ between conditions."""
    runs = [(result, arm, arm.runs[0]) for result in results for arm in result.condition.arms]
    differing = settings_that_differ([run.config for _, _, run in runs])
    if not differing:
        yield from _section("Settings that differ", _note("None but the seed."))
        return
    header = ["setting", *(f"{arm.name}" + (f", {r.title}" if len(results) > 1 else "") for r, arm, _ in runs)]
    yield from _section("Settings that differ", _table(header, [[option, *values] for option, values in differing]))


def _tuning(tuning: Sequence[dict[str, Any]]) -> Iterator[str]:
    if not tuning:
        return
    header = ["labels", "arm", "lr", "val accuracy %", "val loss", "chosen"]
    lines = [
        [
            "all" if row["labels_per_class"] is None else str(row["labels_per_class"]),
            row["arm"],
            f"{row['lr']:.3g}",
            _number(row["val_accuracy"], 100, 1),
            _number(row["val_loss"], 1, 4),
            "yes" if row["chosen"] else "",
        ]
        for row in tuning
    ]
    yield from _section(
        "Learning rates tried", _table(header, lines), _note("Chosen on validation images alone, never on scored ones.")
    )


def _number(value: float | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{value * factor:.{digits}f}"


def _versions(results: Sequence[ConditionResult]) -> Iterator[str]:
    """What the runs ran on; one line per fact, with all its values where runs disagree."""
    metas = [run.meta for result in results for arm in result.condition.arms for run in arm.runs]
    facts: dict[str, list[Any]] = {
        "versions": [", ".join(f"{k} {v}" for k, v in (meta.get("versions") or {}).items()) for meta in metas],
        "processor": [meta.get("processor") for meta in metas],
        "device": [meta.get("device") for meta in metas],
        "threads": [meta.get("threads") for meta in metas],
        "platform": [meta.get("platform") for meta in metas],
        "code": [_commit(meta.get("git")) for meta in metas],
    }
    lines = [[name, "; ".join(dict.fromkeys(str(value) for value in values))] for name, values in facts.items()]
    yield from _section("Versions and hardware", _table(["setting", "value"], lines))


def _commit(git: dict[str, Any] | None) -> str:
    return "unknown" if not git else f"{git['commit'][:10]}" + (" with changes" if git["dirty"] else "")


def _runs(results: Sequence[ConditionResult]) -> str:
    lines = [
        [result.title, arm.name, str(run.seed), f"{100 * run.accuracy:.1f}", str(run.run_dir)]
        for result in results
        for arm in result.condition.arms
        for run in arm.runs
    ]
    return _table(["labels", "arm", "seed", "accuracy %", "runs"], lines, [a.name for a in results[0].condition.arms])
