"""The lines of a comparison as it trains: columns that stand under one another and fit the terminal."""

from types import SimpleNamespace

import pytest

from comparison.training.run_lines import RunLines
from trainers.storage.run_folder import write_json


def lines_of(tmp_path, capsys, monkeypatch, *, columns, names, labels, tuned):
    monkeypatch.setenv("COLUMNS", str(columns))
    write_json(tmp_path / "summary.json", {"seconds": 9999.0})
    plan = SimpleNamespace(
        arms=[SimpleNamespace(name=name) for name in names],
        request=SimpleNamespace(labels=labels),
        tuned=tuned,
        rates=lambda arm: [0.0003, 0.00075],
        number_of_runs=144,
    )
    result = SimpleNamespace(run_dir=tmp_path, val={"accuracy": 1.0})
    lines = RunLines(plan)
    for number, arm in enumerate(range(len(names)), 9):
        lines.say((0, arm), 12, 0.0003, result, number=number, left="59 min")
    lines.say((0, 0), 12, 0.0003, None, number=144, left="")
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("tuned", [True, False])
@pytest.mark.parametrize("labels", [(None,), (1000, None)])
def test_every_cell_ends_below_its_heading_and_no_line_is_wider_than_the_terminal(
    tmp_path, capsys, monkeypatch, columns, tuned, labels
):
    names = ["vit_nano_8 from scratch", "vit_stem_16 with options that make a name which no terminal shows in full, 2"]
    header, *rows = lines_of(tmp_path, capsys, monkeypatch, columns=columns, names=names, labels=labels, tuned=tuned)
    assert ("labels" in header, " lr " in header) == (len(labels) > 1, tuned)
    assert all(len(row) <= columns for row in (header, *rows))
    for row in rows[:2]:
        assert row[: header.index("val acc") + len("val acc")].endswith("100.0%")
        assert row.endswith("9999 s  59 min")
    assert rows[1].index("vit_stem_16") == rows[0].index("vit_nano_8") == header.index("arm")
    assert ", 2  " in rows[1], "the end of a name, which makes it differ, is kept"
    assert rows[2].endswith("diverged")


def test_short_names_are_shown_in_full_and_take_no_more_room_than_they_need(tmp_path, capsys, monkeypatch):
    header, first, _, _ = lines_of(
        tmp_path, capsys, monkeypatch, columns=80, names=["a", "pretrained"], labels=(10, None), tuned=False
    )
    assert first == "  9/144      10    12  a             100.0%  9999 s  59 min"
    assert header == "    run  labels  seed  arm          val acc    time    left"
