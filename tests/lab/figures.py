"""Figures: ours against another tool's, measured in one run, with the bound that the project has set itself.

Every figure is a ratio of medians of interleaved runs, so that what else the machine does meets both alike. A figure
has the words of the issue that set its bound; the table is for people, `--json` prints one object a line.
"""

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from .work import run


@dataclass(frozen=True)
class Bound:
    """What a ratio must be."""

    sign: str
    limit: float

    def holds(self, ratio):
        return {"<": ratio < self.limit, "<=": ratio <= self.limit, ">=": ratio >= self.limit}[self.sign]

    def __str__(self):
        return f"{self.sign} {self.limit:g}"


@dataclass(frozen=True)
class Figure:
    """One measured ratio."""

    figure: str
    ours: float
    other: float
    other_is: str
    unit: str
    runs: int
    bound: Bound

    @property
    def ratio(self):
        return self.ours / self.other

    @property
    def holds(self):
        return self.bound.holds(self.ratio)

    def as_json(self):
        return json.dumps(
            {
                "figure": self.figure,
                "ours": round(self.ours, 4),
                "other": round(self.other, 4),
                "other_is": self.other_is,
                "ratio": round(self.ratio, 4),
                "unit": self.unit,
                "runs": self.runs,
                "bound": str(self.bound),
                "holds": self.holds,
            }
        )

    def as_text(self):
        ours, other = f"{self.ours:.1f} {self.unit}", f"{self.other:.1f} {self.unit}"
        verdict = "holds" if self.holds else "DOES NOT HOLD"
        what = f"{self.figure} (to {self.other_is})"
        return f"{self.ratio:7.3f}  {self.bound!s:<8}{verdict:<15}{ours:>13} : {other:<13}{what}"


def drop_caches():
    """Empties the page cache and the caches of names and inodes."""
    run("sync")
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def milliseconds(action):
    """How long an action takes."""
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


def interleaved(ours, other, runs, before=lambda: None):
    """Medians in ms of two actions run in turn, who goes first changing each time; `before` is not measured."""
    times = {ours: [], other: []}
    for number in range(runs):
        for action in (ours, other) if number % 2 == 0 else (other, ours):
            before()
            times[action].append(milliseconds(action))
    return statistics.median(times[ours]), statistics.median(times[other])
