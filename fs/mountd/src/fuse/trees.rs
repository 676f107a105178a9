//! Whole trees through FUSE, for where the kernel cannot mount EROFS.
//!
//! Made for few round trips: what never changes is cached by the kernel for ever, absent names too; directories come
//! with the attributes of their entries; there is no OPEN, so a file that the kernel has cached costs no request at all.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dsec_erofs::{Inode, Timestamp};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEntry, ReplyLseek, ReplyOpen, ReplyXattr,
    Request,
};

use super::{FOREVER, answer_read};
use crate::tree::{Error, Ino, Node, ROOT, Seek, Trees};

/// `whence` of Linux's lseek(2): the next data, the next hole.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
/// Requests that the kernel may have under way in the background.
const MAX_BACKGROUND: u16 = 256;
/// Without these a tree is not what its metadata says (ACLs), or files would cost a request each.
const NEEDED: InitFlags = InitFlags::FUSE_POSIX_ACL.union(InitFlags::FUSE_DO_READDIRPLUS);
/// What a kernel lacks of these it does without: they save requests, or let mounts of the trees map their ids.
const WISHED: [InitFlags; 6] = [
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_NO_OPEN_SUPPORT,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_ALLOW_IDMAP,
];

impl Filesystem for Trees {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        config.add_capabilities(NEEDED).map_err(|lacking| {
            io::Error::new(io::ErrorKind::Unsupported, format!("the kernel's FUSE lacks {lacking:?}"))
        })?;
        for wish in WISHED {
            if config.add_capabilities(wish).is_err() {
                tracing::debug!(?wish, "the kernel lacks a FUSE feature");
            }
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match Trees::lookup(self, Ino(parent.0), name.as_bytes()) {
            Ok(Some(node)) => {
                let attributes = attributes(&node);
                self.served().take(Ino(attributes.ino.0).slot(), 1);
                reply.entry(&FOREVER, &attributes, Generation(0));
            }
            // A layer may be mounted any time; inside a layer what is absent stays absent.
            Ok(None) if parent.0 == ROOT.0 => reply.error(Errno::ENOENT),
            Ok(None) => reply.entry(&FOREVER, &absent(), Generation(0)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn forget(&self, _request: &Request, inode: INodeNo, lookups: u64) {
        self.served().give_back(Ino(inode.0).slot(), lookups);
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.node(Ino(inode.0)) {
            Ok(node) => reply.attr(&FOREVER, &attributes(&node)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        match self.read_link(Ino(inode.0), <[u8]>::to_vec) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn open(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // The kernel asks once and never again.
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
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
        let done = move |answer: Result<&[u8], _>| answer_read(reply, answer, inode.0, offset);
        if let Err((error, done)) = Trees::read(self, Ino(inode.0), offset, u64::from(bytes), Box::new(done)) {
            tracing::warn!(%error, "a read cannot begin");
            done(Err(crate::fetch::ReadError::Unavailable));
        }
    }

    fn lseek(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        // The kernel asks for these two alone.
        let want = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let found = u64::try_from(offset).ok().map(|offset| self.seek(Ino(inode.0), offset, want)).transpose();
        match found.map(|found| found.flatten().and_then(|offset| i64::try_from(offset).ok())) {
            Ok(Some(offset)) => reply.offset(offset),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdir(&self, _request: &Request, dir: INodeNo, _handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let result = self.read_dir(Ino(dir.0), offset, |entry| {
            let name = OsStr::from_bytes(entry.name);
            reply.add(INodeNo(entry.ino.0), entry.next_offset, file_type(entry.file_type), name)
        });
        match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        dir: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let mut failure = None;
        let mut entered: Vec<(u32, u64)> = Vec::new();
        let result = self.read_dir(Ino(dir.0), offset, |entry| {
            let attributes = match self.node(entry.ino) {
                Ok(node) => attributes(&node),
                Err(error) => {
                    failure = Some(error);
                    return true;
                }
            };
            let (name, next) = (OsStr::from_bytes(entry.name), entry.next_offset);
            if reply.add(attributes.ino, next, name, &FOREVER, &attributes, Generation(0)) {
                return true;
            }
            // The kernel counts every entry as a lookup, except these two.
            if entry.name != b"." && entry.name != b".." {
                match entered.last_mut().filter(|(slot, _)| *slot == entry.ino.slot()) {
                    Some((_, lookups)) => *lookups += 1,
                    None => entered.push((entry.ino.slot(), 1)),
                }
            }
            false
        });
        match failure.map_or(result, Err) {
            Ok(()) => {
                entered.iter().for_each(|(slot, lookups)| drop(self.served().take(*slot, *lookups)));
                reply.ok();
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn getxattr(&self, _request: &Request, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        match self.xattr(Ino(inode.0), name.as_bytes(), <[u8]>::to_vec) {
            Ok(Some(value)) => answer_xattr(reply, &value, size),
            Ok(None) => reply.error(Errno::ENODATA),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn listxattr(&self, _request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        match self.xattr_names(Ino(inode.0)) {
            Ok(names) => answer_xattr(reply, &names, size),
            Err(error) => reply.error(errno(&error)),
        }
    }
}

fn answer_xattr(reply: ReplyXattr, value: &[u8], size: u32) {
    // The kernel itself allows 64 KiB.
    let length = u32::try_from(value.len()).unwrap_or(u32::MAX);
    match size {
        0 => reply.size(length),
        size if size < length => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}

/// The one map from failures of trees to errnos.
fn errno(error: &Error) -> Errno {
    match error {
        Error::Stale { .. } => Errno::ESTALE,
        Error::Metadata { .. } | Error::Data { .. } => Errno::EIO,
        Error::NotAFile { .. } => Errno::EINVAL,
        Error::NotADirectory { .. } => Errno::ENOTDIR,
    }
}

fn file_type(kind: dsec_erofs::FileType) -> FileType {
    match kind {
        dsec_erofs::FileType::Regular => FileType::RegularFile,
        dsec_erofs::FileType::Directory => FileType::Directory,
        dsec_erofs::FileType::CharDevice => FileType::CharDevice,
        dsec_erofs::FileType::BlockDevice => FileType::BlockDevice,
        dsec_erofs::FileType::Fifo => FileType::NamedPipe,
        dsec_erofs::FileType::Socket => FileType::Socket,
        dsec_erofs::FileType::Symlink => FileType::Symlink,
    }
}

/// A point in time, or 1970 if it is beyond what the system can say.
fn time(stamp: Timestamp) -> SystemTime {
    let (secs, nanos) = (Duration::from_secs(stamp.secs.unsigned_abs()), Duration::from_nanos(stamp.nanos.into()));
    let whole = if stamp.secs < 0 { UNIX_EPOCH.checked_sub(secs) } else { UNIX_EPOCH.checked_add(secs) };
    whole.and_then(|whole| whole.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// Linux's encoding of a device number in 32 bits.
fn device_number(device: dsec_erofs::Device) -> u32 {
    (device.minor & 0xff) | (device.major << 8) | ((device.minor & !0xff) << 12)
}

fn attributes(node: &Node) -> FileAttr {
    match node {
        Node::Root => FileAttr { ino: INodeNo::ROOT, kind: FileType::Directory, perm: 0o555, nlink: 2, ..absent() },
        Node::Inode(ino, inode) => inode_attributes(*ino, inode),
    }
}

fn inode_attributes(ino: Ino, inode: &Inode) -> FileAttr {
    let time = time(inode.attributes.mtime);
    FileAttr {
        ino: INodeNo(ino.0),
        size: inode.bytes,
        // As the kernel's EROFS says it.
        blocks: inode.bytes.div_ceil(4096) * 8,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind: file_type(inode.file_type),
        perm: inode.attributes.mode,
        nlink: inode.nlink,
        uid: inode.attributes.uid,
        gid: inode.attributes.gid,
        rdev: device_number(inode.device()),
        blksize: 4096,
        flags: 0,
    }
}

/// An entry with inode 0: "there is nothing of this name", which the kernel may keep.
fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
