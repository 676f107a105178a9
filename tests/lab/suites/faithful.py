"""An image is what it was made from: by `verify`, by `fsck.erofs`, and by our own comparison of every road to it."""

import contextlib
import os
import shutil
import subprocess
import termios

from .. import layers, oci, trees
from ..cases import check, equal
from ..programs import Node, Registry, Store, program
from ..work import run

DIFFERENT = 10


def run_cases(cases, work):
    store = Store(work.path / "store")
    registry = Registry(work).start()
    nodes = {road: Node(work, registry.url, name=road, road=road) for road in ("erofs", "fuse")}
    for node in nodes.values():
        node.start_mountd()
    for name, make in (("debian", trees.debian), ("oddities", trees.oddities)):
        tree = make(work)
        image = f"e2e/{name}:1"
        want = trees.listing(tree)
        cases.run(f"{name}: build", store.run, "build", tree, "--ref", image)
        cases.run(f"{name}: verify --against finds no difference", store.run, "verify", image, "--against", tree)
        cases.run(f"{name}: fsck.erofs takes every metadata image", layers.check_image, store, image, work.path)
        cases.run(f"{name}: the same input gives the same digest", same_digest, work, store, tree, image)
        cases.run(f"{name}: push", store.run, "push", image, registry.url)
        cases.run(f"{name}: fsck of both stores", lambda: (store.run("fsck"), registry.store.run("fsck")))
        cases.run(f"{name}: pull into an empty store", pulled, work, registry, image, tree)
        for road, node in nodes.items():
            cases.run(f"{name}: the {road} road shows the tree as it was", road_is_faithful, work, node, image, want)
        cases.run(f"{name}: unpack makes the tree as it was", unpacked, work, store, image, want)
        cases.run(f"{name}: a tar of it gives the same image", from_tar, work, store, tree, image)
    cases.run("progress is drawn on a terminal, taken off again, and nowhere else", progress, work)
    cases.run("verify finds what differs", difference_is_found, work, store)
    cases.run("an OCI layout keeps its whiteouts and its configuration", from_oci, work, store)


def progress(work):
    store = work.path / "progress"
    build = (program("dsec-pack"), "--store", store, "build", trees.debian(work), "--ref", "e2e/progress:1")
    drawn = on_a_terminal(*build)
    check("walking" in drawn and "packing [=" in drawn, f"no bar on the terminal: {drawn[:500]!r}")
    last = drawn.rstrip("\r").rpartition("\r")[2]
    check(last in ("", "\x1b[2K"), f"the bar stays on the terminal: {drawn[-200:]!r}")
    equal(run(*build).stderr, "", "standard error where it is no terminal")
    trees.remove(store)


def on_a_terminal(*argv):
    """Runs a command whose standard error is a terminal; what it drew there."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    with subprocess.Popen([str(word) for word in argv], stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        drawn = bytearray()
        # The last descriptor of the other side closes with the command; Linux says EIO then.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 1 << 16):
                drawn += piece
        os.close(ours)
    equal(process.returncode, 0, f"exit code of {argv[0]}")
    return drawn.decode(errors="replace")


def same_digest(work, store, tree, image):
    again = Store(work.path / "again")
    again.run("build", tree, "--ref", image)
    equal(again.json("show", image)["digest"], store.json("show", image)["digest"], "the digest of a second build")
    shutil.rmtree(again.path)


def pulled(work, registry, image, tree):
    store = Store(work.path / "pulled")
    store.run("pull", image, registry.url)
    store.run("fsck")
    store.run("verify", image, "--against", tree)
    shutil.rmtree(store.path)


def road_is_faithful(work, node, image, want):
    point = work.directory(f"at-{node.name}")
    node.mount(image, point)
    (status,) = [status for status in node.status()["images"] if status["spec"] == image]
    equal(status["road"], node.road, "the road that is used")
    wrong = trees.differences(trees.listing(point), want)
    node.umount(point)
    check(not wrong, "\n".join(wrong))


def unpacked(work, store, image, want):
    target = work.path / "unpacked"
    store.run("unpack", image, target)
    wrong = trees.differences(trees.listing(target), want)
    shutil.rmtree(target)
    check(not wrong, "\n".join(wrong))


def from_tar(work, store, tree, image):
    archive = work.path / "tree.tar"
    keep = ("--xattrs", "--xattrs-include=*", "--acls", "--format=posix", "--sparse", "--numeric-owner")
    run("tar", *keep, "-C", tree, "-cf", archive, ".", ok=(0,))
    name = f"{image}-tar"
    store.run("build", archive, "--ref", name)
    target = work.path / "from-tar"
    store.run("unpack", name, target)
    # GNU tar leaves out sockets, and writes each name of a device or fifo as one of its own.
    ours, want = trees.listing(target), trees.listing(tree)
    want.pop(b"devices/socket", None)
    for name in want:
        if name.startswith(b"devices/"):
            for facts in (ours[name], want[name]):
                del facts["links"], facts["group"]
    wrong = trees.differences(ours, want)
    shutil.rmtree(target)
    archive.unlink()
    check(not wrong, "\n".join(wrong))


def difference_is_found(work, store):
    tree = work.path / "small"
    (tree / "d").mkdir(parents=True)
    for name in ("content", "mode", "time", "gone"):
        (tree / "d" / name).write_text("as it was")
    store.run("build", tree, "--ref", "e2e/small:1")
    store.run("verify", "e2e/small:1", "--against", tree)
    status = (tree / "d/content").stat()
    (tree / "d/content").write_text("as it is.")
    os.utime(tree / "d/content", ns=(status.st_mtime_ns, status.st_mtime_ns))
    (tree / "d/mode").chmod(0o600)
    os.utime(tree / "d/time", ns=(1, 1))
    directory = (tree / "d").stat().st_mtime_ns
    (tree / "d/gone").unlink()
    (tree / "d/new").write_text("")
    os.utime(tree / "d", ns=(directory, directory))
    done = store.run("verify", "e2e/small:1", "--against", tree, ok=(DIFFERENT,))
    for name in ("content", "mode", "time", "gone", "new"):
        check(f"d/{name}" in done.stdout + done.stderr, f"verify does not name d/{name}:\n{done.stdout}{done.stderr}")


def from_oci(work, store):
    base = [oci.directory("d"), oci.file("d/stays"), oci.file("d/goes"), oci.directory("o"), oci.file("o/old")]
    top = [oci.file("d/.wh.goes"), oci.directory("o"), oci.file("o/.wh..wh..opq"), oci.file("o/new", b"new", 0o755)]
    layout = work.path / "layout"
    oci.write_layout(layout, [base, top], {"Cmd": ["/o/new"], "Env": ["A=b"], "WorkingDir": "/d"})
    store.run("build", layout, "--ref", "e2e/oci:1")
    shown = store.json("show", "e2e/oci:1")
    config = {"cmd": ["/o/new"], "env": ["A=b"], "working_dir": "/d"}
    equal((len(shown["layers"]), shown["config"]), (2, config), "layers and configuration")
    store.run("unpack", "e2e/oci:1", work.path / "from-oci")
    paths = sorted(path.decode() for path in trees.listing(work.path / "from-oci"))
    equal(paths, [".", "d", "d/stays", "o", "o/new"], "what is left of both layers")
