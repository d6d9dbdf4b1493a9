//! [`Stream`]: a connected socket, with TLS or without, which never blocks.

use crate::socket::Socket;
#[cfg(feature = "tls")]
use crate::tls::Session;
use blkmq_nbd::client::Requests;
use blkmq_nbd::{Command, CommandFlags, Cookie, Header, HeaderStyle, Request, Span};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    #[cfg(feature = "tls")]
    tls: Option<Box<Session>>,
    /// DISC, once the handshake is over.
    farewell: Option<Header>,
    /// Whether the next byte is inside a request: there the server would take DISC for data.
    pub(crate) is_inside: bool,
}

impl Stream {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket: socket.into(),
            #[cfg(feature = "tls")]
            tls: None,
            farewell: None,
            is_inside: false,
        }
    }

    /// Notes that the transmission phase has begun with headers of this form: from now on the connection ends with
    /// DISC.
    pub(crate) fn ends_with(&mut self, style: HeaderStyle) {
        let request = Request {
            command: Ok(Command::Disconnect),
            flags: CommandFlags::NONE,
            cookie: Cookie(0),
            span: Span::default(),
        };
        self.farewell = Requests::new(style).header(&request);
    }

    /// Returns whether the server has not closed the connection, as far as can be known without reading.
    pub(crate) fn is_alive(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::io::retry_on_intr(|| recv(&self.socket, &mut [0; 1], flags)) {
            Ok((_, len)) => len > 0,
            Err(error) => error == Errno::AGAIN,
        }
    }

    /// Encrypts all further bytes with TLS.
    #[cfg(feature = "tls")]
    pub(crate) fn start_tls(&mut self, session: Session) {
        self.tls = Some(Box::new(session));
    }

    /// Reads into the buffers, the first one first.
    ///
    /// # Errors
    /// `WouldBlock` if no bytes have arrived, and `UnexpectedEof` at the end: a server does not close a connection
    /// unasked.
    pub(crate) fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        #[cfg(feature = "tls")]
        let read = match &mut self.tls {
            Some(tls) => tls.read(&mut self.socket, into)?,
            None => self.socket.read_vectored(into)?,
        };
        #[cfg(not(feature = "tls"))]
        let read = self.socket.read_vectored(into)?;
        if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(read) }
    }

    /// Sends bytes to the server.
    ///
    /// # Errors
    /// `WouldBlock` if the socket has no room.
    pub(crate) fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            return tls.write(&mut self.socket, from);
        }
        self.socket.write_vectored(from)
    }

    /// Sends the bytes that TLS has buffered. Returns false if some are left.
    pub(crate) fn send_rest(&mut self) -> io::Result<bool> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &mut self.tls {
            return tls.send(&mut self.socket);
        }
        Ok(true)
    }

    /// Returns whether TLS has decrypted bytes, for which the socket is not readable.
    pub(crate) fn has_more(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.as_ref().is_some_and(|tls| tls.has_more());
        #[cfg(not(feature = "tls"))]
        false
    }
}

/// Sends DISC on a connection that ends between two requests, as the protocol demands.
impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(farewell) = self.farewell
            && !self.is_inside
        {
            // If the message is lost, the server notices the end of the connection.
            let _ = self.write(&[IoSlice::new(&farewell)]).and_then(|_| self.send_rest());
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
