"""What a scenario could leave behind outside of its directory, looked for by what names it."""

import os
from pathlib import Path


def processes_below(directory):
    """Processes whose program, command line or working directory lies below a directory: (pid, command line)."""
    prefix = os.fsencode(str(directory)) + b"/"
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes()
            places = [os.fsencode(os.readlink(entry / link)) for link in ("exe", "cwd")]
        except OSError:  # It has ended meanwhile, or is a kernel thread.
            continue
        if prefix in line or any(place.startswith(prefix) for place in places):
            found.append((int(entry.name), line.replace(b"\0", b" ").decode(errors="replace").strip()))
    return found


def cgroups_of(sandbox):
    """Control groups, in every hierarchy, whose name holds a sandbox's id, or the tag that all ids of an edge begin with.

    Where there is none there is no process of a sandbox either, whatever it calls itself, and so no namespace: a cgroup
    with processes cannot be removed, and a namespace goes with the last process, mount or descriptor that holds it.
    """
    return [path for path in Path("/sys/fs/cgroup").rglob(f"*{sandbox}*") if path.is_dir()]


def remains_of(node):
    """What is left of an edge's sandboxes, those of spares included: control groups and directories."""
    root = node.root / "edge"
    return cgroups_of((root / "tag").read_text().strip()) + list((root / "sandboxes").iterdir())
