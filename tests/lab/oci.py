"""An OCI image layout as `umoci` and `skopeo` write it, made from lists of entries: input for `dsec-pack build`."""

import gzip
import hashlib
import io
import json
import tarfile

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def file(name, data=b"", mode=0o644):
    """A regular file; a name that starts with `.wh.` is a whiteout, `.wh..wh..opq` makes its directory opaque."""
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), mode, 1_700_000_000
    return member, data


def directory(name, mode=0o755):
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.mtime = tarfile.DIRTYPE, mode, 1_700_000_000
    return member, b""


def write_layout(path, layers, config, tag="latest"):
    """Writes a layout with one image of these layers, each a list of entries, the base first."""
    blobs = path / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(kind, data):
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    plain = [tar(entries) for entries in layers]
    diff_ids = ["sha256:" + hashlib.sha256(data).hexdigest() for data in plain]
    image = {"architecture": "amd64", "os": "linux", "config": config}
    image["rootfs"] = {"type": "layers", "diff_ids": diff_ids}
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": blob(CONFIG, json.dumps(image).encode())}
    manifest["layers"] = [blob(LAYER, gzip.compress(data, mtime=0)) for data in plain]
    entry = blob(MANIFEST, json.dumps(manifest).encode())
    entry["annotations"] = {"org.opencontainers.image.ref.name": tag}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}
    (path / "index.json").write_text(json.dumps(index))
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def tar(entries):
    """The bytes of a tar of entries."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, data in entries:
            archive.addfile(member, io.BytesIO(data))
    return sink.getvalue()
