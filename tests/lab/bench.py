"""Figures against other tools, in one run; exit 1 when a bound does not hold. `bench list` names the benches."""

import sys

from .benches import first
from .work import Work

# A bench is a module with a docstring and `figures(work)`, which yields Figures as they are measured.
BENCHES = {"first": first}


def arguments(parser):
    parser.add_argument("name", choices=[*BENCHES, "list"], help="which bench")
    parser.add_argument("--json", action="store_true", help="one JSON object a line for each figure")


def main(options):
    if options.name == "list":
        for name, bench in BENCHES.items():
            print(f"{name:<12}{bench.__doc__.splitlines()[0]}")
        return 0
    all_hold, count = True, 0
    with Work(f"bench-{options.name}") as work:
        for figure in BENCHES[options.name].figures(work):
            print(figure.as_json() if options.json else figure.as_text(), flush=True)
            all_hold, count = all_hold and figure.holds, count + 1
    if not options.json:
        print(f"{count} figures, {'all hold' if all_hold else 'NOT all hold'}", file=sys.stderr)
    return 0 if all_hold and count else 1
