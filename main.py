"""Run the command line: argv -> options -> one command -> exit code. No tensor code, nothing heavy for --help."""

import io
import os
import select
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

from common.errors import Interrupted, exit_code, first_line, out_of_memory, system_reason
from common.shell import PREFIX, PROGRAM, command
from common.text import printable
from trainers.system import process
from trainers.system.signals import signals

COMMANDS = {
    "train": "train one model, from scratch or from pretrained weights",
    "compare": "train several models under one protocol: which one is better?",
    "rank": "rank pretrained backbones with one forward pass per image",
    "resume": "continue a stopped run, as if it had never stopped",
    "evaluate": "score a run's best weights again, class by class",
    "predict": "classify image files, folders or globs: CSV out",
    "explain": "show heat maps of the evidence for a class, tested for faithfulness",
    "export": "write a model as safetensors or ONNX, and check the file",
    "serve": "open a page on this machine to try a model on",
    "check": "find what is wrong with a set of images, before training",
    "pack": "write a set of images as tar shards: few large files",
    "clean": "find likely label errors, and make a table without them",
    "next": "choose which pictures to label next, and label them on a page",
    "summary": "print a model's layers: output shapes, parameters, GFLOPs",
}

ALONE = {
    "COMMAND -h": "a command's options",
    "COMMAND --debug": "an error's traceback",
    "--version": "versions of program and libraries",
}
"""Rows below the commands in the help."""


def usage() -> str:
    """Return the help of the whole program."""
    listed = "\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items())
    rows = [(f"{PROGRAM} {words}", text) for words, text in ALONE.items()]
    first = 2 + max(len(words) for words, _ in rows)
    between = f"\n{'':<12}" if first + max(len(text) for _, text in rows) > 80 else ""
    rest = "\n".join(f"{words}{between}{text}" if between else f"{words:<{first}}{text}" for words, text in rows)
    return f"""usage: {PROGRAM} [COMMAND] [OPTIONS]

Train Vision Transformers and compare them; TensorBoard shows the runs. Without
a command: a ViT from scratch against the same one pretrained, on 1,797 scanned
digits, in about two minutes.

commands:
{listed}

{rest}"""


def main(argv: list[str]) -> int:
    """Run one command: 0 ok, 1 internal error, 2 usage, 3 data or weights, 4 training failed, 128 + its number
    interrupted by a signal, 141 whoever read the output has stopped."""
    with process.usable_streams():
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show raises no error
        return ended([word for word in argv if word != "--debug"], debug="--debug" in argv)


def ended(argv: list[str], *, debug: bool) -> int:
    """Run one command and return its exit code; print an exception as one line."""
    try:
        with signals.handled():
            code = answer(argv)
            sys.stdout.flush()  # here, where a closed pipe is handled
        return code
    except KeyboardInterrupt:
        return complain("interrupted", 130)
    except Interrupted as stop:
        return complain(str(stop), stop.exit_code)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and reader_has_left():
            with suppress(OSError):  # `2>&1 | head`
                for hint in getattr(error, "__notes__", ()):
                    print(f"nobody reads the output any more; {hint}", file=sys.stderr)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing can be printed at exit, either
            return 141
        code = exit_code(error)
        if debug or code == 1:
            traceback.print_exc()
        return complain(reason(error), code)


def reader_has_left() -> bool:
    """Return whether the reader of the output has stopped, such as `| head`.

    True if the system cannot tell."""
    try:
        looking = select.poll()
        looking.register(sys.stdout.fileno(), 0)  # errors and hang-ups are always reported
        return bool(looking.poll(0))
    except (AttributeError, OSError, ValueError):
        return True


def answer(argv: list[str]) -> int:
    """Run the command that the words name; return its exit code."""
    if argv[:1] in (["--help"], ["-h"], ["help"]):
        print(usage())
        return 0
    if find_spec("torch") is None:
        return complain(f"{sys.executable} has no torch; try .venv/bin/python main.py, which `make run` sets up", 2)
    if argv in (["--version"], ["-V"]):
        from common.versions import versions_of

        found = versions_of("torch", "torchvision", "pytorch-ignite", "tensorboard")
        print(", ".join(f"{name} {version}" for name, version in found.items()))
        return 0
    if not argv:
        from commands.compare import STORY

        argv = ["compare", *STORY]
        print(f"{command(*argv)}\n")
    name = argv[0]
    if name not in COMMANDS:
        from common.text import did_you_mean

        return complain(f"unknown command {name!r}{did_you_mean(name, COMMANDS)}", 2)
    from commands.parser import parse

    module = module_of(name)
    code: int = module.main(parse(module.Options, argv[1:], prog=command(name)))
    return code


def module_of(name: str) -> Any:
    """Import the module of a command only when it is needed: most import torch, help does not."""
    return import_module(f"{PREFIX}commands.{name}")


def reason(error: Exception) -> str:
    """Describe an exception in one line; of the operating system's, also the remedy."""
    if hasattr(error, "exit_code"):
        return str(error)
    if out_of_memory(error):
        return f"out of memory ({first_line(error)}); give the same command with more of it free"
    return system_reason(error) if isinstance(error, OSError) else str(error)


def complain(message: str, code: int) -> int:
    below = "\n" if code > 128 and sys.stderr.isatty() else ""  # the terminal has put ^C on this line
    print(f"{below}error: {printable(message)}", file=sys.stderr)
    return code


def program() -> NoReturn:
    """Run the whole program on the words of the command line."""
    process.settle()
    process.choose_waiting(sys.argv[1:])
    process.leave(main(sys.argv[1:]))


if __name__ == "__main__":
    program()
