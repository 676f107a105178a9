"""The trees that scenarios pack: a real Debian with Python, a second image on top of it, and the tree of oddities.

Debian's mirror is whatever this machine's own apt uses; a tree that was made once is kept in the lab's cache and made
again when its recipe changes. `listing` says everything about a tree that an image must keep, independently of what the
programs themselves believe.
"""

import hashlib
import os
import shutil
import stat
import sys
from pathlib import Path

from .work import Failure, run

PROJECT = Path(__file__).resolve().parents[2]
PACKAGES = "python3,ca-certificates,netbase"
# What the second image adds: a real change of a few hundred files, by Debian's own package manager.
ADDED_PACKAGES = ("git",)
WHEEL = "pygments"
BLOCK_BYTES = 4096
PIECE_BYTES = 1 << 20


def say(text):
    print(f"lab: {text}", file=sys.stderr, flush=True)


def apt_source():
    """Suite and mirror of this machine's own Debian, as apt knows them."""
    fields = "$(CODENAME) $(REPO_URI) $(COMPONENT) $(ORIGIN) $(LABEL)"
    suite = os_release()["VERSION_CODENAME"]
    for line in run("apt-get", "indextargets", "--format", fields, "Created-By: Packages").stdout.splitlines():
        codename, uri, component, *_ = line.split()
        if codename == suite and component == "main":
            return suite, uri
    raise Failure(f"apt on this machine has no source for {suite} main (apt-get update may help)")


def os_release():
    lines = Path("/etc/os-release").read_text().splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key: value.strip('"') for key, _, value in pairs}


def cached(work, name, recipe, make):
    """A tree in the lab's cache, made by `make(directory)` when it is not there or its recipe has changed."""
    tree, stamp = work.cache / name, work.cache / f"{name}.recipe"
    if tree.exists() and stamp.exists() and stamp.read_text() == recipe:
        return tree
    work.cache.mkdir(parents=True, exist_ok=True)
    partial = work.cache / f"{name}.partial"
    for old in (stamp, partial, tree):
        remove(old)
    make(partial)
    partial.rename(tree)
    stamp.write_text(recipe)
    return tree


