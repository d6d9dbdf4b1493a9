//! [`Target`]: the address of a server, the terms that each connection must agree on, and a log of lost connections;
//! ways to connect, non-blocking and blocking; and the handshake on a connected socket, up to the agreement on the
//! export ([`Greeting`]).

use crate::options::{OpenError, Server, Uri};
use crate::stream::Stream;
#[cfg(feature = "tls")]
use crate::stream::tls::Tls;
use blkmq_nbd::client::{Agreed, Details, Goal, Handshake, Next, Plan};
use blkmq_nbd::{BASE_ALLOCATION, HeaderStyle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Seconds for which [`Target::connect`] waits for a silent server.
const PATIENCE: i64 = 10;

/// The number of retries, and the pause between them in nanoseconds, when the server closes the connection during the
/// handshake.
const TRIES: u32 = 20;
const PAUSE: i64 = 50_000_000;

/// The address of a server, and the terms that each connection must agree on.
#[derive(Debug)]
pub(crate) struct Target {
    addresses: Vec<Address>,
    export: String,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    /// The properties of the export when the device was opened.
    pub(crate) agreed: Agreed,
    pub(crate) outages: Log,
    /// The connection that opened the device, until a queue takes it.
    first: Mutex<Option<Welcome>>,
}

impl Target {
    /// Connects to `uri` and reads the properties of the export. Blocks like [`connect`](Self::connect).
    pub(crate) fn find(uri: &Uri) -> Result<Self, OpenError> {
        let mut target = Self {
            addresses: Address::all(&uri.server)?,
            export: uri.export.clone(),
            #[cfg(feature = "tls")]
            tls: if uri.tls { Some(Tls::load(uri)?) } else { None },
            agreed: Agreed {
                details: Details::default(),
                style: HeaderStyle::default(),
                contexts: Vec::new(),
            },
            outages: Log::default(),
            first: Mutex::default(),
        };
        let welcome = target.connect(&[BASE_ALLOCATION])?;
        target.agreed = welcome.agreed.clone();
        target.first = Mutex::new(Some(welcome));
        Ok(target)
    }

    /// A connection for a queue: the one that opened the device, unless another queue has taken it or the server has
    /// closed it, or else a new one made by [`connect`](Self::connect). So a server that accepts only one client sees
    /// only one.
    pub(crate) fn connect_queue(&self) -> Result<Welcome, OpenError> {
        // Taken in one step, so that no other queue gets it.
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        match first.filter(|welcome| welcome.stream.is_alive()) {
            Some(welcome) => Ok(welcome),
            None => self.connect(&[]),
        }
    }

    /// The address for this attempt, taking turns.
    pub(crate) fn address(&self, attempt: u32) -> &Address {
        &self.addresses[attempt as usize % self.addresses.len()]
    }

    /// Begins a handshake on a connected socket, requesting these contexts.
    pub(crate) fn greeting(&self, stream: Stream, contexts: &[&str]) -> Box<Greeting> {
        Box::new(Greeting::new(
            stream,
            &self.export,
            contexts,
            #[cfg(feature = "tls")]
            self.tls.as_ref(),
        ))
    }

    /// Connects, and blocks until the export and these contexts are agreed on. The first address that answers is used.
    pub(crate) fn connect(&self, contexts: &[&str]) -> Result<Welcome, OpenError> {
        self.first(|address| self.connect_in_turn(address, contexts))
    }

    /// Like [`connect`](Self::connect), without retries, waiting `seconds` for each answer of the server.
    pub(crate) fn connect_once(
        &self,
        contexts: &[&str],
        patience: i64,
    ) -> Result<Welcome, OpenError> {
        self.first(|address| self.connect_to(address, contexts, patience))
    }

    /// The result of the first address that answers.
    fn first(
        &self,
        connect: impl Fn(&Address) -> Result<Welcome, OpenError>,
    ) -> Result<Welcome, OpenError> {
        let mut last = OpenError::Silent;
        for address in &self.addresses {
            match connect(address) {
                Err(error @ (OpenError::Server(_) | OpenError::Silent)) => last = error,
                answer => return answer,
            }
        }
        Err(last)
    }

    /// Connects, with retries while the server closes the connection: a server with a limit of clients may not have
    /// noticed yet that the previous one is gone.
    fn connect_in_turn(&self, address: &Address, contexts: &[&str]) -> Result<Welcome, OpenError> {
        let mut tries = 0;
        loop {
            match self.connect_to(address, contexts, PATIENCE) {
                Err(OpenError::Server(error)) if is_closed(&error) && tries < TRIES => tries += 1,
                answer => return answer,
            }
            let pause = Timespec { tv_sec: 0, tv_nsec: PAUSE };
            let _ = poll(&mut [], Some(&pause));
        }
    }

    fn connect_to(
        &self,
        address: &Address,
        contexts: &[&str],
        patience: i64,
    ) -> Result<Welcome, OpenError> {
        let socket = address.connect()?;
        wait(socket.as_fd(), PollFlags::OUT, patience)?;
        outcome(&socket)?;
        let mut greeting = self.greeting(Stream::new(socket), contexts);
        loop {
            match greeting.step()? {
                Greeted::Agreed(welcome) => return Ok(welcome),
                Greeted::Waiting(waiting) => greeting = waiting,
            }
            let room = if greeting.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
            wait(greeting.stream.as_fd(), PollFlags::IN | room, patience)?;
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

/// Waits for events of a socket, for at most `seconds`.
pub(crate) fn wait(
    socket: BorrowedFd<'_>,
    events: PollFlags,
    patience: i64,
) -> Result<(), OpenError> {
    let mut polled = [PollFd::new(&socket, events)];
    let patience = Timespec { tv_sec: patience, tv_nsec: 0 };
    let ready = rustix::io::retry_on_intr(|| poll(&mut polled, Some(&patience)));
    if ready.map_err(io::Error::from)? == 0 { Err(OpenError::Silent) } else { Ok(()) }
}

/// The buffer size of a local socket in bytes, in each direction. The default of 208 KiB holds less than one merged
/// request.
const LOCAL_BUFFER: usize = 2 << 20;

#[derive(Clone, Debug)]
pub(crate) enum Address {
    Unix(SocketAddrUnix),
    Tcp(SocketAddr),
}

impl Address {
    /// The addresses of a server. This looks up the host name, once, and may block.
    fn all(server: &Server) -> io::Result<Vec<Self>> {
        match server {
            Server::Unix(path) => Ok(vec![Self::Unix(SocketAddrUnix::new(path)?)]),
            Server::Tcp(host, port) => {
                let all = Vec::from_iter((host.as_str(), *port).to_socket_addrs()?.map(Self::Tcp));
                if all.is_empty() {
                    return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
                }
                Ok(all)
            }
        }
    }

    /// Starts connecting a socket. Once it is writable, [`outcome`] returns the result.
    pub(crate) fn connect(&self) -> io::Result<OwnedFd> {
        let family = match self {
            Self::Unix(_) => AddressFamily::UNIX,
            Self::Tcp(SocketAddr::V4(_)) => AddressFamily::INET,
            Self::Tcp(SocketAddr::V6(_)) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        let connected = match self {
            Self::Unix(address) => {
                // A smaller buffer only costs throughput.
                let _ = sockopt::set_socket_send_buffer_size(&socket, LOCAL_BUFFER);
                let _ = sockopt::set_socket_recv_buffer_size(&socket, LOCAL_BUFFER);
                connect(&socket, address)
            }
            Self::Tcp(address) => {
                sockopt::set_tcp_nodelay(&socket, true)?;
                sockopt::set_socket_keepalive(&socket, true)?;
                connect(&socket, address)
            }
        };
        match connected {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the error of a socket that has become writable but is not connected.
pub(crate) fn outcome(socket: &OwnedFd) -> io::Result<()> {
    sockopt::socket_error(socket)?.map_err(Into::into)
}

/// Statistics of lost connections.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outages {
    /// The number of connections lost.
    pub lost: u64,
    /// The number of connections re-established.
    pub restored: u64,
    /// The reason of the last loss or of the last failed attempt.
    pub last: Option<String>,
    /// The number of requests that failed because the connection was lost at each attempt to send them.
    pub given_up: u64,
    /// The operation, length and offset of the last such request.
    pub last_given_up: Option<String>,
}

/// [`Outages`], written by all connections. The lock is taken only when a connection is lost or made.
#[derive(Debug, Default)]
pub(crate) struct Log(Mutex<Outages>);

impl Log {
    /// Notes the loss of a connection, or a failed attempt to make one.
    pub(crate) fn note(&self, is_loss: bool, why: &dyn fmt::Display) {
        let mut outages = self.lock();
        outages.lost += u64::from(is_loss);
        outages.last = Some(why.to_string());
    }

    /// Notes a request that failed because its connection was lost repeatedly.
    pub(crate) fn give_up(&self, request: String) {
        let mut outages = self.lock();
        outages.given_up += 1;
        outages.last_given_up = Some(request);
    }

    /// Notes that a lost connection is re-established.
    pub(crate) fn end(&self) {
        self.lock().restored += 1;
    }

    /// Returns the number of connections re-established.
    pub(crate) fn restored(&self) -> u64 {
        self.lock().restored
    }

    pub(crate) fn read(&self) -> Outages {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Outages> {
        // The counts are consistent after each step, so poisoning is ignored.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The maximum length of a reply to an option in bytes; see [`Handshake::feed`].
const BUFFER: usize = (64 << 10) + 64;

/// A handshake in progress.
#[derive(Debug)]
pub(crate) struct Greeting {
    pub(crate) stream: Stream,
    handshake: Handshake,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    /// Bytes from the server that are not consumed.
    input: Vec<u8>,
    /// Bytes for the server, of which the first `sent` have been sent.
    output: Vec<u8>,
    sent: usize,
}

/// A connection that has agreed on an export.
#[derive(Debug)]
pub(crate) struct Welcome {
    pub(crate) stream: Stream,
    pub(crate) agreed: Agreed,
    /// Bytes of the transmission phase that have already arrived.
    pub(crate) early: Vec<u8>,
}

/// The state of a handshake after a step.
#[derive(Debug)]
pub(crate) enum Greeted {
    /// The handshake waits for bytes from the server, or for room in the socket.
    Waiting(Box<Greeting>),
    Agreed(Welcome),
}

impl Greeting {
    /// Begins a handshake that requests these contexts and the most capable form of headers, which can report holes
    /// without sending them.
    pub(crate) fn new(
        stream: Stream,
        export: &str,
        contexts: &[&str],
        #[cfg(feature = "tls")] tls: Option<&Tls>,
    ) -> Self {
        let contexts = contexts.iter().map(|&name| name.to_owned()).collect();
        let plan = Plan { contexts, ..Plan::new(Goal::Go(export.to_owned())) };
        #[cfg(feature = "tls")]
        let plan = match tls {
            Some(_) => Plan { tls: blkmq_nbd::client::Tls::Required, ..plan },
            None => plan,
        };
        Self {
            stream,
            handshake: Handshake::new(plan),
            #[cfg(feature = "tls")]
            tls: tls.cloned(),
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
        }
    }

    /// Returns whether bytes wait for room in the socket.
    pub(crate) fn wants_write(&self) -> bool {
        self.sent < self.output.len()
    }

    /// Continues as far as possible without waiting.
    ///
    /// # Errors
    /// If the connection is lost, or the handshake fails.
    pub(crate) fn step(mut self: Box<Self>) -> Result<Greeted, OpenError> {
        loop {
            let progress = self.handshake.feed(&self.input, &mut self.output);
            self.input.drain(..progress.consumed);
            match progress.next {
                Next::NeedMore => {}
                Next::Go(agreed) => {
                    let Self { mut stream, input, .. } = *self;
                    stream.ends_with(agreed.style);
                    return Ok(Greeted::Agreed(Welcome { stream, agreed, early: input }));
                }
                Next::Close(broken) => {
                    // The last message to a server that has refused. If the server has gone, the message is not needed.
                    let _ = self.send();
                    return Err(OpenError::Handshake(broken));
                }
                Next::StartTls => self.start_tls()?,
                Next::Listed(_) | Next::Described(_) => unreachable!("the goal is an export"),
            }
            if !self.send()? || !self.receive()? {
                return Ok(Greeted::Waiting(self));
            }
        }
    }

    #[cfg(feature = "tls")]
    fn start_tls(&mut self) -> io::Result<()> {
        let tls = self.tls.as_ref().expect("TLS is agreed on only if it was asked for");
        // The server has answered STARTTLS, so it has been sent.
        self.stream.start_tls(tls.session()?);
        self.output.clear();
        self.sent = 0;
        self.handshake.secured(&mut self.output);
        Ok(())
    }

    #[cfg(not(feature = "tls"))]
    fn start_tls(&mut self) -> io::Result<()> {
        unreachable!("TLS is agreed on only if it was asked for")
    }

    /// Sends the bytes for the server. Returns false if some are left.
    fn send(&mut self) -> io::Result<bool> {
        while self.wants_write() {
            match self.stream.write(&[IoSlice::new(&self.output[self.sent..])]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.sent = 0;
        self.stream.send_rest()?;
        Ok(true)
    }

    /// Receives bytes from the server. Returns false if none have arrived.
    fn receive(&mut self) -> io::Result<bool> {
        let here = self.input.len();
        self.input.resize(BUFFER.max(here + 1), 0);
        let read = self.stream.read(&mut [IoSliceMut::new(&mut self.input[here..])]);
        self.input.truncate(here + read.as_ref().copied().unwrap_or(0));
        match read {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}
