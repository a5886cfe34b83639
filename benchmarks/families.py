"""Stop, starve and mislead every family of runs at random moments; repeat the command; compare the bits.

python -m benchmarks.families [--only FAMILY ...] [--faults ...] [--tries 200] [--seed 0] [--again families.jsonl]

The families are two processes, a cached probe, an average of weights, accumulation, MixUp with loader processes, SGD
with patience, a time limit, a comparison that tunes its rates, and pretrained weights of which the last block trains.
Each try draws a family, a fault and a moment, by `--seed`:

- KILL: a process of the command is killed when it has computed for so long.
- CALL: a system call that changes a file kills it, or fails by a full or a broken disk (`benchmarks.faults`).
- LOADER: a loader process is killed. CLOCK: it is killed, and the clock is set back by a day before it goes on.
- READ-ONLY: the folder can no longer be written to. INODES: no more files can be made. Both need root (chattr, mount).
- MEMORY: the address space may not grow beyond a size (RLIMIT_AS).

Then the same command is given again, undisturbed. What it must end with, and the verdicts, are those of
`tests.disturbed_commands`. Each try is a line of --output; the counts go to benchmarks/results/families.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks import environment
from benchmarks.faults import counts
from tests import disturbed_commands
from tests.disturbed_commands import CALLS, Ended, Moment, content, import_everything, leftovers, moments, start

SMALL = ["--data", "digits", "--labels-per-class", "5", "--device", "cpu", "--tb", "scalars", "--output-dir", "{}",
         "--run-name", "r"]  # fmt: skip
TRAIN = ["train", *SMALL, "--auto-resume", "--batch-size", "5", "--save-every", "4", "--epochs", "2"]
ALONE = [*TRAIN, "--workers", "0"]
MICRO = ["--model", "vit_micro_2", "--dropout", "0.1"]
PRETRAINED = ["--model", "vit_nano_8", "--weights", "fashion_mnist"]
FAMILIES: dict[str, list[str]] = {
    "two processes": [*ALONE, *MICRO, "--batch-size", "10"],
    "cached probe": [*ALONE, *PRETRAINED, "--trainable", "head", "--cache-features", "on", "--augment", "none"],
    "EMA": [*ALONE, *MICRO, "--ema-decay", "0.9"],
    "accumulation": [*ALONE, *MICRO, "--accumulate", "2"],
    "MixUp, loaders": [*TRAIN, *MICRO, "--mixup", "0.2", "--cutmix", "1.0", "--workers", "2"],
    "SGD, patience": [*ALONE, *MICRO, "--epochs", "4", "--optimizer", "sgd", "--lr", "1e-9", "--patience", "1"],
    "time limit": [*ALONE, *MICRO, "--max-minutes", "0.0123"],
    "compare, tuned": ["compare", *SMALL, "--batch-size", "5", "--workers", "0", "--epochs", "1", "--arms",
                       "vit_micro_2", "vit_micro_2,pool=mean", "--seeds", "1", "--tune-lr", "on",
                       "--lr-grid", "0.001", "0.01"],
    "last block": [*ALONE, *PRETRAINED, "--trainable", "last:1"],
}  # fmt: skip
FAULTS = ("KILL", "CALL", "LOADER", "CLOCK", "READ-ONLY", "INODES", "MEMORY")
SHARES = (6, 6, 1, 2, 2, 2, 2)
DAY = 86_400


@dataclass
class Undisturbed:
    """Outcome of a family that is left alone: its results, seconds of computing, files, most memory, and calls."""

    content: dict[str, Any]
    seconds: float
    files: int
    memory: tuple[int, int]
    calls: list[Moment]


def prepare(family: str) -> Callable[[], None]:
    """Prepare the process of a command before it starts."""

    def of_two() -> None:
        from trainers.system import process

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        os.environ |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
        if os.fork() == 0:
            os.environ |= {"RANK": "1", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none"}
            process.end_with_torchrun()  # which the first process stands for here

    def of_ticks() -> None:
        from trainers import budget

        ticks = count()  # each step takes one: 50 ms, on every machine
        budget.time = SimpleNamespace(perf_counter=lambda: 0.05 * next(ticks))  # type: ignore[assignment]

    return {"two processes": of_two, "time limit": of_ticks}.get(family, lambda: None)


def computed(pid: int) -> float:
    """Seconds for which a process has computed: what is a moment of a run, however busy the machine is."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> int:
    """Bytes of address space of a process."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class At:
    """Calls `act` with the number of a process, once, as soon as it has computed for so many seconds."""

    def __init__(self, seconds: float, act: Callable[[int], bool]) -> None:
        """`act` tells whether it has done it; else it is called again."""
        self.seconds, self.act, self.done = seconds, act, False

    def __call__(self, pid: int) -> None:
        if not self.done and computed(pid) >= self.seconds:
            self.done = self.act(pid)


def kill(pid: int) -> bool:
    os.kill(pid, signal.SIGKILL)
    return True


def kill_child(pid: int) -> bool:
    those = children(pid)
    return bool(those) and kill(random.choice(those))


@contextmanager
def disk(folder: Path, files: int | None) -> Iterator[None]:
    """A file system of its own at `folder`, on which so many files fit; None: an ordinary folder."""
    folder.mkdir()
    if files is None:
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"nr_inodes={files},size=200m", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def attribute(folder: Path, change: str) -> bool:
    """Make a folder and all in it immutable (`+i`), or mutable (`-i`)."""
    subprocess.run(["chattr", "-R", "-f", change, folder])
    return True


def leave_alone(family: str, folder: Path) -> Undisturbed:
    """Run a family to its end, once for its results and once more under strace for its calls."""
    argv, before = [word.format(folder) for word in FAMILIES[family]], memory(os.getpid())
    most = [before, 0.0]

    def watch(pid: int) -> None:
        most[:] = max(most[0], memory(pid)), max(most[1], computed(pid))

    shutil.rmtree(folder, ignore_errors=True)
    done = start(argv, folder, first=prepare(family), meanwhile=watch)
    assert done.code == 0, done.text
    expected, files = content(folder), len([*folder.rglob("*")])
    shutil.rmtree(folder)
    done = start(argv, folder, "-y", "-e", f"trace={CALLS}", first=prepare(family))
    assert done.code == 0, done.text
    trace = re.sub("^", "1 ", folder.with_suffix(".strace").read_text(), flags=re.MULTILINE)  # of one thread
    same = content(folder)
    differing = [key for key in expected if expected[key] != same[key]]
    assert not differing, f"two undisturbed runs differ: {differing}"
    return Undisturbed(expected, most[1], files, (before, int(most[0])), moments(trace, folder))


def disturb(family: str, fault: str, folder: Path, alone: Undisturbed, draw: random.Random) -> tuple[Ended, str]:
    """The first life of a command; how it ended, and what was done to it, "" if its moment did not come."""
    argv = [word.format(folder) for word in FAMILIES[family]]
    first, moment = prepare(family), draw.random()
    if fault == "CALL":
        call, how = draw.choice(alone.calls), draw.choice(["signal=KILL", "error=ENOSPC", "error=EIO"])
        inject = f"inject={call.call}:{how}:when={call.when}"
        ended = start(argv, folder, "-y", "-e", f"trace={call.call}", "-e", inject, first=first)
        return ended, f"{how} {ended.hit}" if str(folder) in ended.hit else ""
    if fault == "MEMORY":
        least, most = alone.memory
        limit = int(least + moment * (most - least))

        def bounded() -> None:
            first()
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        ended = start(argv, folder, first=bounded)
        return ended, f"{limit / 1e6:.0f} MB" if ended.code else ""
    if fault == "INODES":
        ended = start(argv, folder, first=first)
        return ended, "full" if ended.code else ""
    act = {"LOADER": kill_child, "READ-ONLY": lambda _: attribute(folder, "+i")}.get(fault, kill)
    if fault == "KILL" and family == "two processes" and draw.random() < 0.5:
        act = kill_child
    at = At(moment * alone.seconds, act)

    def tomorrow() -> None:
        first()
        now = time.time
        time.time = lambda: now() + DAY

    ended = start(argv, folder, first=tomorrow if fault == "CLOCK" else first, meanwhile=at)
    return ended, f"after {at.seconds:.2f} s" if at.done else ""


def make_all_of_tomorrow(folder: Path) -> None:
    for path in folder.rglob("*"):
        status = path.lstat()
        os.utime(path, (status.st_atime + DAY, status.st_mtime + DAY), follow_symlinks=False)


def attempt(family: str, fault: str, folder: Path, alone: Undisturbed, draw: random.Random) -> dict[str, Any]:
    """Disturb a command, give it again, and compare."""
    with disk(folder, draw.randint(2, alone.files) if fault == "INODES" else None):
        first, hit = disturb(family, fault, folder, alone, draw)
        if fault == "INODES":
            subprocess.run(["mount", "-o", "remount,nr_inodes=0", folder], check=True)
        if fault == "READ-ONLY":
            attribute(folder, "-i")
        if fault == "CLOCK":
            make_all_of_tomorrow(folder)
        second = start([word.format(folder) for word in FAMILIES[family]], folder, first=prepare(family))
        try:
            now: dict[str, Any] = content(folder)
        except Exception as error:  # whatever is missing or broken there
            now = {"unreadable": f"{type(error).__name__}: {error}"}
        differs = sorted(key for key in alone.content.keys() | now.keys() if alone.content.get(key) != now.get(key))
        left = leftovers(folder)
    shutil.rmtree(folder)
    killed = "KILL" if fault in ("KILL", "CLOCK") or "signal=KILL" in hit else fault
    verdict = disturbed_commands.verdict(killed, replace(first, hit=hit), second, differs)
    return {
        "command": family, "fault": fault, "hit": hit.replace(str(folder), "RUNS")[:200],
        "first": first.code, "first_says": first.text.strip().splitlines()[-1:],
        "second": second.code, "second_says": second.text.strip().splitlines()[-1:],
        "differs": differs, "left": left, "verdict": verdict,
        "text": (first.text + second.text)[-6000:] if verdict not in ("recovered", "not reached") else "",
    }  # fmt: skip


def drawn(options: argparse.Namespace) -> list[tuple[str, str, int]]:
    """Family, fault and seed of each try: the families in turn, each with every fault that it can have."""
    if options.again is not None:
        rows = [json.loads(line) for line in options.again.read_text(encoding="utf-8").splitlines()]
        rest = [row for row in rows if row["verdict"] not in ("recovered", "not reached")]
        return sorted((row["command"], row["fault"], row["seed"]) for row in rest)
    draw, tries = random.Random(options.seed), []
    shares = [share if fault in options.faults else 0 for fault, share in zip(FAULTS, SHARES, strict=True)]
    for number in range(options.tries):
        fault = draw.choices(FAULTS, shares)[0]
        family = "MixUp, loaders" if fault == "LOADER" else options.only[number % len(options.only)]
        tries.append((family, fault, draw.randrange(2**32)))
    return sorted(tries, key=lambda one: list(FAMILIES).index(one[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", type=Path, help="play what did not recover in this file of an earlier sweep")
    parser.add_argument("--output", type=Path, default=Path("families.jsonl"), help="where each try is added as a line")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    import_everything()
    work, alone = Path(tempfile.mkdtemp()), dict[str, Undisturbed]()
    try:
        for number, (family, fault, seed) in enumerate(drawn(options)):
            if family not in alone:
                alone[family] = leave_alone(family, work / "alone")
                print(f"{family}: {alone[family].seconds:.1f} s, {len(alone[family].calls)} calls", flush=True)
            row = attempt(family, fault, work / str(number), alone[family], random.Random(seed))
            with options.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row | {"seed": seed}) + "\n")
    finally:
        shutil.rmtree(work)
    rows = [json.loads(line) for line in options.output.read_text(encoding="utf-8").splitlines()]
    rest = [row for row in rows if row["verdict"] not in ("recovered", "not reached")]
    environment.write_result("families", environment.describe() | {"counts": counts(rows), "rest": rest})


if __name__ == "__main__":
    main()
