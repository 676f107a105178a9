"""The end-to-end suite: the real programs on real and on odd input, looked at from outside."""

from .cases import Cases
from .suites import documents, errors, faithful, marks, objects, sandboxes
from .work import Work

SUITES = (documents, marks, objects, faithful, sandboxes, errors)


def arguments(parser):
    parser.add_argument("--only", help="run the cases whose name contains this")


def main(options):
    cases = Cases(options.only)
    for suite in SUITES:
        name = suite.__name__.rpartition(".")[2]
        with Work(f"e2e-{name}") as work:
            suite.run_cases(cases, work)
    return cases.close()
