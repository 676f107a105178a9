"""The kill loop: `kill -9` of build, push, pack-diff, registry and mountd at random moments.

After every kill: the store is sound (`fsck`), every ref that was acknowledged still names what it named, and the next
try succeeds. At the end nothing is left behind: no temporary file, mount, cgroup or process. The moments come from a
seed, which is printed; the same seed draws the same moments, though not the same places in the programs.
"""

import hashlib
import os
import random
import signal
import stat
import subprocess
import threading
import time
from functools import partial

from . import trees
from .cases import Cases, check, equal
from .leftovers import processes_below, remains_of
from .programs import Node, Registry, Store, program
from .work import Failure, Work, mounts_below, run, shown

KILLS = 200
DEBIAN = "crash/debian:12"
# Every so many looks at a store, fsck reads the data of every pack too; it does at the end in any case.
FULL_LOOK = 10
# Exit code of `dsec-pack` when a registry does not answer.
UNREACHABLE = 6
# What a kill hits, and how many of 20.
SHARES = (("build", 5), ("push", 5), ("pack-diff", 3), ("registry", 4), ("mountd", 3))


def arguments(parser):
    parser.add_argument("--only", choices=[name for name, _ in SHARES], help="kill this alone")


def main(options):
    seed = int(os.environ.get("DSEC_SEED") or random.SystemRandom().randrange(2**32))
    kills = int(os.environ.get("DSEC_KILLS") or KILLS)
    print(f"crash: {kills} kills, DSEC_SEED={seed}", flush=True)
    cases = Cases()
    with Work("crash") as work:
        loop = Loop(work, random.Random(seed))
        for name, share in SHARES:
            if options.only in (None, name):
                count = kills if options.only else -(-kills * share // 20)
                cases.run(f"kill -9 of {name}, {count} times", getattr(loop, "kill_" + name.replace("-", "_")), count)
        cases.run("nothing is left behind", loop.nothing_left)
    return cases.close()


class Loop:
    """The world that is shot at: a tree that changes a little each time, a store, a registry, a node."""

    def __init__(self, work, draw):
        self.work, self.random = work, draw
        self.tree = work.path / "tree"
        self.store = Store(work.path / "store")
        self.remote = Registry(work).start()
        self.acknowledged = {self.store.path: {}, self.remote.store.path: {}}
        self.number = self.looks = self.hits = 0
        self.edges = []
        self.make_tree()
        self.built()

    def make_tree(self):
        """About 24 MB: enough that a build, a push and a read take a while."""
        noise = random.Random(1)
        for directory in range(12):
            (self.tree / f"d{directory}").mkdir(parents=True)
            for number in range(40):
                (self.tree / f"d{directory}/f{number}").write_bytes(noise.randbytes(noise.randrange(1, 60_000)))
            (self.tree / f"d{directory}/large").write_bytes(noise.randbytes(1 << 20))

    def change_tree(self):
        """Some files change, so that every try has something new to store."""
        for directory in range(12):
            for name in (f"f{self.random.randrange(40)}", "large"):
                path = self.tree / f"d{directory}" / name
                path.write_bytes(self.random.randbytes(path.stat().st_size))

    def next_name(self):
        self.number += 1
        return f"crash/image:{self.number}"

    # One kill.

    def shoot(self, argv, moment_secs):
        """Starts a command and kills it at a moment; gives whether it had ended well before that."""
        log = self.work.directory("log") / "shot.log"
        with open(log, "wb") as sink:
            process = subprocess.Popen([str(word) for word in argv], stdout=sink, stderr=sink)
        try:
            code = process.wait(moment_secs)
        except subprocess.TimeoutExpired:
            process.kill()
            # It may have ended in between, and then was not killed.
            self.hits += process.wait() == -signal.SIGKILL
            return False
        if code != 0:
            raise Failure(f"{shown(argv)} ended with {code} before it was killed:\n{log.read_text()[-2000:]}")
        return True

    def moments(self, argv, prepare, count):
        """Measures how long the command takes when left alone, then draws moments until `count` kills have hit.

        A command that has ended before its moment was not killed, and does not count (`shoot` tells).
        """
        prepare()
        start = time.monotonic()
        run(*argv())
        took = time.monotonic() - start
        self.hits = tries = 0
        while self.hits < count:
            check(tries < 3 * count + 10, f"{self.hits} of {tries} shots have hit")
            tries += 1
            yield self.random.uniform(0, 1.1 * took)

    def acknowledge(self, store, name):
        """A ref that a program has said is stored: from now on it must be there."""
        self.acknowledged[store.path][name] = self.names(store)[name]

    def names(self, store):
        """What every ref of a store names."""
        return {ref["name"]: ref["target"] for ref in store.json("ls")["refs"]}

    def sound(self, store):
        """fsck finds nothing, and no acknowledged ref is lost or changed. Every tenth look reads all data as well."""
        self.looks += 1
        store.run("fsck", *([] if self.looks % FULL_LOOK == 0 else ["--quick"]))
        names = self.names(store)
        for name, target in self.acknowledged[store.path].items():
            equal(names.get(name), target, f"acknowledged ref {name} in {store.path.name}")

    # What is killed.

    def build_command(self, name):
        return [program("dsec-pack"), "--store", self.store.path, "build", self.tree, "--ref", name]

    def built(self):
        """A new image in the store, built in peace."""
        self.change_tree()
        name = self.next_name()
        run(*self.build_command(name))
        self.acknowledge(self.store, name)
        return name

    def kill_build(self, count):
        for moment in self.moments(lambda: self.build_command(self.next_name()), self.change_tree, count):
            self.change_tree()
            name = self.next_name()
            if not self.shoot(self.build_command(name), moment):
                self.sound(self.store)
                run(*self.build_command(name))
            self.acknowledge(self.store, name)
            self.sound(self.store)
        self.store.run("verify", name, "--against", self.tree)

    def push_command(self, name):
        return [program("dsec-pack"), "--store", self.store.path, "push", name, self.remote.url]

    def kill_push(self, count):
        name = self.built()
        for moment in self.moments(partial(self.push_command, name), lambda: None, count):
            name = self.built()
            if not self.shoot(self.push_command(name), moment):
                self.sound(self.remote.store)
                run(*self.push_command(name))
            self.acknowledge(self.remote.store, name)
            self.sound(self.remote.store)

    def kill_registry(self, count):
        name = self.built()
        for moment in self.moments(partial(self.push_command, name), lambda: None, count):
            name = self.built()
            push = subprocess.Popen(
                [str(word) for word in self.push_command(name)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            time.sleep(moment)
            self.remote.process.kill()
            self.hits += 1
            _, said = push.communicate(timeout=120)
            check(push.returncode in (0, UNREACHABLE), f"push ended with {push.returncode}: {said.decode()}")
            if push.returncode == 0:
                self.acknowledge(self.remote.store, name)
            self.sound(self.remote.store)
            self.remote.start()
            run(*self.push_command(name))
            self.acknowledge(self.remote.store, name)
            self.sound(self.remote.store)

    def kill_pack_diff(self, count):
        self.debian_in_store()
        node = Node(self.work, self.store.path, name="edge-node").start_mountd().start_edge()
        sandbox = node.create(DEBIAN)

        def change():
            script = "mkdir -p /srv/d; for n in 1 2 3; do head -c 2000000 /dev/urandom > /srv/d/$n; done"
            node.dsec("exec", sandbox, "--", "sh", "-c", script)

        def command(name):
            argv = ["pack-diff", "--edge", node.edge_socket, sandbox, name]
            return [program("dsec-pack"), "--store", self.store.path, *argv]

        for moment in self.moments(lambda: command(self.next_name()), change, count):
            change()
            name = self.next_name()
            if not self.shoot(command(name), moment):
                self.sound(self.store)
                # The hold ended with its connection: the sandbox runs again.
                equal(node.dsec("exec", sandbox, "--", "echo", "alive", seconds=20).stdout, "alive\n", "an exec")
                run(*command(name))
            self.acknowledge(self.store, name)
            self.sound(self.store)
        check(remains_of(node), "what an edge has of its own can be seen")
        node.dsec("rm", "--all")
        self.edges.append(node)
        node.edge.stop()
        node.mountd.stop()

    def kill_mountd(self, count):
        tree = self.debian_in_store()
        self.store.run("push", DEBIAN, self.remote.url)
        want = file_hashes(tree)
        node = Node(self.work, self.remote.url, name="reading-node").start_mountd()
        point = self.work.directory("read")
        node.mount(DEBIAN, point)
        start = time.monotonic()
        equal(file_hashes(point), want, "the files of the mounted image")
        took = time.monotonic() - start
        for moment in [self.random.uniform(0, 1.1 * took) for _ in range(count)]:
            killer = kill_at(node.mountd, moment)
            have = file_hashes(point)
            killer.join()
            # What was read before and beside the kill is right, or an error; never other bytes.
            wrong = [name for name, digest in have.items() if digest is not None and digest != want.get(name)]
            check(not wrong, f"wrong bytes were read beside a kill: {wrong[:5]}")
            if self.random.randrange(3) == 0:
                trees.remove(node.cache)
            node.start_mountd()
            node.umount(point)
            node.mount(DEBIAN, point)
        equal(file_hashes(point), want, "the files of the mounted image after the last kill")
        node.umount(point)
        node.mountd.stop()

    def debian_in_store(self):
        tree = trees.debian(self.work)
        if DEBIAN not in self.names(self.store):
            self.store.run("build", tree, "--ref", DEBIAN)
            self.acknowledge(self.store, DEBIAN)
        return tree

    # At the end.

    def nothing_left(self):
        self.remote.process.stop()
        for store in (self.store, self.remote.store):
            store.run("fsck")
            left = [path for path in (store.path / "tmp").rglob("*") if path.is_file()]
            check(not left, f"temporary files in {store.path.name}: {left[:5]}")
        equal(mounts_below(self.work.path), [], "mounts")
        equal(processes_below(self.work.path), [], "processes")
        equal([path for node in self.edges for path in remains_of(node)], [], "cgroups and files of sandboxes")


def file_hashes(directory):
    """Path to digest of every regular file; None for one that could not be read."""
    found = {}

    def failed(error):
        found[os.path.relpath(error.filename, directory)] = None

    for parent, _, names in os.walk(directory, onerror=failed):
        for name in names:
            path = os.path.join(parent, name)
            if os.path.islink(path):
                continue
            try:
                if not stat.S_ISREG(os.lstat(path).st_mode):
                    continue
                with open(path, "rb") as source:
                    digest = hashlib.file_digest(source, "sha256").hexdigest()
            except OSError:
                digest = None
            found[os.path.relpath(path, directory)] = digest
    return found


def kill_at(process, moment_secs):
    """Kills a daemon at a moment, from a thread of its own; join it."""

    def shoot():
        time.sleep(moment_secs)
        process.kill()

    thread = threading.Thread(target=shoot)
    thread.start()
    return thread
