"""What the documents tell a person to type exists: every command and option in their code blocks."""

import re

from ..cases import check
from ..programs import program
from ..trees import PROJECT
from ..work import run

DOCUMENTS = ("README.md", "docs/operations.md")
PROGRAMS = ("dsec-pack", "dsec-registry", "dsec-mountd", "dsec")


def run_cases(cases, work):
    del work
    for document in DOCUMENTS:
        cases.run(f"documents: the commands in {document}", commands_exist, document)
    for name in PROGRAMS:
        cases.run(f"documents: {name} --help and --version", help_and_version, name)


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


def help_and_version(name):
    text = run(program(name), "--help").stdout
    check("Exit codes" in text, f"{name} --help does not list its exit codes")
    check(run(program(name), "--version").stdout.startswith(name), f"{name} --version does not name it")
