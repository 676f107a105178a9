"""First marks: the mount against ext4, build against tar and zstd, a run against bubblewrap, shares of bytes.

All on the same Debian tree with Python, in one run. File reads are done by `find` and `cat` as a shell would, so both
sides pay the same for the programs; after caches are dropped these are read again before anything is timed.
"""

import shlex
import subprocess
from functools import partial

from .. import measures, trees
from ..figures import Bound, Figure, drop_caches, interleaved
from ..programs import Node, Proxy, Registry, Store
from ..work import run

IMAGE, DIFF = "bench/debian:12", "bench/debian-pygments:12"
IMPORTS = "import json, ssl, email, sqlite3"
DELAY_MS = 20


def figures(work):
    """Yields each figure as it is measured."""
    tree = trees.debian(work)
    store = Store(work.path / "store")
    store.run("build", tree, "--ref", IMAGE)
    yield from reads(work, store, ext4(work, tree))
    yield builds(work, tree)
    yield from sandboxes(work, store)
    yield from shares(work, store)


def ext4(work, tree):
    """The tree unpacked on an ext4 of its own, so that every machine compares with the same."""
    image, point = work.path / "ext4.img", work.directory("ext4")
    run("truncate", "--size=4G", image)
    run("mkfs.ext4", "-q", image)
    run("mount", "-o", "loop,noatime", image, point)
    run("cp", "-a", f"{tree}/.", point)
    return point


def shell(command, directory):
    """Runs a shell command in a directory, its output going nowhere."""
    subprocess.run(["sh", "-c", command], cwd=directory, check=True, stdout=subprocess.DEVNULL)


def find(directory):
    shell("find . -xdev -printf '%s %m %T@\\n'", directory)


def read_all(directory):
    shell("find . -xdev -type f -print0 | xargs -0 cat", directory)


def cold():
    """Drops every cache, then brings the programs that are timed back into memory."""
    drop_caches()
    shell("find . -maxdepth 0; xargs cat < /dev/null; xargs -r cat < /dev/null", "/")


def reads(work, store, plain):
    """The mount, its chunk cache full, against ext4."""
    node = Node(work, store.path, name="reads").start_mountd()
    point = work.directory("mounted")
    node.mount(IMAGE, point)
    for action in (read_all, find):
        action(point)
        action(plain)
    other = "the same tree on ext4"
    for name, action, runs, before, bound in (
        ("warm find through the mount", find, 15, lambda: None, 1.15),
        ("warm full read through the mount", read_all, 11, lambda: None, 1.15),
        ("full read with page cache dropped and the local cache full", read_all, 7, cold, 1.0),
    ):
        ours, theirs = interleaved(partial(action, point), partial(action, plain), runs, before)
        yield Figure(name, ours, theirs, other, "ms", runs, Bound("<=", bound))
    node.umount(point)
    node.mountd.stop()
    run("umount", plain)


def builds(work, tree):
    """`build` into an empty store against `tar | zstd -3` of the same tree, both from a warm page cache."""
    scratch = work.directory("builds")
    read_all(tree)

    def ours():
        Store(scratch / "store").run("build", tree, "--ref", IMAGE)

    def other():
        shell(f"tar -c . | zstd -3 -q -f -o {shlex.quote(str(scratch / 'tree.tar.zst'))}", tree)

    def before():
        trees.remove(scratch / "store")
        measures.sync()

    runs = 5
    have, want = interleaved(ours, other, runs, before)
    return Figure("build of the Debian tree", have, want, "tar | zstd -3", "ms", runs, Bound("<=", 1.5))


def sandboxes(work, store):
    """`dsec run /bin/true` on a running edge against bubblewrap on the same root."""
    node = Node(work, store.path, name="sandboxes").start_mountd().start_edge()
    root = work.directory("root")
    node.mount(IMAGE, root)

    def ours():
        node.dsec("run", IMAGE, "--", "/bin/true")

    def other():
        run("bwrap", "--unshare-all", "--bind", root, "/", "--proc", "/proc", "--dev", "/dev", "/bin/true")

    ours()
    other()
    runs = 41
    have, want = interleaved(ours, other, runs)
    name, other_is = "dsec run /bin/true on a running edge", "bwrap --unshare-all"
    yield Figure(name, have, want, other_is, "ms", runs, Bound("<=", 1.0))
    node.umount(root)
    node.edge.stop()
    node.mountd.stop()


def shares(work, store):
    """Bytes fetched by a Python start from an empty cache, and bytes stored by a pack-diff."""
    registry = Registry(work).start()
    store.run("push", IMAGE, registry.url)
    proxy = Proxy(work, registry.port, DELAY_MS)
    node = Node(work, proxy.url, name="shares").start_mountd().start_edge()
    sandbox = node.create(IMAGE)
    node.dsec("exec", sandbox, "--", "python3", "-c", IMPORTS)
    fetched = proxy.stats()["response_bytes"] / 1e6
    stored = measures.stored_bytes(store, IMAGE) / 1e6
    bound = Bound("<", measures.FETCHED_SHARE)
    yield Figure("the Python start fetches", fetched, stored, "the image's stored bytes", "MB", 1, bound)
    wheel = trees.wheel(work)
    node.dsec("cp", wheel, f"{sandbox}:/tmp/{wheel.name}")
    node.dsec("exec", sandbox, "--", *measures.install(f"/tmp/{wheel.name}"))
    node.dsec("exec", sandbox, "--", "rm", f"/tmp/{wheel.name}")
    changed = measures.changed_bytes(node, sandbox) / 1e6
    diff = measures.pack_diff(node, store, sandbox, DIFF) / 1e6
    other_is = "the zstd-compressed size of the changed files"
    yield Figure("pack-diff of it stores", diff, changed, other_is, "MB", 1, Bound("<", measures.DIFF_RATIO))
    node.dsec("rm", sandbox)
    node.edge.stop()
    node.mountd.stop()
