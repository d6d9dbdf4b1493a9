//! [`Target`]: the destination of connections, the terms they must agree on, and the record of those that were lost;
//! sockets that are made without waiting, and a blocking connection.

use super::error::OpenError;
use super::greeting::{Greeted, Greeting, Welcome};
use super::stream::Stream;
#[cfg(feature = "tls")]
use super::tls::Tls;
use super::uri::{Server, Uri};
use blkmq_nbd::client::{Agreed, Details};
use blkmq_nbd::{BASE_ALLOCATION, HeaderStyle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

/// Seconds for which [`Target::connect`] waits for a server that does nothing.
const PATIENCE: i64 = 10;

/// How often a connection that the server closes in the handshake is tried again, and the nanoseconds in between.
const TRIES: u32 = 20;
const PAUSE: i64 = 50_000_000;

/// The destination of connections, and the terms they must agree on.
#[derive(Debug)]
pub(crate) struct Target {
    addresses: Vec<Address>,
    export: String,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    /// The facts that the server sent when the device was opened.
    pub(crate) agreed: Agreed,
    pub(crate) outages: Log,
    /// The connection that the agreement was made on, until a queue takes it.
    first: Mutex<Option<Welcome>>,
}

impl Target {
    /// The target of `uri`, with the facts that its server sends. Blocks as [`connect`](Self::connect) does.
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

    /// A connection for a queue: the one that the agreement was made on, if no queue has it and the server has not ended
    /// it, or a new one as by [`connect`](Self::connect). A server that takes one client sees no other.
    pub(crate) fn connect_queue(&self) -> Result<Welcome, OpenError> {
        // It is taken in one step.
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        match first.filter(|welcome| welcome.stream.is_alive()) {
            Some(welcome) => Ok(welcome),
            None => self.connect(&[]),
        }
    }

    /// The address for this try: all of them in turn.
    pub(crate) fn address(&self, attempt: u32) -> &Address {
        &self.addresses[attempt as usize % self.addresses.len()]
    }

    /// A handshake on a socket that has arrived, which asks for these contexts.
    pub(crate) fn greeting(&self, stream: Stream, contexts: &[&str]) -> Box<Greeting> {
        Box::new(Greeting::new(
            stream,
            &self.export,
            contexts,
            #[cfg(feature = "tls")]
            self.tls.as_ref(),
        ))
    }

    /// Connects and agrees on the export and on these contexts, and blocks until then. The first address that answers
    /// counts.
    pub(crate) fn connect(&self, contexts: &[&str]) -> Result<Welcome, OpenError> {
        self.first(|address| self.connect_in_turn(address, contexts))
    }

    /// Like [`connect`](Self::connect), without a second try, and with so many seconds for each answer of the server.
    pub(crate) fn connect_once(
        &self,
        contexts: &[&str],
        patience: i64,
    ) -> Result<Welcome, OpenError> {
        self.first(|address| self.connect_to(address, contexts, patience))
    }

    /// The answer of the first address that has one.
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

    /// Tries again for a while if the server closes the connection: a server that takes one client, or some, may not have
    /// noticed yet that the last one is gone.
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
            wait(greeting.stream().as_fd(), PollFlags::IN | room, patience)?;
        }
    }
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

/// Waits for events of a socket, for so many seconds.
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

/// Bytes that the kernel keeps in each direction for a local socket. The default of 208 KiB holds less than one merged
/// request.
const LOCAL_BUFFER: usize = 2 << 20;

/// An address that sockets connect to.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    Unix(SocketAddrUnix),
    Tcp(SocketAddr),
}

impl Address {
    /// The addresses of a server. A name of a host is looked up once, here, and this call may block for that.
    pub(crate) fn all(server: &Server) -> io::Result<Vec<Self>> {
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

    /// A socket on its way to this address. Once it is writable, [`outcome`] tells whether it has arrived.
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
                // A smaller buffer costs throughput and no correctness.
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

/// Whether a socket that became writable has arrived.
pub(crate) fn outcome(socket: &OwnedFd) -> io::Result<()> {
    sockopt::socket_error(socket)?.map_err(Into::into)
}

/// The connections that were lost.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outages {
    /// Connections lost.
    pub lost: u64,
    /// Connections made anew.
    pub restored: u64,
    /// The reason of the last loss, or of the last try that failed.
    pub last: Option<String>,
    /// Requests that failed because their connection was lost at each of them, again and again.
    pub given_up: u64,
    /// The last one of these: its operation, length and place.
    pub last_given_up: Option<String>,
}

/// [`Outages`], written by all connections. The lock is touched only when a connection is lost or made.
#[derive(Debug, Default)]
pub(crate) struct Log(Mutex<Outages>);

impl Log {
    /// A connection is lost, or a try to make one has failed.
    pub(crate) fn note(&self, is_loss: bool, why: &dyn fmt::Display) {
        let mut outages = self.lock();
        outages.lost += u64::from(is_loss);
        outages.last = Some(why.to_string());
    }

    /// A request has failed because its connection was lost again and again.
    pub(crate) fn give_up(&self, request: String) {
        let mut outages = self.lock();
        outages.given_up += 1;
        outages.last_given_up = Some(request);
    }

    /// A lost connection is made anew.
    pub(crate) fn end(&self) {
        self.lock().restored += 1;
    }

    /// Connections made anew.
    pub(crate) fn restored(&self) -> u64 {
        self.lock().restored
    }

    pub(crate) fn read(&self) -> Outages {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Outages> {
        // Counts are right after each step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
