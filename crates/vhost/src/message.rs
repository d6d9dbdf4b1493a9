//! The encoding of messages: a header of three numbers and a payload, in the byte order of the machine; and messages
//! with their descriptors over a non-blocking socket.
//!
//! A payload may be longer than its message needs, but not shorter: user-mode Linux sends a whole structure for a table
//! with one region.

use crate::memory::RegionInfo;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of a header.
pub const HEADER: usize = 12;
/// The maximum length of a payload in bytes.
pub const MOST_PAYLOAD: usize = 4096;
/// The maximum number of descriptors sent with a message.
pub const MOST_FDS: usize = 32;
/// The maximum number of regions in one table.
pub const TABLE_REGIONS: usize = 8;

const VERSION: u32 = 1;
const VERSION_BITS: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// The flag in a queue number that says that no descriptor is sent.
const NO_FD: u64 = 1 << 8;
/// The bytes that precede the configuration in its messages.
const CONFIG_HEAD: usize = 12;

/// The head of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The number of the kind of message.
    pub request: u32,
    /// Whether the sender waits for an acknowledgement.
    pub needs_reply: bool,
    /// The length of the payload in bytes, at most [`MOST_PAYLOAD`].
    pub size: usize,
}

/// The reason why bytes are not a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    /// The message has another version of the protocol.
    #[error("version {0} of the protocol; accepted: 1")]
    Version(u32),
    /// An answer in place of a request.
    #[error("an answer to message {0}, which was not sent")]
    Reply(u32),
    /// The payload is too long.
    #[error("message {request} of {size} bytes; accepted: up to {MOST_PAYLOAD}")]
    Long {
        /// The number of the kind of message.
        request: u32,
        /// The length of the payload in bytes.
        size: u32,
    },
    /// The payload is too short.
    #[error("message {request} of {size} bytes is too short")]
    Short {
        /// The number of the kind of message.
        request: u32,
        /// The length of the payload in bytes.
        size: usize,
    },
    /// A number is out of range.
    #[error("message {0} has an impossible number")]
    Number(u32),
    /// This back end does not support the message.
    #[error("message {0} is not supported")]
    Unknown(u32),
}

impl Header {
    /// Parses a header.
    ///
    /// # Errors
    /// If the version or the length is wrong, or the message is an answer.
    pub fn parse(bytes: [u8; HEADER]) -> Result<Self, MessageError> {
        let mut fields = Fields::new(0, &bytes);
        let (request, flags, size) = (fields.u32()?, fields.u32()?, fields.u32()?);
        if flags & VERSION_BITS != VERSION {
            return Err(MessageError::Version(flags & VERSION_BITS));
        }
        if flags & REPLY != 0 {
            return Err(MessageError::Reply(request));
        }
        if size as usize > MOST_PAYLOAD {
            return Err(MessageError::Long { request, size });
        }
        Ok(Self { request, needs_reply: flags & NEED_REPLY != 0, size: size as usize })
    }
}

/// The addresses of a ring, in the front end's address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingAddress {
    /// The descriptor table.
    pub desc: u64,
    /// The used ring, written by the back end.
    pub used: u64,
    /// The available ring, written by the driver.
    pub avail: u64,
}

/// The layout of the record of requests in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InflightInfo {
    /// The length in bytes.
    pub size: u64,
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The number of queues.
    pub queues: u16,
    /// The number of descriptors of each queue.
    pub queue_size: u16,
}

/// A message of the front end.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are those of the protocol")]
pub enum Message {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemTable(Vec<RegionInfo>),
    SetVringNum { queue: usize, num: u32 },
    SetVringAddr { queue: usize, address: RingAddress },
    SetVringBase { queue: usize, base: u32 },
    GetVringBase { queue: usize },
    SetVringKick { queue: usize, has_fd: bool },
    SetVringCall { queue: usize, has_fd: bool },
    SetVringErr { queue: usize, has_fd: bool },
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetVringEnable { queue: usize, enable: bool },
    SetBackendReqFd,
    GetConfig { offset: u32, size: u32, flags: u32 },
    SetConfig { offset: u32, bytes: Vec<u8> },
    GetInflightFd(InflightInfo),
    SetInflightFd(InflightInfo),
    ResetDevice,
    GetMaxMemSlots,
    AddMemReg(RegionInfo),
    RemMemReg(RegionInfo),
}

