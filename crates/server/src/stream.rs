//! A client's connection, over any kind of socket, with or without TLS, which never blocks, and its [`Output`]: the
//! replies to be sent, gathered into as few writes as possible.

use crate::allow::Identity;
use crate::clients::Peer;
use crate::tls::{Session, Tls};
use blkmq::AlignedBuf;
use blkmq_nbd::Header;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::net::{Shutdown, shutdown, sockopt};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The kernel's buffer for a client that takes its replies, over a local socket, in bytes. The default of 208 KiB holds
/// less than one read of the size that copying clients use.
const LOCAL_BUFFER: usize = 2 << 20;

/// The idle time after which a TCP connection is probed, followed by the interval and the number of probes: two and a
/// half minutes in total.
const KEEP_IDLE: Duration = Duration::from_secs(60);
const KEEP_BETWEEN: Duration = Duration::from_secs(15);
const KEEP_TRIES: u32 = 6;
/// The time in milliseconds for which bytes may stay unacknowledged; keepalive does not apply to them.
const UNANSWERED: u32 = 150_000;

/// The number of reads of 16 KiB per turn on a connection whose input is discarded.
const DROPPED: u32 = 16;

/// A connection. Dropping it closes TLS, if the socket accepts the last bytes immediately.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    tls: Option<Box<Session>>,
    is_wide: bool,
}

#[derive(Debug)]
enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl From<UnixStream> for Stream {
    fn from(socket: UnixStream) -> Self {
        Self { socket: Socket::Unix(socket), tls: None, is_wide: false }
    }
}

impl From<TcpStream> for Stream {
    fn from(socket: TcpStream) -> Self {
        Self { socket: Socket::Tcp(socket), tls: None, is_wide: false }
    }
}

