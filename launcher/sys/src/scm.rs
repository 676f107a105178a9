//! Descriptors over a Unix socket.

use rustix::io::{Errno, IoSlice, IoSliceMut, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Most descriptors that one message carries here.
pub const DESCRIPTORS_MAX: usize = 16;

/// Sends `bytes` (at least one) and `descriptors` in one message.
///
/// # Errors
/// INVAL for no bytes or more than [`DESCRIPTORS_MAX`] descriptors; else what `sendmsg` answers.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<usize> {
    if bytes.is_empty() || descriptors.len() > DESCRIPTORS_MAX {
        return Err(Errno::INVAL);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

/// Receives one message: how many bytes came into `bytes` (0: the peer is gone), and the descriptors, close-on-exec.
///
/// # Errors
/// MSGSIZE when the peer sent more descriptors than fit (those that came are closed); else what `recvmsg` answers.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = item {
            descriptors.extend(received);
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE);
    }
    Ok((message.bytes, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    #[test]
    fn a_descriptor_arrives_open() {
        let (left, right) = std::os::unix::net::UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        send(left.as_fd(), b"x", &[writer.as_fd()]).unwrap();
        drop(writer);
        let mut byte = [0; 4];
        let (count, mut received) = receive(right.as_fd(), &mut byte).unwrap();
        assert_eq!((count, received.len()), (1, 1));
        std::fs::File::from(received.remove(0)).write_all(b"through").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn too_many_are_refused_before_sending() {
        let (left, _right) = std::os::unix::net::UnixStream::pair().unwrap();
        let many = vec![left.as_fd(); DESCRIPTORS_MAX + 1];
        assert_eq!(send(left.as_fd(), b"x", &many), Err(Errno::INVAL));
    }
}
