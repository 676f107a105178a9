"""What both the demo and the benches measure, defined once."""

import os
import subprocess

from .work import Failure, run

# Bounds that the project has set itself.
FETCHED_SHARE = 0.15
DIFF_RATIO = 1.2


def entries(tree):
    """Entries of a tree, its root counted."""
    return 1 + sum(len(directories) + len(files) for _, directories, files in os.walk(tree))


def image_report(store, image):
    """The line of `dsec-pack report` about one image."""
    return store.json("report", image)["images"][0]


def stored_bytes(store, image):
    """Stored bytes of an image: compressed chunks, metadata and extent maps."""
    return image_report(store, image)["stored_bytes"]


def logical_bytes(store, image):
    """Sum of the file sizes of an image."""
    return image_report(store, image)["logical_bytes"]


def install(wheel):
    """The command that installs a wheel in a sandbox: what pip does with a pure one, with Python's own library."""
    script = (
        "import compileall, sys, sysconfig, zipfile; to = sysconfig.get_path('purelib');"
        " zipfile.ZipFile(sys.argv[1]).extractall(to); compileall.compile_dir(to, quiet=1)"
    )
    return ["python3", "-c", script, wheel]


def zstd_bytes(directory):
    """Size of `tar | zstd -3` of a directory: what the stored bytes of a diff are held against."""
    tar = subprocess.Popen(["tar", "-C", directory, "-c", "."], stdout=subprocess.PIPE)
    zstd = subprocess.run(["zstd", "-3", "-c", "-q"], stdin=tar.stdout, stdout=subprocess.PIPE, check=True)
    if tar.wait() != 0:
        raise Failure(f"tar of {directory} ended with {tar.returncode}")
    return len(zstd.stdout)


def changed_bytes(node, sandbox):
    """The same of what a sandbox has changed: its upper directory."""
    uppers = [path for path in (node.root / "edge").rglob("upper") if sandbox in path.parts and path.is_dir()]
    if len(uppers) != 1:
        raise Failure(f"one upper directory of {sandbox} below {node.root}/edge is expected, there are: {uppers}")
    return zstd_bytes(uppers[0])


def pack_diff(node, store, sandbox, image):
    """Packs the changes of a sandbox as an image; gives the bytes that the store has grown by."""
    before = store.bytes()
    store.run("pack-diff", "--edge", node.edge_socket, sandbox, image)
    return store.bytes() - before


def sync():
    """Nothing of an earlier step is still being written while a later one is timed."""
    run("sync")
