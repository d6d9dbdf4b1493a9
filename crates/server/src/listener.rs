//! Listening sockets: their addresses, and the permissions of those in the file system.

use crate::stream::Stream;
use blkmq_nbd::magic::PORT;
use rustix::fs::{AtFlags, CWD, Gid, Mode, Uid, chmodat, chownat, fchmod};
use rustix::net::{
    self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A listening socket, bound here or inherited from the program that started this one.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: Address,
    /// The socket's file, if the socket was bound here.
    _file: Option<File>,
}

#[derive(Debug)]
enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A socket's file, removed on drop.
#[derive(Debug)]
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        // The file may have been removed already.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The maximum number of connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 1024;

/// Listens for IPv6 connections only.
fn v6_only(at: SocketAddrV6) -> io::Result<TcpListener> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None)?;
    net::sockopt::set_socket_reuseaddr(&socket, true)?;
    net::sockopt::set_ipv6_v6only(&socket, true)?;
    bind(&socket, &at)?;
    listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

impl Listener {
    /// Listens on `address`, with these permissions if it is in the file system. For port 0 the system chooses a port.
    /// The file of a socket is removed on drop.
    ///
    /// # Errors
    /// If the address is in use or not permitted, or the owner of the file cannot be changed.
    pub fn bind(address: &Address, rights: &Rights) -> io::Result<Self> {
        Self::bind_beside(address, rights, &[])
    }

    /// Like [`bind`](Self::bind), for one of several addresses of a server, `all`. The address `[::]` accepts both
    /// families, unless 0.0.0.0 with the same port is among them.
    ///
    /// # Errors
    /// See [`bind`](Self::bind).
    pub fn bind_beside(address: &Address, rights: &Rights, all: &[Address]) -> io::Result<Self> {
        match address {
            Address::Unix(path) => {
                Self::unix(listen_on(path, rights)?, path.clone(), Some(File(path.clone())))
            }
            Address::Tcp(SocketAddr::V6(at)) if at.ip().is_unspecified() => {
                let other = SocketAddr::from((Ipv4Addr::UNSPECIFIED, at.port()));
                if all.contains(&Address::Tcp(other)) {
                    v6_only(*at)?.try_into()
                } else {
                    TcpListener::bind(at)?.try_into()
                }
            }
            Address::Tcp(at) => TcpListener::bind(at)?.try_into(),
        }
    }

    /// Checks an address before a socket is bound there.
    ///
    /// # Errors
    /// If the path is too long for a socket, is a file other than a socket, or is in a missing folder.
    pub fn check(address: &Address) -> io::Result<()> {
        match address {
            Address::Unix(path) => check(path),
            Address::Tcp(_) => Ok(()),
        }
    }

    fn unix(socket: UnixListener, path: PathBuf, file: Option<File>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket: Socket::Unix(socket), address: Address::Unix(path), _file: file })
    }

    /// Returns the listening address.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) fn accept(&self) -> io::Result<Stream> {
        Ok(match &self.socket {
            Socket::Unix(socket) => socket.accept()?.0.into(),
            Socket::Tcp(socket) => socket.accept()?.0.into(),
        })
    }
}

/// An inherited socket. Its file is kept on drop.
impl TryFrom<UnixListener> for Listener {
    type Error = io::Error;

    /// # Errors
    /// If the socket has no path, so that clients cannot address it.
    fn try_from(socket: UnixListener) -> io::Result<Self> {
        let address = socket.local_addr()?;
        let no_path = || io::Error::new(io::ErrorKind::InvalidInput, "the socket has no path");
        let path = address.as_pathname().ok_or_else(no_path)?.to_owned();
        Self::unix(socket, path, None)
    }
}

impl TryFrom<TcpListener> for Listener {
    type Error = io::Error;

    /// # Errors
    /// If the socket has no address.
    fn try_from(socket: TcpListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let address = Address::Tcp(socket.local_addr()?);
        Ok(Self { socket: Socket::Tcp(socket), address, _file: None })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Unix(socket) => socket.as_fd(),
            Socket::Tcp(socket) => socket.as_fd(),
        }
    }
}

/// An address to listen on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A socket in the file system.
    Unix(PathBuf),
    /// A TCP port of one interface.
    Tcp(SocketAddr),
}

/// The reason why a text is not an address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "'{text}' is no address; accepted are unix:PATH and tcp:IP[:PORT], for example tcp:127.0.0.1:{port} or \
     tcp:[::1]"
)]
pub struct AddressError {
    text: String,
    port: u16,
}

impl FromStr for Address {
    type Err = AddressError;

    /// Parses an address; the default port is that of NBD.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        Self::with_port(text, PORT)
    }
}

/// Parses an IP address; `port` is the default port.
fn tcp(place: &str, port: u16) -> Option<SocketAddr> {
    let host = place.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(place);
    let alone = host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, port));
    alone.or_else(|| place.parse().ok())
}

