"""`python3 -m lab SCENARIO`: what `./x demo`, `bench` and the suites `e2e` and `crash` run."""

import argparse
import sys

from . import bench, crash, demo, e2e
from .work import Failure, handle_signals


def main():
    parser = argparse.ArgumentParser(prog="lab", description=__doc__)
    scenarios = parser.add_subparsers(required=True)
    for scenario in (demo, bench, e2e, crash):
        name = scenario.__name__.rpartition(".")[2]
        scenario.arguments(scenarios.add_parser(name, description=scenario.__doc__))
        scenarios.choices[name].set_defaults(scenario=scenario)
    arguments = parser.parse_args()
    handle_signals()
    try:
        return arguments.scenario.main(arguments)
    except Failure as failure:
        print(f"failed: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
