"""Every wrong input and broken store of the matrix: one clear error, the documented exit code, the store unchanged."""

import hashlib
import io
import os
import shutil
import tarfile

from .. import layers
from ..cases import check, equal
from ..programs import LOOPBACK, Node, Registry, Store, free_port
from ..work import run

# Exit codes, as docs/command-line.md lists them.
NOT_FOUND, INPUT, DAMAGED, UNREACHABLE, REFUSED, FULL, CONFLICT, DIFFERENT = 3, 4, 5, 6, 7, 8, 9, 10
IMAGE = "e2e/good:1"


def run_cases(cases, work):
    world = World(work)
    for name, case in (
        ("a flipped byte in a pack", flipped_pack),
        ("a truncated pack", truncated_pack),
        ("a truncated layer", truncated_layer),
        ("a layer of an unknown version", unknown_version),
        ("an image under another's digest", wrong_digest),
        ("a ref that is no ref", broken_ref),
        ("a missing chunk", missing_chunk),
        ("a full disk", full_disk),
        ("a second daemon on one cache", second_daemon),
        ("a registry that does not answer", unreachable),
        ("a registry with another token", wrong_token),
        ("an image that is not there", no_such_image),
        ("an input that is no image", no_image),
        ("a truncated tar", truncated_tar),
        ("a directory that is no store", no_store),
        ("a tar with .. in a name", lambda world: evil_tar(world, "../escaped")),
        ("a tar with .. inside a name", lambda world: evil_tar(world, "a/../../escaped")),
        ("a tar with an absolute name", lambda world: evil_tar(world, "/escaped")),
        ("a tar with a hard link that leaves it", evil_link),
    ):
        cases.run(f"error: {name}", case, world)


class World:
    """A sound store to take copies of."""

    def __init__(self, work):
        self.work = work
        self.tree = work.path / "tree"
        (self.tree / "d").mkdir(parents=True)
        for number in range(20):
            (self.tree / f"d/file-{number}").write_bytes(os.urandom(30_000) + b"text " * 1000)
        (self.tree / "d/large").write_bytes(os.urandom(2 << 20))
        self.good = Store(work.path / "good")
        self.good.run("build", self.tree, "--ref", IMAGE)
        self.copies = 0

    def copy(self):
        """A store of its own, to be damaged."""
        self.copies += 1
        path = self.work.path / f"copy-{self.copies}"
        shutil.copytree(self.good.path, path)
        return Store(path)