impl Message {
    /// Parses the payload of message number `request`.
    ///
    /// # Errors
    /// If the kind is unknown, the payload is too short, or a number is impossible.
    pub fn parse(request: u32, payload: &[u8]) -> Result<Self, MessageError> {
        let mut fields = Fields::new(request, payload);
        Ok(match request {
            1 => Self::GetFeatures,
            2 => Self::SetFeatures(fields.u64()?),
            3 => Self::SetOwner,
            4 => Self::ResetOwner,
            5 => Self::SetMemTable(table(&mut fields)?),
            8 => Self::SetVringNum { queue: fields.queue()?, num: fields.u32()? },
            9 => {
                let (queue, _flags) = (fields.queue()?, fields.u32()?);
                let (desc, used, avail) = (fields.u64()?, fields.u64()?, fields.u64()?);
                Self::SetVringAddr { queue, address: RingAddress { desc, used, avail } }
            }
            10 => Self::SetVringBase { queue: fields.queue()?, base: fields.u32()? },
            11 => Self::GetVringBase { queue: fields.queue()? },
            12..=14 => {
                let number = fields.u64()?;
                let (queue, has_fd) = ((number & 0xff) as usize, number & NO_FD == 0);
                match request {
                    12 => Self::SetVringKick { queue, has_fd },
                    13 => Self::SetVringCall { queue, has_fd },
                    _ => Self::SetVringErr { queue, has_fd },
                }
            }
            15 => Self::GetProtocolFeatures,
            16 => Self::SetProtocolFeatures(fields.u64()?),
            17 => Self::GetQueueNum,
            18 => Self::SetVringEnable { queue: fields.queue()?, enable: fields.u32()? != 0 },
            21 => Self::SetBackendReqFd,
            24 => {
                Self::GetConfig { offset: fields.u32()?, size: fields.u32()?, flags: fields.u32()? }
            }
            25 => {
                let (offset, size, _flags) = (fields.u32()?, fields.u32()?, fields.u32()?);
                Self::SetConfig { offset, bytes: fields.bytes(size as usize)?.to_vec() }
            }
            31 => Self::GetInflightFd(inflight(&mut fields)?),
            32 => Self::SetInflightFd(inflight(&mut fields)?),
            34 => Self::ResetDevice,
            36 => Self::GetMaxMemSlots,
            37 | 38 => {
                let _padding = fields.u64()?;
                let region = region(&mut fields)?;
                if request == 37 { Self::AddMemReg(region) } else { Self::RemMemReg(region) }
            }
            _ => return Err(MessageError::Unknown(request)),
        })
    }
}

fn region(fields: &mut Fields<'_>) -> Result<RegionInfo, MessageError> {
    let (guest, size, user) = (fields.u64()?, fields.u64()?, fields.u64()?);
    Ok(RegionInfo { guest, size, user, offset: fields.u64()? })
}

fn table(fields: &mut Fields<'_>) -> Result<Vec<RegionInfo>, MessageError> {
    let (count, _padding) = (fields.u32()? as usize, fields.u32()?);
    if count > TABLE_REGIONS {
        return Err(MessageError::Number(fields.request));
    }
    (0..count).map(|_| region(fields)).collect()
}

fn inflight(fields: &mut Fields<'_>) -> Result<InflightInfo, MessageError> {
    let (size, offset) = (fields.u64()?, fields.u64()?);
    Ok(InflightInfo { size, offset, queues: fields.u16()?, queue_size: fields.u16()? })
}

/// Reads the numbers of a payload one after the other.
struct Fields<'a> {
    request: u32,
    bytes: &'a [u8],
    size: usize,
}

impl<'a> Fields<'a> {
    fn new(request: u32, bytes: &'a [u8]) -> Self {
        Self { request, bytes, size: bytes.len() }
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8], MessageError> {
        let short = MessageError::Short { request: self.request, size: self.size };
        let (bytes, rest) = self.bytes.split_at_checked(count).ok_or(short)?;
        self.bytes = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        Ok(self.bytes(N)?.try_into().expect("as many bytes as asked for"))
    }