def remove(path):
    """Removes a file or tree; what is not there is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def debian(work):
    """A Debian minbase with Python, as debootstrap makes it."""
    suite, mirror = apt_source()

    def make(directory):
        say(f"debootstrap {suite} with {PACKAGES} (kept in {work.cache} for the next run)")
        run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", suite, directory, mirror)
        # Downloaded packages are no part of a system.
        run("chroot", directory, "apt-get", "clean")

    return cached(work, "debian", f"{suite} {PACKAGES}", make)


def debian_with_git(work):
    """What `apt-get install` of a real package changes in that tree: the upper directory of an overlay over it."""
    base = debian(work)
    suite, _ = apt_source()

    def make(directory):
        say(f"apt-get install {' '.join(ADDED_PACKAGES)} on top of it")
        upper, scratch, merged = directory / "upper", directory / "scratch", directory / "merged"
        for path in (upper, scratch, merged):
            path.mkdir(parents=True)
        layers = f"lowerdir={base},upperdir={upper},workdir={scratch}"
        run("mount", "-t", "overlay", "overlay", "-o", layers, merged)
        try:
            for name in ("resolv.conf", "hosts"):
                if Path("/etc", name).exists():
                    shutil.copyfile(f"/etc/{name}", merged / "etc" / name)
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            install = ("apt-get", "install", "-y", "--no-install-recommends", *ADDED_PACKAGES)
            for command in (("apt-get", "update"), install, ("apt-get", "clean")):
                run("chroot", merged, *command, env=environment)
        finally:
            run("umount", merged)

    return cached(work, "debian-git", f"{suite} {PACKAGES} {ADDED_PACKAGES} upper", make) / "upper"


def oddities(work):
    """The tree of every oddity."""
    script = PROJECT / "fixtures/trees/oddities.py"

    def make(directory):
        run(sys.executable, script, directory)

    return cached(work, "oddities", hashlib.sha256(script.read_bytes()).hexdigest(), make)


def wheel(work):
    """A real Python package as a wheel, fetched by name with pip."""

    def make(directory):
        say(f"pip download {WHEEL}")
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "download")
        run(*pip, "--no-deps", "--only-binary=:all:", "--dest", directory, WHEEL)

    (found,) = cached(work, "wheels", WHEEL, make).glob("*.whl")
    return found


def file_data(path, size):
    """Ranges of data in a file, as (start, end): what is between them is holes."""
    ranges, offset = [], 0
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while offset < size:
            try:
                start = os.lseek(descriptor, offset, os.SEEK_DATA)
            except OSError:  # ENXIO: only a hole is left
                break
            offset = os.lseek(descriptor, start, os.SEEK_HOLE)
            ranges.append((start, offset))
    finally:
        os.close(descriptor)
    return tuple(ranges)


def digest(path, data):
    """SHA-256 over the blocks of a file that are not zero, and where they are: the same with and without holes."""
    state = hashlib.sha256()
    with open(path, "rb", buffering=0) as source:
        for start, end in data:
            start -= start % BLOCK_BYTES
            source.seek(start)
            while start < end:
                piece = source.read(PIECE_BYTES)
                if not piece:
                    break
                for offset in range(0, len(piece), BLOCK_BYTES):
                    block = piece[offset : offset + BLOCK_BYTES]
                    if start + offset < end and block.count(0) != len(block):
                        state.update(b"%d:" % (start + offset) + block)
                start += len(piece)
    return state.hexdigest()


def describe(path, ignored_xattrs):
    """Everything about one inode that an image must keep."""
    status = os.lstat(path)
    kind = stat.S_IFMT(status.st_mode)
    names = sorted(os.listxattr(path, follow_symlinks=False))
    facts = {
        "kind": kind,
        "mode": stat.S_IMODE(status.st_mode),
        "owner": (status.st_uid, status.st_gid),
        "mtime_ns": status.st_mtime_ns,
        "xattrs": tuple(
            (name, os.getxattr(path, name, follow_symlinks=False)) for name in names if name not in ignored_xattrs
        ),
    }
    if kind != stat.S_IFDIR:
        facts["links"] = status.st_nlink
    if kind == stat.S_IFREG:
        facts["size"] = status.st_size
        facts["data"] = file_data(path, status.st_size)
        facts["digest"] = digest(path, facts["data"])
    elif kind == stat.S_IFLNK:
        facts["target"] = os.readlink(path)
    elif kind in (stat.S_IFCHR, stat.S_IFBLK):
        facts["device"] = status.st_rdev
    return status, facts


def listing(root, ignored_xattrs=()):
    """Path (bytes, relative) to facts, for a whole tree; names of one inode share the first name as their group."""
    root = os.fsencode(root)
    facts, groups = {}, {}

    def add(path):
        name = os.path.relpath(path, root)
        status, facts[name] = describe(path, ignored_xattrs)
        if not stat.S_ISDIR(status.st_mode):
            facts[name]["group"] = groups.setdefault((status.st_dev, status.st_ino), name)

    add(root)
    for parent, directories, files in os.walk(root):
        directories.sort()
        for name in sorted(directories + files):
            add(os.path.join(parent, name))
    return facts


def differences(have, want, limit=20):
    """What differs between two listings, for people; empty when nothing does."""
    lines = [f"missing: {name!r}" for name in sorted(want.keys() - have.keys())]
    lines += [f"unexpected: {name!r}" for name in sorted(have.keys() - want.keys())]
    for name in sorted(have.keys() & want.keys()):
        for key in sorted(have[name].keys() | want[name].keys()):
            left, right = have[name].get(key), want[name].get(key)
            if left != right:
                lines.append(f"{name!r}: {key} is {left!r}, should be {right!r}")
    return lines[:limit] + ([f"and {len(lines) - limit} more"] if len(lines) > limit else [])
