"""Completion of commands and options for bash, and for zsh after `autoload -U bashcompinit && bashcompinit`."""

from collections.abc import Iterator, Mapping

from commands.arguments import Command, TrainOptions, named
from commands.first_screen import ASKED

PROGRAM = "vit-train"


def script(commands: Mapping[str, Command]) -> str:
    """The text that a shell evaluates: after the program's name come commands, after a command its options or files."""
    return "\n".join(lines(commands))


def lines(commands: Mapping[str, Command]) -> Iterator[str]:
    """The lines of the script."""
    yield "_vit_train() {"
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" words=""'
    yield '    case "${COMP_WORDS[1]}" in'
    for name, module in commands.items():
        options = sorted({*named(getattr(module, "Options", TrainOptions)), *ASKED, "--debug"})
        yield f'        {name}) words="{" ".join(options)}" ;;'
    yield "    esac"
    yield f'    [ "$COMP_CWORD" -eq 1 ] && words="{" ".join(commands)}"'
    yield '    COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield f"complete -o default -F _vit_train {PROGRAM}"
