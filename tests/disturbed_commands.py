"""Small commands that are stopped or starved at a system call, then given again; what must come out the same.

Each command is started once under strace, which lists its calls that create, write, flush, rename or remove a file in
its folder. Then, for each of them, the command starts in a new folder, and strace kills it at that call (KILL), or lets
that call fail (ENOSPC, EIO); the same command is then given again, undisturbed. It must end with the bits of the one
that nothing disturbed, or with one line that says what to do.

Commands are forked from this process, which has imported everything: a try takes seconds, not tens of them.
"""

from __future__ import annotations

import atexit
import csv
import hashlib
import importlib
import json
import logging
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vit.tensor_files import SEAL

CALLS = (
    "openat,write,pwrite64,writev,ftruncate,fsync,fdatasync,rename,renameat,renameat2,link,linkat,symlink,unlink,unlinkat"
    ",mkdir,mkdirat,rmdir"
)
SMALL = ["--data", "digits", "--labels-per-class", "5", "--batch-size", "5", "--device", "cpu", "--workers", "0",
         "--tb", "scalars", "--output-dir", "{}"]  # fmt: skip
ROOT = Path(__file__).resolve().parent.parent
TRAIN = [*SMALL, "--model", "vit_micro_2", "--config", str(ROOT / "tests" / "disturbed.toml"), "--auto-resume"]
ARMS = ["vit_micro_2", "vit_micro_2,pool=mean"]
COMMANDS: dict[str, list[str]] = {
    "train": ["train", *TRAIN, "--epochs", "2", "--patience", "9", "--run-name", "r"],
    "folds": ["train", *TRAIN, "--epochs", "1", "--folds", "2", "--run-name", "f", "--jobs", "1"],
    "compare": ["compare", *SMALL, "--epochs", "1", "--arms", *ARMS, "--seeds", "1", "--tune-lr", "off",
                "--run-name", "c", "--jobs", "1"],
    "export": ["export", "{}/digits/r", "--format", "safetensors"],
}  # fmt: skip
FAULTS = ("KILL", "ENOSPC", "EIO")
PATIENCE = 900  # seconds until a command counts as hanging: on a busy machine three minutes were too few


@dataclass(frozen=True)
class Moment:
    """The `when`-th `call` of the main thread."""

    call: str
    when: int


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, or minus the signal; what it said; the call that was disturbed."""

    code: int
    text: str
    hit: str = ""
    outlived: bool = False
    """Whether a process of the command was still there half a minute after it had ended."""

    @property
    def one_line(self) -> bool:
        return "Traceback" not in self.text and "error: " in self.text


def start(
    argv: Sequence[str],
    folder: Path,
    *options: str,
    first: Callable[[], object] = bool,
    meanwhile: Callable[[int], object] = bool,
) -> Ended:
    """Run a command of main.py in a fork of this process, under strace where there are options for it.

    The fork calls `first` before it starts; `meanwhile` is called over and over with its number.
    """
    log, trace = folder.with_suffix(".txt"), folder.with_suffix(".strace")
    log.unlink(missing_ok=True)
    trace.unlink(missing_ok=True)
    wait, go = os.pipe()
    ends, alive = os.pipe()  # whose other end is open in every process of the command
    pid = os.fork()
    if pid == 0:
        in_child(argv, log, wait, first)
    os.close(alive)
    tracer = None
    if options:
        tracer = subprocess.Popen(["strace", "-p", str(pid), "-o", str(trace), *options], stderr=subprocess.PIPE)
        assert tracer.stderr is not None
        attached = tracer.stderr.readline()
        if b"attached" not in attached:
            os.kill(pid, signal.SIGKILL)
            raise SystemExit(f"strace cannot attach here: {attached.decode().strip()}")
    os.write(go, b"1")
    os.close(wait)
    os.close(go)
    code = ended(pid, meanwhile)
    outlived = not select.select([ends], [], [], 30)[0]
    os.close(ends)
    if tracer is not None:
        tracer.communicate()
    disturbed = re.findall(r".*\(INJECTED\)|.*\n(?=.*killed by SIGKILL)", trace.read_text()) if options else []
    return Ended(code, log.read_text(errors="replace"), disturbed[0].strip() if disturbed else "", outlived)


def in_child(argv: Sequence[str], log: Path, wait: int, first: Callable[[], object]) -> None:
    import main

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.read(wait, 1)
    code = 70
    try:
        first()
        code = main.main(list(argv))
        atexit._run_exitfuncs()
        sys.stdout.flush()
    finally:
        os._exit(code)


def ended(pid: int, meanwhile: Callable[[int], object]) -> int:
    """The exit code of a child; one that hangs is killed, with -99."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        meanwhile(pid)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -99


