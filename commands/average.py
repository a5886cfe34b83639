"""`average RUN...`: one model from several runs, or from the start and the end of one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from commands import arguments
from commands.arguments import UsageError
from commands.train import score_lines


@dataclass(frozen=True)
class Options:
    """Average the best weights of runs that started from the same weights, such as the seeds of one recipe. Of one run:
    the point between its start and its end that is best on the validation images. The result is a .safetensors file
    that evaluate, predict and export open.
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run directories, or `latest`."""
    greedy: bool = False
    """Greedy soup: add one run after the other, the best first, as long as the validation score does not fall. Default:
    average all."""
    output: Path | None = None
    """File to write. Default: export/average.safetensors in the first run."""
    output_dir: Path = Path("runs")
    """Folder in which `latest` is looked for."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise UsageError("no run named; see python main.py average --help")
        if self.greedy and len(self.runs) == 1:
            raise UsageError("--greedy chooses among several runs; of one run the points of a line are tried")


def main(options: Options) -> int:
    from inference.average import average
    from trainers.storage.finished_run import find_run

    runs = [find_run(name, options.output_dir) for name in options.runs]
    path = options.output or runs[0] / "export" / "average.safetensors"
    if path.suffix != ".safetensors":
        raise arguments.UsageError(f"output {path} must end in .safetensors")
    print("\n".join(score_lines(average(runs, path, greedy=options.greedy))))
    print(f"\n{'written':>9}  {path}")
    return 0
