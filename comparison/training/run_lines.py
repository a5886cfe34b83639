"""Lines of a comparison as it trains: a row for each run that has ended, in columns that fit the terminal."""

import shutil
from collections.abc import Mapping

from common.text import ellipsis, printable
from comparison.request.plan import ComparisonPlan
from trainers.reporting import console
from trainers.run_status import RunResult
from trainers.storage.run_folder import read_json

WIDE = 120
"""Width of a line where there is no terminal."""
SHORTEST = 12
"""Letters of an arm's name that are shown, however narrow the terminal is."""


class RunLines:
    """A table that grows by a row for each run. Labels and learning rates have a column where they differ."""

    def __init__(self, plan: ComparisonPlan) -> None:
        self.plan, self.begun = plan, False
        self.names = [printable(arm.name) for arm in plan.arms]
        longest = max(map(len, [*self.names, "arm"]))
        rates = max(len(rate_text(rate)) for arm in plan.arms for rate in plan.rates(arm))
        widths = {"run": 4 + len(str(plan.number_of_runs)), "labels": 6, "seed": 4, "lr": rates, "arm": longest}
        widths |= {"val": 8, "time": 6, "left": 6}
        unused = {"labels": len(plan.request.labels) == 1, "lr": not plan.tuned}
        self.widths = {name: width for name, width in widths.items() if not unused.get(name)}
        others = sum(self.widths.values()) - longest + 2 * (len(self.widths) - 1)
        room = min(WIDE, shutil.get_terminal_size((WIDE, 24)).columns) - others
        self.widths["arm"] = min(longest, max(SHORTEST, room))

    def say(
        self,
        cell: tuple[int, int],
        seed: int,
        lr: float | None,
        result: RunResult | None,
        *,
        number: int,
        left: str,
    ) -> None:
        """Print the row of a run of this condition and arm, the heading first. No `result`: it diverged."""
        if not self.begun:
            console.say(self.line({name: name for name in self.widths} | {"val": "val acc"}))
            self.begun = True
        labels, seconds = self.plan.request.labels[cell[0]], ""
        if result is not None:
            seconds = f"{read_json(result.run_dir / 'summary.json')['seconds']:.0f} s"
        shown = {
            "run": f"{number:>3}/{self.plan.number_of_runs}",
            "labels": "all" if labels is None else f"{labels:,}",
            "seed": str(seed),
            "lr": rate_text(lr),
            "arm": self.names[cell[1]],
            "val": "diverged" if result is None else f"{result.val['accuracy']:.1%}",
            "time": seconds,
            "left": left,
        }
        console.say(self.line(shown))

    def line(self, shown: Mapping[str, str]) -> str:
        """Join the cells of a row: the arm begins at its left edge, the others end at their right."""
        arm = ellipsis(shown["arm"], self.widths["arm"])
        cells = (arm.ljust(width) if name == "arm" else shown[name].rjust(width) for name, width in self.widths.items())
        return "  ".join(cells).rstrip()


def rate_text(rate: float | None) -> str:
    """Write a learning rate in few letters; None is the default of the arm."""
    return "-" if rate is None else f"{rate:g}"
