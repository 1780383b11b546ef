"""Drill: the same search with ASHA and without: the epochs that it saves, and what that costs.

    python jobs/drills/asha.py cache/cora

Both try the same configs: those of a random search with one seed. A search that was killed goes on
by the same command. The exit code is 1 where a target is missed.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

CONFIG = Path(__file__).parents[1] / "configs" / "tune-cora.yaml"
MOST_EPOCHS, MOST_POINTS = 0.55, 0.3
COLUMNS = ("scheduler", "trials", "ended early", "epochs", "best validation", "trial")


class Row(NamedTuple):
    """A search: what it spent, and the best that it found."""

    scheduler: str
    trials: int
    ended_early: int
    epochs: int
    best: float
    trial: int


def main() -> int:
    """Runs both searches and prints a Markdown table, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", metavar="URI", help="Cora, as `dnformer ingest` made it")
    parser.add_argument("--trials", type=int, default=12, help="of each search")
    parser.add_argument("--out", default="cache/drills", help="folder of the searches")
    parser.add_argument("settings", nargs="*", metavar="PATH=VALUE", help="other settings of both")
    given = parser.parse_intermixed_args()
    settings = [
        f"data.uri={given.data}", f"storage_path={given.out}", "tune.search=random",
        f"tune.num_trials={given.trials}", *given.settings,
    ]  # fmt: skip
    asha, full = (row(name, search(name, settings)) for name in ("asha", "none"))
    found = compared(asha, full)
    print(table([asha, full]))
    print(json.dumps({"rows": [asha._asdict(), full._asdict()], **found}))
    return 0 if found["met"] else 1


def search(scheduler: str, settings: list[str]) -> dict[str, Any]:
    """What `dnformer tune --json` prints of a search under a scheduler."""
    settings = [f"name=asha-drill-{scheduler}", f"tune.scheduler={scheduler}", *settings]
    command = [sys.executable, "-m", "dnformer.cli", "tune", str(CONFIG), "--json"]
    for setting in settings:
        command += ["--set", setting]
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


def row(scheduler: str, result: dict[str, Any]) -> Row:
    """One row of the table."""
    trials = result["trials"]
    return Row(
        scheduler,
        len(trials),
        sum(trial["state"] == "stopped" for trial in trials),
        sum(trial["epochs"] or 0 for trial in trials),
        result["best"]["value"],
        result["best"]["trial"],
    )


def compared(asha: Row, full: Row) -> dict[str, Any]:
    """The share of the epochs that ASHA spends, and the points by which its best is worse."""
    share, points = asha.epochs / full.epochs, 100 * (full.best - asha.best)
    # a share of nodes is a fraction: 0.3 points are 0.3 also where a float says 0.30000000000001
    met = share <= MOST_EPOCHS and points <= MOST_POINTS + 1e-9
    return {"share_of_epochs": share, "points_lost": points, "met": met}


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    lines = [COLUMNS, ("---",) * len(COLUMNS)]
    for one in rows:
        cells = (*one[:4], f"{100 * one.best:.2f} %", one.trial)
        lines.append(tuple(map(str, cells)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