impl Stream {
    /// Configures the socket for a worker: non-blocking, without send delay, and with an error if the peer's machine
    /// fails.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        match &self.socket {
            Socket::Unix(socket) => socket.set_nonblocking(true),
            Socket::Tcp(socket) => {
                socket.set_nodelay(true)?;
                // Otherwise a client whose machine has failed would keep its place for ever.
                sockopt::set_socket_keepalive(socket, true)?;
                sockopt::set_tcp_keepidle(socket, KEEP_IDLE)?;
                sockopt::set_tcp_keepintvl(socket, KEEP_BETWEEN)?;
                sockopt::set_tcp_keepcnt(socket, KEEP_TRIES)?;
                sockopt::set_tcp_user_timeout(socket, UNANSWERED)?;
                socket.set_nonblocking(true)
            }
        }
    }

    /// Enlarges the send buffer, because the client has taken the replies that filled it; a client that takes none
    /// costs few copies. Over TCP the kernel does this automatically.
    pub(crate) fn widen(&mut self) {
        if let Socket::Unix(socket) = &self.socket
            && !self.is_wide
        {
            self.is_wide = true;
            // A smaller buffer only costs throughput.
            let _ = sockopt::set_socket_send_buffer_size(socket, LOCAL_BUFFER);
        }
    }

    /// The peer if the system knows it.
    pub(crate) fn peer(&self) -> Option<Peer> {
        match &self.socket {
            Socket::Unix(socket) => local_peer(socket),
            Socket::Tcp(socket) => Some(Peer::Address(socket.peer_addr().ok()?.ip())),
        }
    }

    /// Everything known about the client so far, including its certificate once TLS has begun.
    pub(crate) fn identity(&self) -> Identity {
        let mut identity = match &self.socket {
            Socket::Unix(socket) => local_identity(socket),
            Socket::Tcp(socket) => socket
                .peer_addr()
                .map_or_else(|_| Identity::default(), |at| Identity::of_address(at.ip())),
        };
        if let Some(names) = self.tls.as_ref().and_then(|tls| tls.names()) {
            identity.certify(names);
        }
        identity
    }

    /// Encrypts all further bytes with TLS.
    ///
    /// # Errors
    /// If the system cannot provide random numbers.
    pub(crate) fn start_tls(&mut self, tls: &Tls) -> io::Result<()> {
        self.tls = Some(Box::new(tls.session()?));
        Ok(())
    }

    /// Returns whether the stream is inside TLS.
    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns whether TLS has decrypted bytes, for which the socket has no event.
    pub(crate) fn has_more(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_more)
    }

    /// Returns whether bytes wait in TLS for the socket.
    pub(crate) fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Returns the number of encrypted bytes that the socket has accepted; 0 without TLS.
    pub(crate) fn sent_by_tls(&self) -> u64 {
        self.tls.as_ref().map_or(0, |tls| tls.sent)
    }

    /// Reads into the buffers in order. Returns 0 at the end of the stream.
    pub(crate) fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => tls.read(&mut self.socket, into),
            None => self.socket.read_vectored(into),
        }
    }

    pub(crate) fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => tls.write(&mut self.socket, from),
            None => self.socket.write_vectored(from),
        }
    }

    /// Returns whether closing the socket with unread input would discard replies that the client has not read. A local
    /// socket has delivered them already.
    pub(crate) fn is_reset_when_closed(&self) -> bool {
        matches!(self.socket, Socket::Tcp(_))
    }

    /// Shuts down the writing side.
    ///
    /// # Errors
    /// If the connection has failed.
    pub(crate) fn close_half(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            tls.close(&mut self.socket);
        }
        Ok(shutdown(&*self, Shutdown::Write)?)
    }

    /// Reads and discards the input that has arrived, as much as a worker reads in a turn.
    ///
    /// # Errors
    /// If the client has shut down its side, or the connection has failed.
    pub(crate) fn drop_input(&mut self) -> io::Result<()> {
        let mut chunk = [0; 16 << 10];
        for _ in 0..DROPPED {
            match self.socket.read(&mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends the bytes that TLS has buffered.
    ///
    /// # Errors
    /// `WouldBlock` if the socket is full.
    fn send_rest(&mut self) -> io::Result<()> {
        self.tls.as_mut().map_or(Ok(()), |tls| tls.send(&mut self.socket))
    }
}

/// The process that connected a local socket.
pub(crate) fn local_peer(socket: &UnixStream) -> Option<Peer> {
    Some(Peer::Process(getsockopt(socket, PeerCredentials).ok()?.pid()))
}

/// The client of a local socket, with the credentials that it had when it connected.
pub(crate) fn local_identity(socket: &UnixStream) -> Identity {
    let found = getsockopt(socket, PeerCredentials);
    found.map_or_else(|_| Identity::default(), |of| Identity::of_process(of.uid(), of.gid()))
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.close(&mut self.socket);
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Unix(socket) => socket.as_fd(),
            Socket::Tcp(socket) => socket.as_fd(),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.read(into),
            Self::Tcp(socket) => socket.read(into),
        }
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.read_vectored(into),
            Self::Tcp(socket) => socket.read_vectored(into),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.write(from),
            Self::Tcp(socket) => socket.write(from),
        }
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.write_vectored(from),
            Self::Tcp(socket) => socket.write_vectored(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The maximum number of pieces in a write. The kernel accepts up to 1024.
const GATHERED: usize = 128;

/// A part of the output.
#[derive(Debug)]
enum Piece {
    Header(Header),
    Bytes(Vec<u8>),
    Data(AlignedBuf),
}

impl Piece {
    fn bytes(&mut self) -> &[u8] {
        match self {
            Self::Header(header) => header,
            Self::Bytes(bytes) => bytes,
            Self::Data(data) => data.as_mut_slice(),
        }
    }
}

/// The result of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    /// Everything was passed to the kernel.
    All,
    /// The socket is full.
    Blocked,
    /// The socket may accept more, in another turn.
    Paused,
}

/// Bytes that wait for the socket, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pieces: VecDeque<Piece>,
    /// The number of bytes of the first piece that have been sent.
    sent: usize,
    /// Bytes that wait.
    waiting: usize,
}

impl Output {
    pub(crate) fn header(&mut self, header: Header) {
        self.push(Piece::Header(header));
    }

