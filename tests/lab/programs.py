"""The programs under test, started and called as a person would, each with its own directories and sockets.

The one place that knows their command lines: when an option changes, it changes here.
"""

import json
import os
import socket
import urllib.request
from pathlib import Path

from .work import Failure, run

LOOPBACK = "127.0.0.1"
STATS_PATH = "/.delay-proxy/stats"


def program(name):
    """Path of a program that `./x` has built."""
    directory = os.environ.get("DSEC_BIN_DIR")
    if not directory:
        raise Failure("DSEC_BIN_DIR is not set: run scenarios by ./x, which builds the programs")
    path = Path(directory, name)
    if not path.exists():
        raise Failure(f"{path} is not there: run scenarios by ./x, which builds the programs")
    return path


def free_port():
    """A port nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def accepts(port):
    """Whether something listens on a port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


def fetch_json(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


class Store:
    """A store directory, and `dsec-pack` on it."""

    def __init__(self, path):
        self.path = Path(path)

    def run(self, *argv, **options):
        """Runs `dsec-pack` on the store."""
        return run(program("dsec-pack"), "--store", self.path, *argv, **options)

    def json(self, *argv, **options):
        """Runs `dsec-pack --json` and gives what it printed."""
        return json.loads(self.run("--json", *argv, **options).stdout)

    def bytes(self, *kinds):
        """Bytes of all files of the store, or of those below the directories named."""
        roots = [self.path / kind for kind in kinds] or [self.path]
        return sum(path.stat().st_size for root in roots for path in root.rglob("*") if path.is_file())


class Registry:
    """`dsec-registry` on a store of its own."""

    def __init__(self, work, name="registry", token=None, port=None):
        self.work, self.name, self.token = work, name, token
        self.store = Store(work.directory(name) / "store")
        self.port = port or free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        self.process = None

    def start(self):
        argv = [
            program("dsec-registry"),
            "serve",
            "--create",
            "--store",
            self.store.path,
            "--listen",
            f"{LOOPBACK}:{self.port}",
        ]
        if self.token:
            path = self.work.directory(self.name) / "token"
            path.write_text(self.token)
            argv += ["--token-file", path]
        self.process = self.work.start(self.name, argv)
        self.process.wait_ready(lambda: accepts(self.port))
        return self


class Proxy:
    """`delay-proxy` in front of a registry."""

    def __init__(self, work, upstream_port, delay_ms, name="proxy"):
        self.port = free_port()
        self.url = f"http://{LOOPBACK}:{self.port}"
        argv = [program("delay-proxy"), "--listen", f"{LOOPBACK}:{self.port}"]
        argv += ["--upstream", f"{LOOPBACK}:{upstream_port}", "--delay-ms", delay_ms]
        self.process = work.start(name, argv)
        self.process.wait_ready(lambda: accepts(self.port))

    def stats(self):
        """Requests and bytes so far."""
        return fetch_json(self.url + STATS_PATH)


class Node:
    """A node: `dsec-mountd` on a cache of its own, and an edge when asked for."""

    def __init__(self, work, source, name="node", road=None, options=()):
        self.work, self.source, self.name, self.road, self.options = work, source, name, road, list(options)
        self.root = work.directory(name)
        self.cache = self.root / "cache"
        self.socket = self.root / "mountd.sock"
        self.edge_socket = self.root / "edge.sock"
        self.mountd = self.edge = None

    def mountd_command(self):
        argv = [program("dsec-mountd"), "serve", "--socket", self.socket, "--source", self.source]
        argv += ["--cache", self.cache, "--run", self.root / "run"]
        if self.road:
            argv += ["--road", self.road]
        return argv + self.options

    def start_mountd(self):
        self.mountd = self.work.start(f"{self.name}-mountd", self.mountd_command())
        self.mountd.wait_ready(self.answers)
        return self

    def start_edge(self):
        argv = [program("dsec"), "edge", "--socket", self.edge_socket, "--mountd", self.socket]
        argv += ["--state", self.root / "edge"]
        self.edge = self.work.start(f"{self.name}-edge", argv)
        self.edge.wait_ready(lambda: self.dsec("ps", ok=None).returncode == 0)
        return self

    def answers(self):
        """Whether the daemon answers on its socket."""
        return run(program("dsec-mountd"), "status", "--socket", self.socket, ok=None).returncode == 0

    def status(self):
        """What `dsec-mountd status` says."""
        return json.loads(run(program("dsec-mountd"), "status", "--socket", self.socket, "--json").stdout)

    def dsec(self, *argv, **options):
        """Runs `dsec` against this node's edge."""
        return run(program("dsec"), "--edge", self.edge_socket, *argv, **options)

    def create(self, image, *options):
        """Makes a sandbox; gives its id."""
        return self.dsec("create", *options, image).stdout.strip()

    def mount_command(self, image, directory):
        return [program("dsec-pack"), "mount", "--mountd", self.socket, image, directory]

    def mount(self, image, directory):
        """Mounts an image on a directory."""
        return run(*self.mount_command(image, directory))

    def umount(self, directory):
        return run(program("dsec-pack"), "umount", "--mountd", self.socket, directory)
