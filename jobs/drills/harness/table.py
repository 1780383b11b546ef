"""Rows of drills, and the table of them in cluster/README.md."""

import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[3] / "cluster" / "README.md"
_BEGIN, _END = "<!-- drills: begin -->", "<!-- drills: end -->"
_HEAD = ("fault", "noticed after", "longest pause", "steps done twice", "test accuracy", "")


class Row(NamedTuple):
    """What a drill found.

    Attributes:
        fault: what was done.
        noticed_s: seconds from the fault to the first word of it; None: there was none.
        pause_s: the longest time without a step from the fault on, in seconds.
        repeated: steps done twice.
        accuracy: on the test nodes.
        baseline: the same of the undisturbed run.
        equal: both ended with the same bits.
        remark: what else there is to say.
    """

    fault: str
    noticed_s: float | None
    pause_s: float
    repeated: int
    accuracy: float
    baseline: float
    equal: bool
    remark: str

    def line(self) -> str:
        """The row of a Markdown table."""
        noticed = "-" if self.noticed_s is None else f"{self.noticed_s:.1f} s"
        same = "the same bits" if self.equal else "other bits"
        outcome = f"{self.accuracy:.4f} (undisturbed {self.baseline:.4f}, {same})"
        cells = [self.fault, noticed, f"{self.pause_s:.0f} s", str(self.repeated), outcome]
        return "| " + " | ".join([*cells, self.remark]) + " |"


def write_table(rows: Sequence[Row], page: Path = PAGE) -> None:
    """Puts the table of `rows` between the page's markers, with versions and the date."""
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, found, after = rest.partition(_END)
    if not found:
        raise RuntimeError(f"{page} has no place for the table: {_BEGIN} .. {_END}")
    names = ", ".join(f"{name} {version(name)}" for name in ("ray", "torch"))
    made = f"{time.strftime('%Y-%m-%d')}, {names}, Python {platform.python_version()}, "
    lines = [
        "| " + " | ".join(_HEAD) + " |",
        "|" + "---|" * len(_HEAD),
        *(row.line() for row in rows),
        "",
        f"Made by `make drills` on {made}{os.cpu_count()} cores for all nodes together.",
    ]
    text = "\n".join(lines)
    page.write_text(f"{before}{_BEGIN}\n{text}\n{_END}{after}", encoding="utf-8")
