//! The permissions of sockets in the file system.

use rustix::fs::{AtFlags, CWD, Gid, Uid, fchmod};
use rustix::fs::{Mode, chmodat, chownat};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

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

/// The maximum number of connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 1024;

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
pub(crate) fn check(path: &Path) -> io::Result<()> {
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
    use std::os::unix::fs::PermissionsExt;

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