    pub(crate) fn bytes(&mut self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.push(Piece::Bytes(bytes));
        }
    }

    pub(crate) fn data(&mut self, data: AlignedBuf) {
        if !data.is_empty() {
            self.push(Piece::Data(data));
        }
    }

    fn push(&mut self, mut piece: Piece) {
        self.waiting += piece.bytes().len();
        self.pieces.push_back(piece);
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Writes until everything is sent, the socket is full, or `most` bytes are sent. Buffers are dropped once they are
    /// sent.
    ///
    /// # Errors
    /// If the connection has failed.
    pub(crate) fn send(&mut self, stream: &mut Stream, most: usize) -> io::Result<Sent> {
        let mut left = most;
        while !self.pieces.is_empty() {
            if left == 0 {
                return Ok(Sent::Paused);
            }
            let mut slices = [IoSlice::new(&[]); GATHERED];
            let (mut count, mut room) = (0, left);
            for (slice, piece) in slices.iter_mut().zip(&mut self.pieces) {
                let skip = if count == 0 { self.sent } else { 0 };
                let bytes = &piece.bytes()[skip..];
                let bytes = &bytes[..bytes.len().min(room)];
                room -= bytes.len();
                *slice = IoSlice::new(bytes);
                count += 1;
                if room == 0 {
                    break;
                }
            }
            match stream.write(&slices[..count]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    left -= sent;
                    self.advance(sent);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Sent::Blocked),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        match stream.send_rest() {
            Ok(()) => Ok(Sent::All),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Sent::Blocked),
            Err(error) => Err(error),
        }
    }

    fn advance(&mut self, sent: usize) {
        self.waiting -= sent;
        self.sent += sent;
        while let Some(first) = self.pieces.front_mut() {
            let len = first.bytes().len();
            if self.sent < len {
                break;
            }
            self.sent -= len;
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;

    /// Regression test: a client whose machine lost power as often as an address may have connections locked itself
    /// out.
    #[test]
    fn a_connection_over_tcp_ends_with_the_other_machine() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let at = listener.local_addr().expect("it is bound");
        let _client = TcpStream::connect(at).expect("it listens");
        let stream = Stream::from(listener.accept().expect("a client").0);
        stream.prepare().expect("a socket");
        assert!(sockopt::socket_keepalive(&stream).expect("a socket"));
        let idle = sockopt::tcp_keepidle(&stream).expect("a socket");
        let between = sockopt::tcp_keepintvl(&stream).expect("a socket");
        let tries = sockopt::tcp_keepcnt(&stream).expect("a socket");
        assert!(idle + between * tries <= Duration::from_secs(180));
        let unanswered = sockopt::tcp_user_timeout(&stream).expect("a socket");
        assert!((1..=180_000).contains(&unanswered));
    }

    #[test]
    fn bytes_arrive_in_order_however_full_the_socket_is() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        ours.set_nonblocking(true).expect("no blocking");
        let mut stream = Stream::from(ours);
        let mut output = Output::default();
        let mut expected = Vec::new();
        for n in 0..300_u32 {
            let data: Vec<u8> = n.to_be_bytes().repeat(1000);
            expected.extend_from_slice(&data);
            if n % 3 == 0 {
                output.bytes(data);
            } else {
                output.data(AlignedBuf::copy_of(&data));
            }
        }
        output.bytes(Vec::new());
        assert_eq!(output.waiting(), expected.len());
        let (mut got, mut blocked) = (Vec::new(), 0);
        while output.send(&mut stream, usize::MAX).expect("the other side is there")
            == Sent::Blocked
        {
            blocked += 1;
            let mut part = [0; 10_007];
            let len = theirs.read(&mut part).expect("bytes are there");
            got.extend_from_slice(&part[..len]);
        }
        drop(stream);
        theirs.read_to_end(&mut got).expect("the rest is there");
        assert!(got == expected && blocked > 0 && output.waiting() == 0);
    }

    /// Regression test: a write sent as much as the socket accepted, two megabytes, while other clients waited.
    #[test]
    fn a_turn_sends_so_many_bytes_and_no_more() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        let mut stream = Stream::from(ours);
        let mut output = Output::default();
        (0..3).for_each(|n| output.bytes(vec![n; 1000]));
        let mut send =
            |most| (output.send(&mut stream, most).expect("it is there"), output.waiting());
        assert_eq!(send(1500), (Sent::Paused, 1500));
        assert_eq!(send(500), (Sent::Paused, 1000));
        assert_eq!(send(1000), (Sent::All, 0));
        drop(stream);
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).expect("it is there");
        assert!(got.chunks(1000).zip(0..).all(|(part, n)| part == [n; 1000]) && got.len() == 3000);
    }
}
