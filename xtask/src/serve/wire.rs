//! The subset of NBD that a client needs to write, flush and read: EXPORT_NAME and simple replies.
//!
//! No option is negotiated and no library is involved, so a client ends immediately, with an error, when its server is
//! killed.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Sent in front of an option and of a request; see `docs/spec/nbd.md`, section 2.
const OPTION: u64 = 0x4948_4156_454F_5054;
const REQUEST: u32 = 0x2560_9513;

/// A connection to the default export.
pub(super) struct Client(UnixStream);

/// The commands that are used, with their flags in the upper half.
#[derive(Clone, Copy)]
pub(super) enum Command {
    Read = 0,
    Write = 1,
    Flush = 3,
    Trim = 4,
    /// WRITE_ZEROES with the flag NO_HOLE.
    WriteZeroes = 2 << 16 | 6,
}

impl Client {
    /// # Errors
    /// If no server answers, or it has no default export.
    pub(super) fn connect(socket: &Path) -> io::Result<Self> {
        Self::begin(UnixStream::connect(socket)?)
    }

    /// The client on a new connection.
    ///
    /// # Errors
    /// If the server has no default export, or is gone.
    pub(super) fn begin(stream: UnixStream) -> io::Result<Self> {
        let mut client = Self(stream);
        client.take(18)?;
        // Fixed newstyle, no zeroes.
        client.send(&3_u32.to_be_bytes())?;
        // EXPORT_NAME with an empty name.
        client.send(&option(1, &[]))?;
        client.take(10)?;
        Ok(client)
    }

    /// The client of a connection that has begun.
    pub(super) fn resume(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// The connection, which stays open until it is dropped.
    pub(super) fn into_stream(self) -> UnixStream {
        self.0
    }

    /// Sends bytes unchanged.
    ///
    /// # Errors
    /// If the server is gone, or the socket is full for longer than its timeout.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    /// Sends a write and waits for no reply.
    ///
    /// # Errors
    /// If the server is gone.
    pub(super) fn begin_write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.request(Command::Write, offset, data.len())?;
        self.0.write_all(data)
    }

    /// Sends a flush and waits for no reply.
    ///
    /// # Errors
    /// If the server is gone.
    pub(super) fn begin_flush(&mut self) -> io::Result<()> {
        self.request(Command::Flush, 0, 0)
    }

    /// Waits for one reply without content.
    ///
    /// # Errors
    /// If the server is gone or reports an error.
    pub(super) fn end(&mut self) -> io::Result<()> {
        let reply = self.take(16)?;
        match reply[4..8] {
            [0, 0, 0, 0] => Ok(()),
            [a, b, c, d] => Err(io::Error::from_raw_os_error(i32::from_be_bytes([a, b, c, d]))),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Reads.
    ///
    /// # Errors
    /// If the server is gone or reports an error.
    pub(super) fn read(&mut self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.request(Command::Read, offset, len)?;
        self.end()?;
        self.take(len)
    }

    fn request(&mut self, command: Command, offset: u64, len: usize) -> io::Result<()> {
        let len = u32::try_from(len).map_err(io::Error::other)?;
        self.send(&request(command, offset, len))
    }

    fn take(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// An option and its data.
pub(super) fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    [&OPTION.to_be_bytes()[..], &number.to_be_bytes(), &len.to_be_bytes(), data].concat()
}

/// The header of a request.
pub(super) fn request(command: Command, offset: u64, len: u32) -> Vec<u8> {
    let (kind, cookie) = ((command as u32).to_be_bytes(), [0; 8]);
    [&REQUEST.to_be_bytes()[..], &kind, &cookie, &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}