    fn u16(&mut self) -> Result<u16, MessageError> {
        Ok(u16::from_ne_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, MessageError> {
        Ok(u32::from_ne_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, MessageError> {
        Ok(u64::from_ne_bytes(self.array()?))
    }

    fn queue(&mut self) -> Result<usize, MessageError> {
        Ok(self.u32()? as usize)
    }
}

/// Encodes an answer to message number `request`.
#[must_use]
pub fn reply(request: u32, payload: &[u8]) -> Vec<u8> {
    message(request, REPLY, payload)
}

/// Encodes the message that tells the front end of a change of size.
#[must_use]
pub fn config_changed() -> Vec<u8> {
    message(2, 0, &[])
}

/// Encodes an answer with one number.
#[must_use]
pub fn reply_number(request: u32, number: u64) -> Vec<u8> {
    reply(request, &number.to_ne_bytes())
}

/// Encodes the answer to [`Message::GetVringBase`].
#[must_use]
pub fn reply_base(queue: usize, base: u16) -> Vec<u8> {
    let numbers = [queue as u32, u32::from(base)].map(u32::to_ne_bytes);
    reply(11, numbers.as_flattened())
}

/// Encodes the answer to [`Message::GetConfig`]; empty `bytes` report failure.
#[must_use]
pub fn reply_config(offset: u32, flags: u32, bytes: &[u8]) -> Vec<u8> {
    if bytes.is_empty() {
        return reply(24, &[]);
    }
    let head = [offset, bytes.len() as u32, flags].map(u32::to_ne_bytes);
    reply(24, &[head.as_flattened(), bytes].concat())
}

/// Encodes the answer to [`Message::GetInflightFd`].
#[must_use]
pub fn reply_inflight(info: InflightInfo) -> Vec<u8> {
    let mut payload = Vec::with_capacity(24);
    payload.extend(info.size.to_ne_bytes());
    payload.extend(info.offset.to_ne_bytes());
    payload.extend(info.queues.to_ne_bytes());
    payload.extend(info.queue_size.to_ne_bytes());
    // The C structure has four more bytes of padding.
    payload.extend([0; 4]);
    reply(31, &payload)
}

fn message(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let head = [request, VERSION | flags, payload.len() as u32].map(u32::to_ne_bytes);
    let mut bytes = head.as_flattened().to_vec();
    bytes.extend(payload);
    bytes
}

/// The maximum length of the configuration in one message, in bytes.
pub const MOST_CONFIG: usize = MOST_PAYLOAD - CONFIG_HEAD;

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
    use proptest::prelude::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn head(request: u32, flags: u32, size: u32) -> [u8; HEADER] {
        let numbers = [request, flags, size].map(u32::to_ne_bytes);
        numbers.as_flattened().try_into().expect("three numbers")
    }

    #[test]
    fn a_header_is_checked() {
        let good = Header { request: 5, needs_reply: true, size: 72 };
        assert_eq!(Header::parse(head(5, 9, 72)), Ok(good));
        assert_eq!(Header::parse(head(5, 2, 0)), Err(MessageError::Version(2)));
        assert_eq!(Header::parse(head(5, 5, 0)), Err(MessageError::Reply(5)));
        let long = MessageError::Long { request: 5, size: 4097 };
        assert_eq!(Header::parse(head(5, 1, 4097)), Err(long));
    }

    /// User-mode Linux sends 72 bytes for one region.
    #[test]
    fn a_table_may_have_bytes_behind_its_regions() {
        let mut payload = [1_u32, 0].map(u32::to_ne_bytes).as_flattened().to_vec();
        payload.extend([1_u64, 2, 3, 4].map(u64::to_ne_bytes).as_flattened());
        let region = RegionInfo { guest: 1, size: 2, user: 3, offset: 4 };
        let table = Ok(Message::SetMemTable(vec![region]));
        assert_eq!(Message::parse(5, &payload), table);
        payload.resize(72, 0);
        assert_eq!(Message::parse(5, &payload), table);
        payload.truncate(39);
        assert_eq!(Message::parse(5, &payload), Err(MessageError::Short { request: 5, size: 39 }));
        payload[0] = 9;
        assert_eq!(Message::parse(5, &payload), Err(MessageError::Number(5)));
    }

    #[test]
    fn a_queue_says_whether_it_has_a_descriptor() {
        let kick = |number: u64| Message::parse(12, &number.to_ne_bytes());
        assert_eq!(kick(3), Ok(Message::SetVringKick { queue: 3, has_fd: true }));
        assert_eq!(kick(0x103), Ok(Message::SetVringKick { queue: 3, has_fd: false }));
    }

    proptest! {
        /// For every message number, any bytes give a message or an error.
        #[test]
        fn no_bytes_are_a_panic(request in 0_u32..50, payload in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Message::parse(request, &payload);
        }
    }

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
