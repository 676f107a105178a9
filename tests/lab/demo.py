"""The whole road on a real Debian tree: build, push, lazy mount, sandbox, pack-diff, new sandbox, report.

It prints the time and the bytes of each step, fails when one of the bounds at its end does not hold, and removes what
it made. The registry is behind a proxy that adds 20 ms to each request, and the node starts with an empty cache.
"""

import contextlib
import time

from . import measures, trees
from .programs import Node, Proxy, Registry, Store
from .work import Failure, Work

DELAY_MS = 20
BASE, WITH_GIT, WITH_PACKAGE = "demo/debian:12", "demo/debian-git:12", "demo/debian-pygments:12"
IMPORTS = "import json, ssl, email, sqlite3; print(ssl.OPENSSL_VERSION, sqlite3.sqlite_version)"
PACKAGE_CHECK = (
    "import pygments, pygments.lexers as lexers;"
    " print('pygments', pygments.__version__, 'with', len(list(lexers.get_all_lexers())), 'lexers')"
)


def arguments(parser):
    parser.add_argument("--keep", action="store_true", help="leave everything as it is at the end, daemons included")


class Steps:
    """Prints each step with its time, and what came of it."""

    def __init__(self):
        self.number = 0

    @contextlib.contextmanager
    def step(self, what):
        self.number += 1
        facts = []
        print(f"{self.number:2}. {what}", flush=True)
        start = time.monotonic()
        yield facts.append
        took = time.monotonic() - start
        print(f"    {took:8.2f} s" + "".join(f"  {fact}" for fact in facts), flush=True)


def mb(count):
    return f"{count / 1e6:.1f} MB"


def main(options):
    with Work("demo", keep=options.keep) as work:
        play(work)
        if options.keep:
            print(f"kept: {work.path} (with its daemons; `./x demo` without --keep removes what it makes)")
        else:
            print(f"removed what it made; the Debian trees stay in {work.cache}")
    return 0


def play(work):
    """The steps; raises when a bound does not hold."""
    steps = Steps()
    step = steps.step
    local = Store(work.path / "store")

    with step("a Debian with Python, and what installing git on top of it changes (debootstrap, apt)") as say:
        base, second, wheel = trees.debian(work), trees.debian_with_git(work), trees.wheel(work)
        say(f"{measures.entries(base)} entries, and {measures.entries(second)} that apt has made or changed")

    with step(f"dsec-pack build: {BASE}") as say:
        local.run("build", base, "--ref", BASE)
        stored = measures.stored_bytes(local, BASE)
        say(f"{mb(stored)} stored of {mb(measures.logical_bytes(local, BASE))}")

    with step(f"dsec-pack pack-diff: what apt has changed, on top of {BASE}, as {WITH_GIT}") as say:
        local.run("pack-diff", "--upper", second, "--parent", BASE, "--ref", WITH_GIT)
        before = stored
        say(f"{mb(local.bytes('packs') - before)} more in the store")

    with step("dsec-registry, and dsec-pack push of both") as say:
        registry = Registry(work).start()
        for image in (BASE, WITH_GIT):
            local.run("push", image, registry.url)
        say(f"{mb(registry.store.bytes('packs'))} in the registry")

    with step(f"a proxy that adds {DELAY_MS} ms to each request; dsec-mountd with an empty cache; dsec edge"):
        proxy = Proxy(work, registry.port, DELAY_MS)
        node = Node(work, proxy.url).start_mountd().start_edge()

    with step("dsec create: a sandbox on the base image"):
        sandbox = node.create(BASE)

    with step("python3 in it, lazily, from an empty cache") as say:
        said = node.dsec("exec", sandbox, "--", "python3", "-c", IMPORTS).stdout.strip()
        fetched = proxy.stats()
        share = fetched["response_bytes"] / stored
        say(said)
        say(f"fetched {mb(fetched['response_bytes'])} in {fetched['requests']} requests, {share:.1%} of the image")

    with step(f"dsec cp: {wheel.name} into it, and its installation there"):
        node.dsec("cp", wheel, f"{sandbox}:/tmp/{wheel.name}")
        node.dsec("exec", sandbox, "--", *measures.install(f"/tmp/{wheel.name}"))
        node.dsec("exec", sandbox, "--", "python3", "-c", PACKAGE_CHECK)
        node.dsec("exec", sandbox, "--", "rm", f"/tmp/{wheel.name}")

    with step(f"dsec-pack pack-diff: the sandbox as {WITH_PACKAGE}") as say:
        changed = measures.changed_bytes(node, sandbox)
        diff = measures.pack_diff(node, local, sandbox, WITH_PACKAGE)
        say(f"{mb(diff)} stored; the changed files are {mb(changed)} as tar | zstd -3: {diff / changed:.2f} x")

    with step("dsec-pack push: only what is new") as say:
        before = registry.store.bytes()
        local.run("push", WITH_PACKAGE, registry.url)
        say(f"{mb(registry.store.bytes() - before)} more in the registry")

    with step("dsec run: a new sandbox that imports the package") as say:
        say(node.dsec("run", WITH_PACKAGE, "--", "python3", "-c", PACKAGE_CHECK).stdout.strip())

    with step("dsec-pack report"):
        print(local.run("report").stdout.rstrip())
        node.dsec("rm", sandbox)

    for holds, bound in (
        (share < measures.FETCHED_SHARE, f"a Python start fetches {share:.1%} of the stored bytes, bound 15 %"),
        (
            diff < measures.DIFF_RATIO * changed,
            f"pack-diff stores {diff / changed:.2f} x the changed files as tar | zstd -3, bound 1.2 x",
        ),
    ):
        print(("holds: " if holds else "DOES NOT HOLD: ") + bound)
        if not holds:
            raise Failure(bound)
