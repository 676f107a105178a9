"""Sandboxes from the command line: exit codes, output, files in and out, the edge's restart, nothing left behind."""

import hashlib
import os

from .. import layers, trees
from ..cases import check, equal
from ..leftovers import cgroups_of, processes_below, remains_of
from ..programs import Node, Store
from ..work import mounts_below

IMAGE = "e2e/debian:12"


def run_cases(cases, work):
    store = Store(work.path / "store")
    store.run("build", trees.debian(work), "--ref", IMAGE)
    node = Node(work, store.path).start_mountd().start_edge()
    for name, case in (
        ("exit codes and output are exact", exit_codes),
        ("a megabyte passes in and out unchanged", streams),
        ("cp in and out keeps every byte and the mode", copies),
        ("changes are packed, run again, and are what was frozen", packed),
        ("deleted and replaced directories stay so in a packed image", whiteouts),
        ("sandboxes survive a restart of the edge", restart),
        ("rm leaves nothing behind", removed),
    ):
        cases.run(f"sandbox: {name}", case, work, store, node)
    cases.run("sandbox: the end leaves nothing behind", ended, work, store, node)


def exit_codes(_work, _store, node):
    for script, code, out, err in (
        ("exit 0", 0, "", ""),
        ("echo out; echo err >&2; exit 7", 7, "out\n", "err\n"),
        ("printf 'no newline'", 0, "no newline", ""),
        ("exit 255", 255, "", ""),
        ("kill -9 $$", 128 + 9, "", ""),
    ):
        done = node.dsec("run", IMAGE, "--", "sh", "-c", script, ok=None)
        equal((done.returncode, done.stdout, done.stderr), (code, out, err), script)


def streams(work, _store, node):
    data = os.urandom(1 << 20)
    path = work.path / "megabyte"
    path.write_bytes(data)
    with open(path, "rb") as source:
        done = node.dsec("run", "-i", IMAGE, "--", "sha256sum", stdin=source)
    equal(done.stdout.split()[0], hashlib.sha256(data).hexdigest(), "the digest of standard input")
    done = node.dsec("run", IMAGE, "--", "sh", "-c", "yes 0123456789abcde | head -c 1048576")
    equal(len(done.stdout), 1 << 20, "bytes of standard output")


def copies(work, _store, node):
    source, back = work.directory("cp-in"), work.path / "cp-out"
    (source / "d").mkdir(exist_ok=True)
    (source / "d/file").write_bytes(os.urandom(100_000))
    (source / "d/tool").write_text("#!/bin/sh\necho from the tool\n")
    (source / "d/tool").chmod(0o755)
    sandbox = node.create(IMAGE)
    node.dsec("cp", source / "d", f"{sandbox}:/srv/d")
    equal(node.dsec("exec", sandbox, "--", "/srv/d/tool").stdout, "from the tool\n", "the tool that was copied in")
    node.dsec("cp", f"{sandbox}:/srv/d", back)
    equal((back / "file").read_bytes(), (source / "d/file").read_bytes(), "the file that came back")
    equal((back / "tool").stat().st_mode & 0o777, 0o755, "the mode that came back")
    node.dsec("rm", sandbox)


def packed(work, store, node):
    sandbox = node.create(IMAGE)
    node.dsec("exec", sandbox, "--", "sh", "-c", "echo made inside > /srv/made; chmod 600 /srv/made; rm /etc/issue")
    store.run("pack-diff", "--edge", node.edge_socket, sandbox, "e2e/packed:1")
    equal(node.dsec("exec", sandbox, "--", "echo", "on").stdout, "on\n", "the sandbox goes on after a pack-diff")
    script = "cat /srv/made; stat -c '%a %u' /srv/made; test -e /etc/issue || echo gone"
    said = node.dsec("run", "e2e/packed:1", "--", "sh", "-c", script).stdout
    equal(said, "made inside\n600 0\ngone\n", "the new image")
    layers.check_image(store, "e2e/packed:1", work.path)
    node.dsec("rm", sandbox)


def whiteouts(work, store, node):
    sandbox = node.create(IMAGE)
    script = "rm -r /usr/share/doc; mkdir /usr/share/doc; echo only > /usr/share/doc/one; mv /etc/default /etc/renamed"
    node.dsec("exec", sandbox, "--", "sh", "-c", script)
    look = "ls /usr/share/doc; ls -A /etc/renamed | sort; test -e /etc/default || echo gone"
    want = node.dsec("exec", sandbox, "--", "sh", "-c", look).stdout
    store.run("pack-diff", "--edge", node.edge_socket, sandbox, "e2e/whiteouts:1")
    equal(node.dsec("run", "e2e/whiteouts:1", "--", "sh", "-c", look).stdout, want, "the new image")
    layers.check_image(store, "e2e/whiteouts:1", work.path)
    check(want.startswith("one\n") and want.endswith("gone\n"), f"the sandbox itself: {want!r}")
    node.dsec("rm", sandbox)


def restart(_work, _store, node):
    sandbox = node.create(IMAGE)
    node.dsec("exec", sandbox, "--", "sh", "-c", "echo kept > /srv/kept")
    for end in (node.edge.stop, lambda: node.edge.kill()):
        end()
        node.start_edge()
        equal(node.dsec("exec", sandbox, "--", "cat", "/srv/kept").stdout, "kept\n", "the file of before")
        check(sandbox in node.dsec("ps").stdout, "ps lists the sandbox of before")
    node.dsec("rm", sandbox)


def removed(_work, _store, node):
    sandbox = node.create(IMAGE)
    node.dsec("exec", sandbox, "--", "sh", "-c", "sleep 1000 & echo started")
    check(cgroups_of(sandbox), "the sandbox has a cgroup that this test can see")
    node.dsec("rm", sandbox)
    check(sandbox not in node.dsec("ps").stdout, "ps still lists it")
    equal(cgroups_of(sandbox), [], "cgroups of the sandbox")
    equal(list((node.root / "edge").rglob(f"*{sandbox}*")), [], "files of the sandbox")


def ended(work, _store, node):
    node.edge.stop()
    node.mountd.stop()
    equal(mounts_below(work.path), [], "mounts")
    equal(processes_below(work.path), [], "processes")
    equal(remains_of(node), [], "cgroups and files of sandboxes")