def moments(trace: str, folder: Path) -> list[Moment]:
    """The calls in the log of `strace -f -y` that change something in `folder`; see `thinned`."""
    count: dict[str, Counter[str]] = defaultdict(Counter)
    calls = re.findall(r"^(\d+) +(\w+)\((.*)$", trace, re.MULTILINE)
    found: dict[tuple[str, str], list[Moment]] = defaultdict(list)
    for place, (pid, call, arguments) in enumerate(calls):
        count[pid][call] += 1
        reads = call == "openat" and not re.search("O_WRONLY|O_RDWR|O_CREAT", arguments)
        if not reads and re.search(re.escape(str(folder)) + '[/">]', arguments):
            if pid != calls[0][0]:
                continue  # strace counts by thread: the main one would be at its own call of this number first
            kind = re.sub(r"[^/]*<|>.*", "", arguments) if call == "write" else str(place)
            found[call, kind].append(Moment(call, count[pid][call]))
    return [*dict.fromkeys(moment for of_file in found.values() for moment in thinned(of_file))]


def thinned(writes: Sequence[Moment]) -> list[Moment]:
    """Of many writes to one file the first two, one in the middle and the last: what they leave differs in length."""
    return [*writes] if len(writes) <= 4 else [*writes[:2], writes[len(writes) // 2], writes[-1]]


def content(folder: Path) -> dict[str, Any]:
    """All that must come out the same: of each run its weights, history and curves; tables; exports."""
    from tests.killed_runs import run_content
    from trainers.storage.run_folder import read_json

    found: dict[str, Any] = {}
    for run in sorted(path.parent for path in folder.rglob("summary.json")):
        name = str(run.relative_to(folder))
        if name.startswith(".") or "/." in name:
            continue
        found |= {f"{name}: {part}": value for part, value in run_content(run).items()}
        summary = read_json(run / "summary.json")
        found |= {f"{name}: {part}": summary[part] for part in ("status", "best", "test", "epochs")}
        found |= {f"{name}: {path.name}": digest(path) for path in (run / "split.csv", *run.glob("eval/[!.]*.csv"))}
    for table in folder.glob("*/[!.]*/table.csv"):
        with table.open(newline="") as file:
            rows = [{k: v for k, v in row.items() if not TIMING.search(k)} for row in csv.DictReader(file)]
        found[f"{table.parent.name}: {table.name}"] = rows
        found[f"{table.parent.name}: files"] = sorted(path.name for path in table.parent.glob("[!.]*.*"))
    for table in folder.glob("*/*folds*.csv"):
        found[table.name] = digest(table)
    for export in folder.glob("*/*/export/[!.]*"):
        found[export.name] = contents_of_safetensors(export)
    return found


TIMING = re.compile("second|minute|per_s|memory|time|hour|^runs$")  # and where the runs lie


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def contents_of_safetensors(path: Path) -> tuple[Any, str]:
    """Header and tensors, without the seal: the library writes the header's keys in an order of chance."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    del header["__metadata__"][SEAL]
    return header, hashlib.sha256(content[end:]).hexdigest()


def leftovers(folder: Path) -> list[str]:
    """Hidden files that nobody asked for, but for what a killed writer had begun: the next one removes it in a day."""
    paths = (path.relative_to(folder) for path in folder.rglob(".*"))
    return sorted(str(path) for path in paths if ".tmp" not in path.name)


def attempt(name: str, moment: Moment, fault: str, folder: Path, expected: dict[str, Any]) -> dict[str, Any]:
    """Disturb one call, give the command again, and compare."""
    argv = [word.format(folder) for word in COMMANDS[name]]
    what = "signal=KILL" if fault == "KILL" else f"error={fault}"
    inject = f"inject={moment.call}:{what}:when={moment.when}"
    first = start(argv, folder, "-y", "-e", f"trace={moment.call}", "-e", inject)
    if str(folder) not in first.hit:
        first = replace(first, hit="")  # another file: how many the imports open varies
    second = start(argv, folder)
    try:
        now: dict[str, Any] = content(folder)
    except Exception as error:  # whatever is missing or broken there
        now = {"unreadable": f"{type(error).__name__}: {error}"}
    differs = sorted(key for key in expected.keys() | now.keys() if expected.get(key) != now.get(key))
    return {
        "command": name, "fault": fault, "call": moment.call, "when": moment.when,
        "hit": first.hit.replace(str(folder), "RUNS")[:200], "first": first.code,
        "first_says": first.text.strip().splitlines()[-1:] , "second": second.code,
        "second_says": second.text.strip().splitlines()[-1:], "differs": differs, "left": leftovers(folder),
        "verdict": verdict(fault, first, second, differs),
    }  # fmt: skip


def verdict(fault: str, first: Ended, second: Ended, differs: Sequence[str]) -> str:
    """recovered; said (one line, and the command does not go on); or what went wrong."""
    if not first.hit:
        return "not reached"
    if -99 in (first.code, second.code) or first.outlived or second.outlived:
        return "hangs"
    if fault != "KILL" and first.code != 0 and not first.one_line:
        return "traceback"
    if 0 in (first.code, second.code):  # a comparison that is finished is not begun again under its name
        return "lost" if differs else "recovered"
    return "said" if second.one_line else "traceback"


def prepared(name: str, folder: Path, base: Path) -> Path:
    """A new folder for one try: empty, or for an export with the finished run in it."""
    shutil.rmtree(folder, ignore_errors=True)
    if name == "export":
        shutil.copytree(base, folder)
    return folder


def sweep(
    names: Sequence[str], note: Callable[[dict[str, Any]], object], *, faults: Sequence[str] = FAULTS, part: str = "1/1"
) -> None:
    """Try every moment of these commands, or with `part` I/N each N-th from the I-th on, and `note` each try."""
    import torch

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # TensorBoard says of each resumed run that it has been resumed
    import_everything()
    work = Path(tempfile.mkdtemp())  # not TemporaryDirectory: each fork would remove it at its end
    try:
        for name in names:
            expected, tries = moments_of(name, work, faults)
            print(f"{name}: {len(tries)} moments", flush=True)
            first, parts = map(int, part.split("/"))
            for fault, moment in tries[first - 1 :: parts]:
                note(attempt(name, moment, fault, prepared(name, work / name, work / "base"), expected))
    finally:
        shutil.rmtree(work)


def moments_of(name: str, work: Path, faults: Sequence[str]) -> tuple[dict[str, Any], list[tuple[str, Moment]]]:
    """What one command leaves where nothing disturbs it, and the faults and moments to try."""
    base, folder = work / "base", work / name
    if name == "export" and not base.exists():
        assert start([word.format(base) for word in COMMANDS["train"]], base).code == 0
    argv = [word.format(folder) for word in COMMANDS[name]]
    done = start(argv, prepared(name, folder, base), "-f", "-y", "-e", f"trace={CALLS}")
    assert done.code == 0, done.text
    expected = content(folder)
    calls = moments(folder.with_suffix(".strace").read_text(), folder)
    return expected, [(fault, moment) for fault in faults for moment in calls]


def import_everything() -> None:
    """What any of the commands imports, so that a fork need not."""
    rooms = ("commands", "comparison", "inference", "trainers", "datasets", "vit", "common")
    for path in sorted(path for room in rooms for path in ROOT.glob(f"{room}/**/*.py")):
        importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
