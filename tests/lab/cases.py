"""A runner for suites of cases: each runs, whatever became of the others, and the last line counts them.

A case is a function that returns when all is well and raises when not. It never skips: what it needs is there, or that
is a failure.
"""

import sys
import time
import traceback

from .work import Failure


def check(condition, what):
    """Fails the case with `what` unless the condition holds."""
    if not condition:
        raise Failure(what)


def equal(have, want, what):
    """Fails the case, showing both, unless they are equal."""
    if have != want:
        raise Failure(f"{what}: have {have!r}, want {want!r}")


class Cases:
    """Runs cases and counts."""

    def __init__(self, only=None):
        self.only = only
        self.passed = 0
        self.failed = []

    def run(self, name, case, *arguments):
        """Runs one case, unless others were asked for."""
        if self.only and self.only not in name:
            return
        start = time.monotonic()
        try:
            case(*arguments)
        except Failure as failure:
            self._failed(name, str(failure))
        except Exception:  # A bug in a case is a failure of that case, not of the run.
            self._failed(name, traceback.format_exc())
        else:
            self.passed += 1
            print(f"ok      {name} ({time.monotonic() - start:.1f} s)", flush=True)

    def _failed(self, name, why):
        self.failed.append(name)
        print(f"FAILED  {name}\n" + "".join(f"        {line}\n" for line in why.splitlines()), flush=True)

    def close(self):
        """Prints the closing line; gives the exit code. No case at all is a failure."""
        for name in self.failed:
            print(f"failed: {name}", file=sys.stderr)
        print(f"{self.passed} passed, {len(self.failed)} failed", flush=True)
        return 0 if self.passed and not self.failed else 1
