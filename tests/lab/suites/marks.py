"""`./x bench`: what it prints and how it ends, with figures that are made up and not measured."""

import contextlib
import io
import json
import types
from unittest import mock

from .. import bench
from ..cases import equal
from ..figures import Bound, Figure

MEMBERS = ["figure", "ours", "other", "other_is", "ratio", "unit", "runs", "bound", "holds"]


def run_cases(cases, _work):
    for what, ours, code in (
        ("exits 0 when all hold", (1.0, 2.0), 0),
        ("exits 1 when one does not hold", (1.0, 2.1), 1),
        ("no figure at all is a failure", (), 1),
    ):
        cases.run(f"bench: {what}", printed, ours, code)


def printed(ours, code):
    """Runs a bench of such figures, all against 2 with a bound of 1."""
    figures = [Figure("made up", value, 2.0, "nothing", "ms", 3, Bound("<=", 1.0)) for value in ours]
    made_up = types.SimpleNamespace(figures=lambda _work: iter(figures))
    for as_json in (True, False):
        said = io.StringIO()
        with (
            mock.patch.dict(bench.BENCHES, {"made-up": made_up}),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            equal(bench.main(types.SimpleNamespace(name="made-up", json=as_json)), code, "the exit code")
        lines = said.getvalue().splitlines()
        equal(len(lines), len(figures), "lines")
        if as_json:
            for line, value in zip(map(json.loads, lines), ours, strict=True):
                equal(list(line), MEMBERS, "members")
                equal((line["ratio"], line["bound"], line["holds"]), (value / 2, "<= 1", value <= 2), "the verdict")