impl Address {
    /// Parses an address; `port` is the default port.
    ///
    /// # Errors
    /// If `text` is not an address; the error lists the accepted forms.
    pub fn with_port(text: &str, port: u16) -> Result<Self, AddressError> {
        let error = || AddressError { text: text.to_owned(), port };
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            Some(("tcp", place)) => tcp(place, port).map(Self::Tcp).ok_or_else(error),
            _ => Err(error()),
        }
    }

    /// Returns whether other machines can reach the address.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Tcp(at) if !at.ip().is_loopback())
    }

    /// The URI of an export for clients: `nbd+unix:///NAME?socket=PATH` or `nbd://HOST:PORT/NAME`, with the scheme
    /// `nbds` for a server with TLS.
    pub(crate) fn uri(&self, scheme: &str, export: &str) -> String {
        let export = encoded(export, "-._~");
        match self {
            Self::Unix(path) => {
                format!(
                    "{scheme}+unix:///{export}?socket={}",
                    encoded(&path.to_string_lossy(), "-._~/")
                )
            }
            Self::Tcp(at) => format!("{scheme}://{at}/{export}"),
        }
    }
}

/// Percent-encodes everything but letters, digits and the characters in `plain`.
fn encoded(text: &str, plain: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || plain.contains(c) {
            out.push(c);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(at) => write!(f, "tcp:{at}"),
        }
    }
}

/// The permissions of a socket in the file system. Users with write permission may connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// The mode, 0 to 0o777.
    pub mode: u32,
    /// The uid of the owner; `None` for the user of the server.
    pub owner: Option<u32>,
    /// The gid of the group; `None` for the group of the server.
    pub group: Option<u32>,
}

impl Default for Rights {
    /// Permissions for the user of the server only.
    fn default() -> Self {
        Self { mode: 0o600, owner: None, group: None }
    }
}

/// The maximum length of a path of a socket in Linux, in bytes.
const LONGEST: usize = 107;

/// Listens on a socket at `path`. The file of a server that has ended is replaced; that of a server that answers is
/// not.
///
/// The socket is never accessible to more users than intended. Linux derives the mode of the new file from that of the
/// socket, which nothing else can access; the process's umask is not changed, because all threads share it. Any
/// permissions missing on the file are added before anything can connect.
///
/// # Errors
/// If the path is in use or not permitted, or the owner cannot be changed.
pub(crate) fn listen_on(path: &Path, rights: &Rights) -> io::Result<UnixListener> {
    check(path)?;
    if is_abandoned(path) {
        std::fs::remove_file(path)?;
    }
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    let widened = widen(path, rights).and_then(|()| Ok(listen(&socket, BACKLOG)?));
    if widened.is_err() {
        // No server listens on it.
        let _ = std::fs::remove_file(path);
    }
    widened.map(|()| UnixListener::from(socket))
}

/// Checks a path before a socket is bound there.
///
/// # Errors
/// If the path is too long for a socket, or is a file other than a socket.
fn check(path: &Path) -> io::Result<()> {
    let length = path.as_os_str().len();
    if length > LONGEST {
        let text = format!("the path has {length} bytes; accepted: up to {LONGEST} for a socket");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            let text = "a file that is no socket is there; accepted: a path that is free";
            Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
        }
        Ok(_) => Ok(()),
        Err(_) => in_folder(path),
    }
}

/// Checks that the folder of `path` exists.
fn in_folder(path: &Path) -> io::Result<()> {
    match path.parent().filter(|folder| *folder != Path::new("")).map(std::fs::metadata) {
        Some(Err(error)) => Err(io::Error::new(error.kind(), format!("its folder: {error}"))),
        Some(Ok(folder)) if !folder.is_dir() => Err(io::ErrorKind::NotADirectory.into()),
        _ => Ok(()),
    }
}

/// Returns whether `path` is a socket on which no server listens. A file that is not a socket refuses connections, too.
fn is_abandoned(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && UnixStream::connect(path).is_err_and(refused)
}

