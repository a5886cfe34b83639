"""One process at a time works in a folder; whoever comes second is told who is there.

The lock is a file that its maker alone can create, so it also works where folders are shared over a network. It names
host, process and the time at which that process started: on the same machine a dead holder is known by them. On
another one the holder is taken for dead when it stops touching the file.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from datasets.files import is_alive
from trainers import distributed
from trainers.console import say
from trainers.errors import ConfigError

NAME = ".lock"
SECONDS_BETWEEN_SIGNS = 10.0
SECONDS_OF_SILENCE = 60.0
SECONDS_TO_WRITE = 5.0  # what is empty for longer was made by a process that died in between


def take(folder: Path, name: str = NAME) -> None:
    """Become the holder of a folder's lock.

    Raises:
        ConfigError: another process holds it.
    """
    path = folder / name
    while True:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            remove_if_dead(path)
            continue
        me = describe_me()
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump(me, file)
        except OSError:
            path.unlink()
            raise
        if read(path) == me:  # else this process was halted on its way, and taken for dead
            return


@contextmanager
def kept(folder: Path) -> Iterator[None]:
    """Show signs of life while the block runs, and give the lock back at its end."""
    if not distributed.is_main_process():
        yield
        return
    path, ended = folder / NAME, threading.Event()

    def show_signs_of_life() -> None:
        while not ended.wait(SECONDS_BETWEEN_SIGNS):
            with suppress(OSError):
                if read(path) == mine:
                    os.utime(path)

    mine = read(path)
    threading.Thread(target=show_signs_of_life, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        if mine is not None and read(path) == mine:
            path.unlink(missing_ok=True)


def remove_if_dead(path: Path) -> None:
    """Remove the lock of a holder that is no more.

    Raises:
        ConfigError: the holder lives.
    """
    sign, holder = last_sign(path), read(path)
    if lives(path, holder):
        who = describe(holder or {})
        raise ConfigError(f"{path.parent} is in use by {who}: wait for it or stop it; if it is gone, remove {path}")
    # One process at a time: else a slow one could remove the lock that a quick one has taken meanwhile.
    take(path.parent, f"{path.name}+")
    try:
        if last_sign(path) == sign:
            path.unlink(missing_ok=True)
    finally:
        path.with_name(f"{path.name}+").unlink()


def lives(path: Path, holder: dict[str, Any] | None) -> bool:
    """Whether the holder of a lock is there; of one on another machine it takes up to a minute to know."""
    known = is_running(holder) if holder else None
    if known is not None:
        return known
    patience = SECONDS_OF_SILENCE if holder else SECONDS_TO_WRITE
    if holder:
        say(f"{path.parent} was in use by {describe(holder)}: waiting {patience:.0f} s for a sign of life")
    first, end = last_sign(path), time.monotonic() + patience
    while time.monotonic() < end:
        time.sleep(min(0.5, patience / 4))
        if (sign := last_sign(path)) != first:
            return sign is not None
    return False


def is_left(folder: Path) -> bool:
    """Whether a folder that takes a moment to fill was left by a process that is no more."""
    holder = read(folder / NAME)
    running = is_running(holder) if holder else None
    return time.time() - folder.stat().st_mtime > SECONDS_OF_SILENCE if running is None else not running


def is_running(holder: dict[str, Any]) -> bool | None:
    """Whether a process is there; None where this cannot be known from here."""
    me = describe_me()
    if holder.get("machine") != me["machine"]:
        return None
    if me["start_time"] is not None:
        return start_time(holder["pid"]) == holder["start_time"]
    return None if is_alive(holder["pid"]) else False


def describe(holder: dict[str, Any]) -> str:
    names = ("pid", "host", "since")
    pid, host, since = (holder.get(name, "unknown") for name in names)
    return f"process {pid} on {host}, since {since}"


def describe_me() -> dict[str, Any]:
    """Host, process and its start; a number of a process means something within a machine's uptime and namespace."""
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        machine = socket.gethostname()
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "start_time": start_time(os.getpid()),
        "machine": machine,
    }


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since the machine did; None where there is none, or none that lives."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(fields[18])


def read(path: Path) -> dict[str, Any] | None:
    """Who holds a lock; None where it is gone, or not whole."""
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return holder if isinstance(holder, dict) else None


def last_sign(path: Path) -> tuple[int, int] | None:
    """Which file a lock is, and when it was last touched; None where it is gone."""
    try:
        with open(path, "rb") as file:  # opened, so that a network disk looks again
            status = os.fstat(file.fileno())
            return status.st_ino, status.st_mtime_ns
    except FileNotFoundError:
        return None