def state(store):
    """Everything that counts in a store: paths and contents, but not locks and temporary directories."""
    passing = ("tmp", "locks")
    return {
        str(path.relative_to(store.path)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in store.path.rglob("*")
        if path.is_file() and path.relative_to(store.path).parts[0] not in passing
    }


def one_error(done, code, *words):
    """A command has failed as documented: this code, one error, and these words in it."""
    said = done.stderr
    equal(done.returncode, code, f"exit code, with the error\n{said}")
    equal(sum(line.startswith("error:") for line in said.splitlines()), 1, f"errors in\n{said}")
    check("panicked" not in said, said)
    for word in words:
        check(word in said, f"the error does not name {word!r}:\n{said}")


def fails(store, code, words, *argv):
    """A command fails as documented, and the store is as before."""
    before = state(store)
    one_error(store.run(*argv, ok=None), code, *words)
    equal(state(store), before, "the store after the error")


def largest(store, kind):
    files = [path for path in (store.path / kind).rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


def refused_everywhere(world, store, code, *words):
    """A damaged image is refused by whatever reads it; a registry that is offered it stays as it was."""
    fails(store, DIFFERENT, [], "fsck")
    fails(store, code, words, "unpack", IMAGE, world.work.path / f"never-{world.copies}")
    registry = Registry(world.work, name=f"registry-{world.copies}").start()
    before = state(registry.store)
    done = store.run("push", IMAGE, registry.url, ok=None)
    one_error(done, code, *words)
    equal({name for name in state(registry.store) if name.startswith("refs")}, set(), "refs in the registry")
    check(all(name in state(registry.store) for name in before), "what was in the registry stays")
    registry.store.run("fsck")
    registry.process.stop()


def flipped_pack(world):
    store = world.copy()
    pack = largest(store, "packs")
    flip(pack, pack.stat().st_size // 2)
    refused_everywhere(world, store, DAMAGED)


def truncated_pack(world):
    store = world.copy()
    pack = largest(store, "packs")
    os.truncate(pack, pack.stat().st_size // 2)
    refused_everywhere(world, store, DAMAGED, pack.name)


def truncated_layer(world):
    store = world.copy()
    layer = largest(store, "layers")
    os.truncate(layer, layer.stat().st_size - 7)
    refused_everywhere(world, store, DAMAGED, layer.name)


def unknown_version(world):
    store = world.copy()
    (digest,) = layers.layer_digests(store, IMAGE)
    layer = layers.stored_layer(store, digest)
    with open(layer, "r+b") as file:
        file.seek(8)
        file.write((99).to_bytes(2, "little"))
    refused_everywhere(world, store, DAMAGED, "99")


def wrong_digest(world):
    store = world.copy()
    (world.tree / "d/added").write_text("a second image")
    store.run("build", world.tree, "--ref", "e2e/second:1")
    (world.tree / "d/added").unlink()
    names = [store.json("show", name)["digest"].removeprefix("blake3:") for name in (IMAGE, "e2e/second:1")]
    good, other = (store.path / "images" / name[:2] / name for name in names)
    shutil.copyfile(other, good)
    refused_everywhere(world, store, DAMAGED, good.name)


def broken_ref(world):
    store = world.copy()
    ref = largest(store, "refs")
    ref.write_text("{}")
    fails(store, DAMAGED, ["e2e/good"], "show", IMAGE)


def missing_chunk(world):
    store = world.copy()
    for pack in [path for path in (store.path / "packs").rglob("*") if path.is_file()]:
        pack.unlink()
    fails(store, DIFFERENT, [], "fsck")
    fails(store, NOT_FOUND, [], "unpack", IMAGE, world.work.path / "never-missing")


def full_disk(world):
    point = world.work.directory("tiny")
    run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", point)
    try:
        store = Store(point / "store")
        small = world.work.directory("small")
        (small / "file").write_text("fits")
        store.run("build", small, "--ref", "e2e/small:1")
        fails(store, FULL, [], "build", world.tree, "--ref", "e2e/large:1")
        store.run("fsck")
        store.run("verify", "e2e/small:1", "--against", small)
        store.run("ls")
        (small / "more").write_text("fits as well, after the failure")
        store.run("build", small, "--ref", "e2e/small:2")
    finally:
        run("umount", point)


def second_daemon(world):
    node = Node(world.work, world.good.path, name="first").start_mountd()
    second = Node(world.work, world.good.path, name="second")
    second.cache = node.cache
    done = run(*second.mountd_command(), ok=None, seconds=30)
    one_error(done, CONFLICT, str(node.cache))
    check(node.answers(), "the first daemon answers")
    node.mountd.stop()


def unreachable(world):
    url = f"http://{LOOPBACK}:{free_port()}"
    store = world.copy()
    fails(store, UNREACHABLE, [url], "push", IMAGE, url)
    fails(store, UNREACHABLE, [url], "pull", "e2e/other:1", url)
    node = Node(world.work, url, name="alone").start_mountd()
    done = run(*node.mount_command(IMAGE, world.work.directory("nowhere")), ok=None, seconds=120)
    one_error(done, UNREACHABLE, url)
    node.mountd.stop()


def wrong_token(world):
    registry = Registry(world.work, name="locked", token="right").start()
    store = world.copy()
    for token in (None, "wrong"):
        environment = {**os.environ, **({"DSEC_TOKEN": token} if token else {})}
        one_error(store.run("push", IMAGE, registry.url, ok=None, env=environment), REFUSED)
    store.run("push", IMAGE, registry.url, env={**os.environ, "DSEC_TOKEN": "right"})
    registry.process.stop()


def no_such_image(world):
    store = world.copy()
    for argv in (["show", "e2e/none:1"], ["unpack", "e2e/none:1", world.work.path / "never"], ["verify", "e2e/none:1"]):
        fails(store, NOT_FOUND, ["e2e/none:1"], *argv)


def no_image(world):
    store = world.copy()
    garbage = world.work.path / "garbage"
    garbage.write_bytes(os.urandom(100_000))
    fails(store, INPUT, ["garbage"], "build", garbage, "--ref", "e2e/garbage:1")
    layout = world.work.directory("layout")
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (layout / "index.json").write_text("not JSON")
    fails(store, INPUT, ["index.json"], "build", layout, "--ref", "e2e/garbage:1")
    fails(store, NOT_FOUND, ["not-there"], "build", world.work.path / "not-there", "--ref", "e2e/garbage:1")


def archive(world, name, *members):
    """A tar with one honest file and these members: (TarInfo, data)."""
    path = world.work.path / name
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        honest = tarfile.TarInfo("honest")
        honest.size = 6
        tar.addfile(honest, io.BytesIO(b"honest"))
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def truncated_tar(world):
    path = archive(world, "cut.tar", (tarfile.TarInfo("large"), os.urandom(100_000)))
    os.truncate(path, 50_000)
    fails(world.copy(), INPUT, ["cut.tar"], "build", path, "--ref", "e2e/cut:1")


def evil_tar(world, name):
    path = archive(world, "evil.tar", (tarfile.TarInfo(name), b"outside"))
    fails(world.copy(), INPUT, [name], "build", path, "--ref", "e2e/evil:1")
    check(not (world.work.path / "escaped").exists(), "a file was made outside")


def evil_link(world):
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.LNKTYPE, "../../../../etc/passwd"
    fails(world.copy(), INPUT, ["link"], "build", archive(world, "link.tar", (link, b"")), "--ref", "e2e/evil:1")


def no_store(world):
    directory = world.work.directory("no-store")
    (directory / "something").write_text("of someone else")
    store = Store(directory)
    before = state(store)
    done = store.run("build", world.tree, "--ref", "e2e/x:1", ok=None)
    one_error(done, NOT_FOUND, str(directory))
    equal(state(store), before, "the directory")
