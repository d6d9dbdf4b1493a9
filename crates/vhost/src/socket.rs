//! Messages over a non-blocking socket: bytes, and the descriptors sent with them.

use crate::message::{HEADER, Header, MOST_FDS, MOST_PAYLOAD, MessageError};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A complete message.
#[derive(Debug)]
pub struct Received {
    /// The header.
    pub header: Header,
    /// The payload, with the length given in the header.
    pub payload: Vec<u8>,
    /// The descriptors received with it.
    pub fds: Vec<OwnedFd>,
}

/// The reason why a connection has ended.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The front end or the system has closed the connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The bytes are not a message.
    #[error("{0}")]
    Message(#[from] MessageError),
    /// More descriptors than any message may have.
    #[error("a message with more than {MOST_FDS} descriptors")]
    Descriptors,
}

/// Assembles the message that is arriving.
#[derive(Debug, Default)]
pub struct Receiver {
    bytes: Vec<u8>,
    header: Option<Header>,
    fds: Vec<OwnedFd>,
}

impl Receiver {
    /// Reads until a message is complete. Returns `None` if the rest has not arrived.
    ///
    /// # Errors
    /// If the connection has ended, or the bytes are not a message.
    pub fn receive(&mut self, socket: impl AsFd) -> Result<Option<Received>, ReceiveError> {
        loop {
            let wanted = self.header.map_or(HEADER, |header| header.size);
            if self.bytes.len() < wanted {
                match self.read(&socket, wanted) {
                    Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                    Ok(_) => {}
                    Err(Errno::AGAIN) => return Ok(None),
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(io::Error::from(error).into()),
                }
                if self.fds.len() > MOST_FDS {
                    return Err(ReceiveError::Descriptors);
                }
                continue;
            }
            match self.header.take() {
                None => {
                    let head = self.bytes[..].try_into().expect("as many bytes as a header has");
                    self.header = Some(Header::parse(head)?);
                    self.bytes.clear();
                }
                Some(header) => {
                    let payload = std::mem::take(&mut self.bytes);
                    let fds = std::mem::take(&mut self.fds);
                    return Ok(Some(Received { header, payload, fds }));
                }
            }
        }
    }

    /// Reads up to a total of `wanted` bytes. A read never takes bytes of the next message, since its descriptors would
    /// come with them.
    fn read(&mut self, socket: impl AsFd, wanted: usize) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffer = [0; MOST_PAYLOAD];
        let room = &mut buffer[..wanted - self.bytes.len()];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let read = recvmsg(&socket, &mut [IoSliceMut::new(room)], &mut control, flags)?.bytes;
        self.bytes.extend(&buffer[..read]);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        Ok(read)
    }
}

/// Sends an answer, with its descriptor if there is one.
///
/// # Errors
/// If the answer cannot be sent: it fits into the buffer of any socket.
pub fn send(socket: impl AsFd, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.as_slice();
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(ErrorKind::OutOfMemory.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    if sent == bytes.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().expect("a pair of sockets")
    }

    fn message(request: u32, payload: &[u8]) -> Vec<u8> {
        let head = [request, 1, payload.len() as u32].map(u32::to_ne_bytes);
        [head.as_flattened(), payload].concat()
    }

    #[test]
    fn a_message_arrives_in_parts_and_keeps_its_descriptors() {
        let (mut front, back) = pair();
        let mut receiver = Receiver::default();
        assert!(receiver.receive(&back).expect("it is open").is_none());
        let fd = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
        let bytes = message(12, &[0; 8]);
        send(&front, &bytes[..5], Some(fd.as_fd())).expect("there is room");
        assert!(receiver.receive(&back).expect("it is open").is_none());
        front.write_all(&bytes[5..]).expect("there is room");
        front.write_all(&message(1, &[])).expect("there is room");
        let first = receiver.receive(&back).expect("a message").expect("it is whole");
        assert_eq!((first.header.request, first.payload.len(), first.fds.len()), (12, 8, 1));
        let second = receiver.receive(&back).expect("a message").expect("it is whole");
        assert_eq!((second.header.request, second.fds.len()), (1, 0));
        drop(front);
        assert!(receiver.receive(&back).is_err());
    }

    #[test]
    fn bytes_that_are_no_message_end_the_connection() {
        let (mut front, back) = pair();
        front.write_all(&[0xff; 12]).expect("there is room");
        let error = Receiver::default().receive(&back).expect_err("it is no message");
        assert!(matches!(error, ReceiveError::Message(MessageError::Version(3))), "{error}");
    }
}
