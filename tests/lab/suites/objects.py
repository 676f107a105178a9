"""With `--json`, whatever prints prints one JSON object on one line: every command of every program.

The commands are those of the references, so a new one that is not tried here is a failure.
"""

import json
import re
import subprocess

from ..cases import check, equal
from ..programs import LOOPBACK, Node, Registry, Store, free_port, program
from ..trees import PROJECT
from ..work import run

IMAGE = "e2e/objects:1"
PROGRAMS = ("dsec-pack", "dsec-mountd", "dsec-registry", "dsec")


def run_cases(cases, work):
    seen = set()
    cases.run("objects: dsec-pack on a store and a registry", pack, work, seen)
    cases.run("objects: dsec, dsec-mountd and dsec-pack on a node", node_commands, work, seen)
    cases.run("objects: daemons when they are ready", daemons, work, seen)
    cases.run("objects: completion scripts and manual pages", pages, seen)
    cases.run("objects: a command line that is wrong, and a thing that is not there", errors, work)
    cases.run("objects: every command of the references was tried", all_tried, seen)


def one_object(text, what):
    """The one object of standard output."""
    lines = text.splitlines()
    equal(len(lines), 1, f"lines of {what}: {text[:500]!r}")
    try:
        value = json.loads(lines[0])
    except ValueError:
        check(False, f"{what} is no JSON: {lines[0][:500]!r}")
    check(isinstance(value, dict), f"{what} is no object: {lines[0][:500]!r}")
    return value


def ask(seen, name, *argv, ok=(0,)):
    """Runs `PROGRAM --json [OPTIONS] COMMAND ...` and gives its object."""
    command = next(word for word in argv if str(word) in known(name))
    seen.add((name, command))
    return one_object(run(program(name), "--json", *argv, ok=ok).stdout, f"{name} --json {command}")


def known(name):
    """Commands of a program, as its reference has them."""
    text = (PROJECT / f"docs/reference/{name}.md").read_text()
    return set(re.findall(rf"^## {name} ([a-z-]+)$", text, re.MULTILINE))


def pack(work, seen):
    tree = work.directory("tree")
    (tree / "file").write_text("some content\n")
    store, registry = work.path / "store", Registry(work).start()

    def on(where, *argv, ok=(0,)):
        return ask(seen, "dsec-pack", "--store", where, *argv, ok=ok)

    equal(on(store, "build", tree, "--ref", IMAGE)["ref"], IMAGE, "the ref that was built")
    for argv in (
        ("push", IMAGE, registry.url),
        ("ls",),
        ("show", IMAGE),
        ("tag", IMAGE, "e2e/objects:2"),
        ("rm", "e2e/objects:2"),
        ("verify", IMAGE, "--against", tree),
        ("unpack", IMAGE, work.path / "unpacked"),
        ("report",),
        ("fsck",),
    ):
        on(store, *argv)
    on(work.path / "pulled", "pull", IMAGE, registry.url)
    (tree / "file").write_text("other content\n")
    # A check that has found something has not failed: its object is its result.
    check("error" not in on(store, "verify", IMAGE, "--against", tree, ok=(10,)), "differences are an error")
    registry.process.stop()


def node_commands(work, seen):
    root = work.directory("root")
    for name in ("bin", "etc"):
        (root / name).mkdir(exist_ok=True)
    run("cp", "/bin/busybox", root / "bin/sh")
    store = Store(work.path / "rooted")
    store.run("build", root, "--ref", IMAGE)
    node = Node(work, store.path, name="node").start_mountd().start_edge()
    point = work.directory("point")
    for argv in (("mount", IMAGE, point), ("umount", point)):
        ask(seen, "dsec-pack", *argv, "--mountd", node.socket)
    for argv in (("mount", IMAGE, "--holder", "e2e"), ("release", "--holder", "e2e"), ("status",), ("doctor",)):
        ask(seen, "dsec-mountd", "--socket", node.socket, *argv)

    def dsec(*argv, ok=(0,)):
        return ask(seen, "dsec", "--edge", node.edge_socket, *argv, ok=ok)

    ran = dsec("run", IMAGE, "--", "sh", "-c", "echo out; echo err >&2; exit 3", ok=(3,))
    equal((ran["stdout"], ran["stderr"], ran["exit_code"]), ("out\n", "err\n", 3), "a run")
    sandbox = dsec("create", IMAGE)["id"]
    dsec("exec", sandbox, "--", "sh", "-c", "echo inside > /file")
    running = [one["id"] for one in dsec("ps")["sandboxes"] if one["state"] == "running"]
    equal(running, [sandbox], "ps")
    dsec("cp", f"{sandbox}:/file", work.path / "file")
    pack_diff = ("pack-diff", "--edge", node.edge_socket, sandbox, "e2e/objects-diff:1")
    ask(seen, "dsec-pack", "--store", store.path, *pack_diff)
    dsec("doctor")
    equal([one["id"] for one in dsec("rm", sandbox)["removed"]], [sandbox], "rm")
    node.edge.stop()
    node.mountd.stop()


def daemons(work, seen):
    store, place = work.path / "served", work.directory("daemons")
    socket, edge = place / "mountd.sock", place / "edge.sock"
    started = []

    def ready(name, command, *argv):
        line = [str(word) for word in (program(name), "--json", command, *argv)]
        with open(place / f"{name}.log", "wb") as log:
            process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
        started.append((name, process))
        one_object(process.stdout.readline(), f"{name} --json {command}, when it is ready")
        seen.add((name, command))

    try:
        listen = f"{LOOPBACK}:{free_port()}"
        ready("dsec-registry", "serve", "--create", "--store", store, "--listen", listen)
        own = ("--cache", place / "cache", "--run", place / "run")
        ready("dsec-mountd", "serve", "--socket", socket, "--store", store, *own)
        ready("dsec", "edge", "--edge", edge, "--mountd", socket, "--root", place / "edge")
    finally:
        for name, process in reversed(started):
            process.terminate()
            said, _ = process.communicate(timeout=30)
            equal((process.returncode, said), (0, ""), f"the end of {name}, and what else it says on standard output")


def pages(seen):
    for name in PROGRAMS:
        for argv in (("completion", "bash"), ("man",)):
            ask(seen, name, *argv)


def errors(work):
    nowhere = work.path / "nowhere"
    for name, argv, kind, code in (
        ("dsec-pack", ("--store", nowhere, "show", IMAGE), "not_found", 3),
        ("dsec-mountd", ("--socket", nowhere, "status"), "unreachable", 6),
        ("dsec", ("--edge", nowhere, "ps"), "unreachable", 6),
        ("dsec-registry", ("serve", "--store", nowhere), "not_found", 3),
        *((name, ("--nonsense",), "usage", 2) for name in PROGRAMS),
    ):
        error = one_object(run(program(name), "--json", *argv, ok=(code,)).stdout, f"the error of {name}")["error"]
        equal((error["kind"], error["exit_code"]), (kind, code), f"kind and code of {name}")
        equal(sorted(error), ["causes", "exit_code", "hint", "kind", "message"], f"members of the error of {name}")


def all_tried(seen):
    wanted = {(name, command) for name in PROGRAMS for command in known(name)}
    equal(sorted(wanted - seen), [], "commands that were not tried")
    check(wanted, "the references list commands")
