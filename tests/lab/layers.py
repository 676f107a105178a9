"""Layers in a store, read by their byte-level document (`docs/format/layer.md`) and not by our own code.

So that what `fsck.erofs` looks at is what is stored, and the document is tried by a second reader.
"""

import struct

from .cases import check
from .work import Failure, run

IDENTITY_BYTES = 160
DEVICE_BYTES_OFFSET = 112
STORAGE = struct.Struct("<QQBB14x")
PLAIN, ZSTD = 0, 1


def layer_digests(store, image):
    """Digests of an image's layers, the base first."""
    return [layer["digest"] for layer in store.json("show", image)["layers"]]


def stored_layer(store, digest):
    """The file of a layer in a store."""
    name = digest.removeprefix("blake3:")
    return store.path / "layers" / name[:2] / name


def check_image(store, image, directory):
    """`fsck.erofs` of the metadata of every layer of an image."""
    digests = layer_digests(store, image)
    check(digests, "the image has layers")
    for digest in digests:
        check_metadata(store, digest, directory)


def check_metadata(store, digest, directory):
    """`fsck.erofs` of a layer's metadata image, beside an empty device of the size that the layer states."""
    metadata, device = directory / "metadata.erofs", directory / "device"
    device_bytes = write_metadata(store, digest, metadata)
    run("truncate", f"--size={device_bytes}", device)
    run("fsck.erofs", f"--device={device}", metadata)
    device.unlink()


def write_metadata(store, digest, path):
    """Writes the plain EROFS metadata image of a layer into a file; gives the size of its data device."""
    data = stored_layer(store, digest).read_bytes()
    (device_bytes,) = struct.unpack_from("<Q", data, DEVICE_BYTES_OFFSET)
    metadata_bytes, _, codec, _ = STORAGE.unpack_from(data, IDENTITY_BYTES)
    start = IDENTITY_BYTES + STORAGE.size
    stored = data[start : start + metadata_bytes]
    if codec == PLAIN:
        path.write_bytes(stored)
    elif codec == ZSTD:
        packed = path.with_suffix(".zst")
        packed.write_bytes(stored)
        run("zstd", "-d", "-q", "-f", packed, "-o", path)
    else:
        raise Failure(f"layer {digest} has unknown codec {codec}")
    return device_bytes