fn widen(path: &Path, rights: &Rights) -> io::Result<()> {
    let (owner, group) = (rights.owner.map(Uid::from_raw), rights.group.map(Gid::from_raw));
    if owner.is_some() || group.is_some() {
        chownat(CWD, path, owner, group, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(chmodat(CWD, path, Mode::from_raw_mode(rights.mode), AtFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;
    use std::os::unix::fs::PermissionsExt;

    /// Regression test: [::] accepts both families, so that it conflicted with 0.0.0.0.
    #[test]
    fn both_families_listen_on_one_port_in_either_order() {
        for order in [[0, 1], [1, 0]] {
            let free = TcpListener::bind("0.0.0.0:0").and_then(|it| it.local_addr());
            let port = free.expect("a port is free").port();
            let address = |text: &str| format!("tcp:{text}:{port}").parse().expect("an address");
            let all: [Address; 2] = [address("0.0.0.0"), address("[::]")];
            let bind = |at: usize| Listener::bind_beside(&all[at], &Rights::default(), &all);
            let bound = order.map(bind);
            if bound.iter().flatten().count() == 1 {
                println!("skipped: no IPv6 here");
                return;
            }
            bound.into_iter().for_each(|it| drop(it.expect("the port is free")));
            assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "both are gone");
        }
        let alone = Listener::bind(&"tcp:[::]:0".parse().expect("valid"), &Rights::default());
        let Ok(Address::Tcp(at)) = alone.as_ref().map(|it| it.address().clone()) else { return };
        TcpStream::connect(("127.0.0.1", at.port())).expect("it takes both families");
    }

    #[test]
    fn addresses_are_read_and_shown_alike() {
        for text in ["unix:/run/blkmq.sock", "tcp:127.0.0.1:10809", "tcp:[::1]:99"] {
            let address: Address = text.parse().expect("an address");
            assert_eq!(address.to_string(), text);
        }
        let short: Address = "tcp:[::1]".parse().expect("an address");
        assert_eq!(short.to_string(), "tcp:[::1]:10809");
        assert_eq!("tcp:::1".parse(), Ok(short));
        let other = Address::with_port("tcp:::1", 7).expect("an address");
        assert_eq!(other.to_string(), "tcp:[::1]:7");
    }

    #[test]
    fn an_error_says_what_is_accepted() {
        for text in ["", "unix:", "tcp:", "tcp:host", "/run/x", "udp:1.2.3.4", "tcp:1.2.3.4:x"] {
            let error = text.parse::<Address>().expect_err(text);
            assert!(error.to_string().contains("unix:PATH and tcp:IP[:PORT]"), "{error}");
        }
    }

    #[test]
    fn an_address_is_remote_unless_it_is_loopback_or_a_file() {
        let remote = |text: &str| text.parse::<Address>().expect("an address").is_remote();
        assert!(remote("tcp:0.0.0.0") && remote("tcp:10.0.0.1:7"));
        assert!(!remote("tcp:127.0.0.1") && !remote("tcp:::1") && !remote("unix:/x"));
    }

    #[test]
    fn uris_are_those_that_clients_take() {
        let unix: Address = "unix:/run/a b.sock".parse().expect("an address");
        assert_eq!(unix.uri("nbd", "disk"), "nbd+unix:///disk?socket=/run/a%20b.sock");
        assert_eq!(unix.uri("nbd", ""), "nbd+unix:///?socket=/run/a%20b.sock");
        let tcp: Address = "tcp:127.0.0.1".parse().expect("an address");
        assert_eq!(tcp.uri("nbd", "a/\u{e4}"), "nbd://127.0.0.1:10809/a%2F%C3%A4");
        assert_eq!(tcp.uri("nbds", "a"), "nbds://127.0.0.1:10809/a");
        assert_eq!(unix.uri("nbds", "a"), "nbds+unix:///a?socket=/run/a%20b.sock");
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777
    }

    #[test]
    fn a_socket_has_the_mode_that_is_wanted_and_replaces_a_dead_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let first = listen_on(&path, &Rights::default()).expect("the path is free");
        assert_eq!(mode(&path), 0o600);
        let taken = listen_on(&path, &Rights::default()).expect_err("the first one answers");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        let wide = Rights { mode: 0o666, ..Rights::default() };
        let second = listen_on(&path, &wide).expect("nothing listens there any more");
        assert_eq!(mode(&path), 0o666);
        let _client = UnixStream::connect(&path).expect("it listens");
        second.accept().expect("a client");
    }

    /// Regression test: the system's error message does not give a maximum length.
    #[test]
    fn a_path_is_as_long_as_linux_takes_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |length: usize| {
            let name = length - folder.path().as_os_str().len() - 1;
            folder.path().join("s".repeat(name))
        };
        listen_on(&path(LONGEST), &Rights::default()).expect("the longest");
        let refused = listen_on(&path(LONGEST + 1), &Rights::default()).expect_err("too long");
        assert_eq!(refused.to_string(), "the path has 108 bytes; accepted: up to 107 for a socket");
    }

    #[test]
    fn a_socket_whose_rights_are_refused_leaves_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("no").join("socket");
        assert!(listen_on(&path, &Rights::default()).is_err());
        let file = folder.path().join("file");
        std::fs::write(&file, "a file").expect("it can be written");
        let refused = listen_on(&file, &Rights::default()).expect_err("no file is replaced");
        assert!(refused.to_string().contains("no socket is there"), "{refused}");
        assert_eq!(std::fs::read(&file).expect("it is there"), b"a file");
    }
}
