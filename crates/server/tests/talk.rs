//! A client that can send arbitrary bytes, without the client side of the codec.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The magic of an option.
pub const OPTION: u64 = 0x4948_4156_454F_5054;
/// The magic of a compact request.
const REQUEST: u32 = 0x2560_9513;

pub const EXPORT_NAME: u32 = 1;
pub const ABORT: u32 = 2;
pub const LIST: u32 = 3;
pub const STARTTLS: u32 = 5;
pub const INFO: u32 = 6;
pub const GO: u32 = 7;
pub const STRUCTURED_REPLY: u32 = 8;
pub const LIST_META_CONTEXT: u32 = 9;
pub const SET_META_CONTEXT: u32 = 10;
/// An option that does not exist.
pub const UNKNOWN: u32 = 99;

/// Types of replies to options; errors are 2^31 plus a number.
pub const ACK: u32 = 1;
pub const SERVER: u32 = 2;
pub const UNSUPPORTED: u32 = (1 << 31) + 1;
pub const POLICY: u32 = (1 << 31) + 2;
pub const TOO_BIG: u32 = (1 << 31) + 9;

pub struct Talk<S = UnixStream>(pub S);

/// The header of a request.
pub struct Header {
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

impl Talk {
    /// Connects, up to the flags of both sides.
    pub fn begin(socket: &Path) -> Self {
        let mut talk = Self(UnixStream::connect(socket).expect("the server listens"));
        talk.take(18);
        talk.send(&3_u32.to_be_bytes());
        talk
    }

    /// Connects to `export` with simple replies.
    pub fn transmission(socket: &Path, export: &str) -> Self {
        let mut talk = Self::begin(socket);
        talk.option(EXPORT_NAME, export.as_bytes());
        talk.take(10);
        talk
    }
}

impl<S: Read + Write> Talk<S> {
    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("the server reads");
    }

    pub fn option(&mut self, option: u32, data: &[u8]) {
        self.option_header(option, data.len() as u32);
        self.send(data);
    }

    /// Sends an option whose data does not follow.
    pub fn option_header(&mut self, option: u32, length: u32) {
        self.send(&OPTION.to_be_bytes());
        self.send(&option.to_be_bytes());
        self.send(&length.to_be_bytes());
    }

    /// The type of the next reply to an option.
    pub fn reply(&mut self) -> u32 {
        let header = self.take(20);
        self.take(number(&header[16..20]) as usize);
        number(&header[12..16]) as u32
    }

    pub fn request(&mut self, header: &Header) {
        self.send(&header.bytes());
    }

    /// The error and the cookie of the next simple reply.
    pub fn simple(&mut self) -> (u32, u64) {
        let header = self.take(16);
        (number(&header[4..8]) as u32, number(&header[8..]))
    }

    /// The next bytes.
    ///
    /// # Panics
    /// If the server closes the connection.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).expect("the server answers");
        bytes
    }

    /// Waits for the end of the connection. Returns whether the server closed it.
    pub fn is_closed(&mut self) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match self.0.read(&mut bytes) {
                Ok(0) | Err(_) => return true,
                Ok(_) => {}
            }
        }
    }
}

impl Header {
    pub fn bytes(&self) -> Vec<u8> {
        let Self { command, cookie, offset, length } = self;
        let mut bytes = REQUEST.to_be_bytes().to_vec();
        bytes.extend(0_u16.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
