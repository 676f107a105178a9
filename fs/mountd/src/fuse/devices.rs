//! A flat directory of data devices: one file a layer, named by the hexadecimal digits of its digest.
//!
//! The kernel's EROFS opens these files and reads them; people may look. They are opened for direct I/O, so that the
//! page cache holds file data once, under the inode of the EROFS, and not again as pages of the device.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, Request,
};

use super::{FOREVER, answer_read};
use crate::device::Reader;
use crate::layer::Layer;
use crate::served::Served;

/// See the [module](self).
#[derive(Debug)]
pub struct Devices {
    served: Arc<Served>,
    reader: Arc<Reader>,
}

/// The inode of a device is its slot and this: the root is 1, slots begin at 1.
const FIRST_INODE: u64 = 1;
/// Requests that the kernel may have under way in the background.
const MAX_BACKGROUND: u16 = 256;

fn slot_of(inode: INodeNo) -> Option<u32> {
    inode.0.checked_sub(FIRST_INODE).and_then(|slot| u32::try_from(slot).ok()).filter(|slot| *slot > 0)
}

fn attributes(inode: u64, kind: FileType, bytes: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(inode),
        size: bytes,
        blocks: bytes / 512,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: if kind == FileType::Directory { 0o500 } else { 0o400 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn device_attributes(layer: &Layer) -> FileAttr {
    attributes(FIRST_INODE + u64::from(layer.slot()), FileType::RegularFile, layer.device_bytes())
}

impl Devices {
    /// A directory of what is served.
    pub fn new(served: Arc<Served>, reader: Arc<Reader>) -> Self {
        Self { served, reader }
    }

    fn known(&self, inode: INodeNo) -> Option<Arc<Layer>> {
        slot_of(inode).and_then(|slot| self.served.known(slot))
    }
}

impl Filesystem for Devices {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // What a kernel does not know it does without: each only makes reads overlap.
        for wish in [InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_PARALLEL_DIROPS] {
            if config.add_capabilities(wish).is_err() {
                tracing::debug!(?wish, "the kernel lacks a FUSE feature");
            }
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = name.to_str().filter(|_| parent == INodeNo::ROOT).and_then(|name| self.served.find(name));
        match found {
            Some(layer) => reply.entry(&FOREVER, &device_attributes(&layer), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        if inode == INodeNo::ROOT {
            return reply.attr(&FOREVER, &attributes(INodeNo::ROOT.0, FileType::Directory, 0));
        }
        match self.known(inode) {
            Some(layer) => reply.attr(&FOREVER, &device_attributes(&layer)),
            None => reply.error(Errno::ESTALE),
        }
    }

    fn open(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match slot_of(inode).and_then(|slot| self.served.take(slot, 1)) {
            Some(layer) => {
                reply.opened(FileHandle(layer.slot().into()), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH);
            }
            None => reply.error(Errno::ESTALE),
        }
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        bytes: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(layer) = self.known(inode) else { return reply.error(Errno::ESTALE) };
        let done = move |answer: Result<&[u8], _>| answer_read(reply, answer, inode.0, offset);
        self.reader.read(&layer, offset, u64::from(bytes), Box::new(done));
    }

    fn release(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(slot) = slot_of(inode) {
            self.served.give_back(slot, 1);
        }
        reply.ok();
    }

    fn readdir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let dots = [".", ".."].map(|name| (INodeNo::ROOT, FileType::Directory, name.to_owned()));
        let layers = self.served.offered();
        let devices = layers.iter().map(|layer| {
            let inode = INodeNo(FIRST_INODE + u64::from(layer.slot()));
            (inode, FileType::RegularFile, layer.digest().hex())
        });
        for (next, (inode, kind, name)) in (1..).zip(dots.into_iter().chain(devices)) {
            if next > offset && reply.add(inode, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
