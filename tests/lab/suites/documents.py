"""What the documents tell a person to type exists: every command and option in their code blocks."""

import os
import re

from .. import trees
from ..cases import check
from ..programs import program
from ..trees import PROJECT
from ..work import mounts_below, run

DOCUMENTS = ("README.md", "docs/operations.md")
# The default places of a node, taken from the scenario's directory, in a mount namespace of its own; what the block
# downloads and compiles is there already.
BY_HAND = """
set -eu
for place in /run /srv /var/lib; do mount --bind "$WORK$place" "$place"; done
cargo() { :; }
apt-get() { :; }
debootstrap() { cp -a "$TREE" "${@: -1}"; }
trap 'kill $(jobs -p) 2>/dev/null || :; wait' EXIT
PATH="$DSEC_BIN_DIR:$PATH"
"""
PROGRAMS = ("dsec-pack", "dsec-registry", "dsec-mountd", "dsec")


def run_cases(cases, work):
    for document in DOCUMENTS:
        cases.run(f"documents: the commands in {document}", commands_exist, document)
    for name in PROGRAMS:
        cases.run(f"documents: {name} --help and --version", help_and_version, name)
    cases.run("documents: the five minutes by hand of README.md, as they stand there", by_hand, work)


def commands(text):
    """Commands of ours in indented code blocks, as lists of words."""
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if line.startswith("    ") and words and words[0] in PROGRAMS:
            yield words


def commands_exist(document):
    found = list(commands((PROJECT / document).read_text()))
    check(found, f"{document} has no command of ours in a code block")
    for name, *words in found:
        subcommand = next((word for word in words if re.fullmatch(r"[a-z][a-z-]*", word)), None)
        help_text = run(program(name), *([subcommand] if subcommand else []), "--help").stdout
        for word in words:
            if word == "--":
                break
            option = re.match(r"--[a-z-]+", word)
            check(not option or option.group() in help_text, f"{document}: {name} {subcommand} has no {word}")


def by_hand(work):
    section = (PROJECT / "README.md").read_text().partition("## Five minutes by hand")[2].partition("\n## ")[0]
    block = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))
    for place in ("run", "srv", "var/lib"):
        work.directory(place)
    environment = {**os.environ, "WORK": str(work.path), "TREE": str(trees.debian(work))}
    done = run(
        "unshare", "--mount", "--propagation=private", "bash", "-c", BY_HAND + block, env=environment, seconds=300
    )
    for word in ("hello from a sandbox", "made inside", "debian:noted"):
        check(word in done.stdout, f"the block does not say {word!r}:\n{done.stdout}{done.stderr}")
    check(not mounts_below(work.path), "mounts are left behind")


def help_and_version(name):
    text = run(program(name), "--help").stdout
    check("Exit codes" in text, f"{name} --help does not list its exit codes")
    check(run(program(name), "--version").stdout.startswith(name), f"{name} --version does not name it")
