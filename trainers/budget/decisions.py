"""Decisions of a plan of several runs by the clock, kept in the run of its first answer: a command that was killed and
is given again decides the same."""

from pathlib import Path
from typing import Any, TypeVar

from trainers.storage.run_folder import command_line, read_if_whole, write_json

FILE = "plan.json"
T = TypeVar("T")


def recalled(first: Path | None, name: str, kind: type[T]) -> T | None:
    """Return what the same command decided before under this name; None where it did not, or no run is the `first`."""
    plan = None if first is None else read_if_whole(first / FILE, argv=list, **{name: kind})
    return plan[name] if plan is not None and plan["argv"] == plain_command() else None


def remember(first: Path | None, **decided: Any) -> None:
    """Write a decision beside those that the same command took before."""
    if first is not None:
        before = read_if_whole(first / FILE, argv=list) or {}
        kept = before if before.get("argv") == plain_command() else {}
        write_json(first / FILE, kept | {"argv": plain_command()} | decided)


def plain_command() -> list[str]:
    return [word for word in command_line() if word != "--auto-resume"]
