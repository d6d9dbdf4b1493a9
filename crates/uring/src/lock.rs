//! Locks on image files, so that two programs do not write to one file by mistake.
//!
//! They are those of QEMU, so that its tools and this crate exclude each other: open-file-description locks on single
//! bytes of the file. A program that needs a permission holds a read lock on byte 100 plus the permission's number. A
//! program that does not tolerate the permission in others holds a read lock on byte 200 plus the number. Read locks
//! never exclude each other, so each program first takes its own and then checks for a lock of the other kind. Of two
//! programs that begin at the same time, both may refuse, but never both continue.
//!
//! The kernel drops the locks when the last descriptor of the open file is closed, however the program ends.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use std::fs::File;
use std::io;

/// First byte of the permissions in use.
const USED: i64 = 100;
/// First byte of the permissions that others must not have.
const UNSHARED: i64 = 200;

/// A permission on an image. The discriminants are QEMU's numbers. Two more are not needed here: writing unchanged data
/// (2) and changing the graph of images (4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Permission {
    /// Reading consistent data.
    Read = 0,
    /// Writing.
    Write = 1,
    /// Changing the size.
    Resize = 3,
}

/// The intended access to a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
    Resize,
}

/// The conflict that prevents opening a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Conflict {
    /// Another open of the file uses this permission, which the intended access does not tolerate.
    Used(Permission),
    /// Another open of the file does not tolerate this permission, which is needed.
    Unshared(Permission),
}

/// The reason why a file is not locked.
#[derive(Debug)]
pub(crate) enum LockError {
    Conflict(Conflict),
    /// The file system has no locks.
    Unsupported,
    Io(io::Error),
}

impl Access {
    /// The permissions that it uses.
    fn uses(self) -> &'static [Permission] {
        match self {
            Self::Read => &[Permission::Read],
            Self::Write => &[Permission::Read, Permission::Write],
            Self::Resize => &[Permission::Read, Permission::Write, Permission::Resize],
        }
    }

    /// The permissions that others must not use during this access.
    fn bars(self) -> &'static [Permission] {
        match self {
            Self::Read => &[],
            Self::Write | Self::Resize => &[Permission::Write, Permission::Resize],
        }
    }
}

/// Locks an open file for as long as it is open. It must be open for reading.
///
/// After an error some locks may be held, so the caller must close the file.
pub(crate) fn lock(file: &File, access: Access) -> Result<(), LockError> {
    let used = access.uses().iter().map(|p| (Conflict::Unshared(*p), USED, UNSHARED, *p));
    let barred = access.bars().iter().map(|p| (Conflict::Used(*p), UNSHARED, USED, *p));
    // A conflict about a permission that the other program uses is reported before one about a permission that it bars.
    let all = Vec::from_iter(barred.chain(used));
    for (conflict, own, _, permission) in &all {
        match hold(file, own + i64::from(*permission as u8)) {
            // A write lock of another program excludes read locks.
            Err(Errno::EAGAIN | Errno::EACCES) => return Err(LockError::Conflict(*conflict)),
            done => done?,
        }
    }
    for (conflict, _, others, permission) in all {
        if is_held(file, others + i64::from(permission as u8))? {
            return Err(LockError::Conflict(conflict));
        }
    }
    Ok(())
}

fn byte(kind: i32, at: i64) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: at,
        l_len: 1,
        // The lock is of an open file, not of a process.
        l_pid: 0,
    }
}

/// Holds a read lock on one byte.
fn hold(file: &File, at: i64) -> Result<(), Errno> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&byte(libc::F_RDLCK, at))).map(|_| ())
}

/// Returns whether another open file holds a lock on this byte.
fn is_held(file: &File, at: i64) -> Result<bool, Errno> {
    // Every lock conflicts with a write lock.
    let mut found = byte(libc::F_WRLCK, at);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
    Ok(i32::from(found.l_type) != libc::F_UNLCK)
}

impl From<Errno> for LockError {
    fn from(errno: Errno) -> Self {
        match errno {
            // The errors of network file systems, and of kernels before Linux 3.15.
            Errno::ENOLCK | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL => Self::Unsupported,
            errno => Self::Io(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Access::{Read, Resize, Write};

    /// Opens a file for the first access, and then for the second; returns the result.
    fn both(test: &str, first: Access, second: Access) -> Result<(), Conflict> {
        let path = std::env::temp_dir().join(format!("blkmq-{test}-{}", std::process::id()));
        std::fs::write(&path, [0; 512]).expect("a small file");
        let open = || {
            let options = std::fs::OpenOptions::new().read(true).write(true).open(&path);
            options.expect("it is there")
        };
        let (one, two) = (open(), open());
        let _ = std::fs::remove_file(&path);
        let conflict = |locked| match locked {
            Ok(()) => Ok(()),
            Err(LockError::Conflict(conflict)) => Err(conflict),
            Err(other) => panic!("{other:?}"),
        };
        conflict(lock(&one, first)).expect("the first one");
        conflict(lock(&one, first)).expect("its own locks do not stand against it");
        let result = conflict(lock(&two, second));
        drop(one);
        conflict(lock(&two, second)).expect("the first one's locks have gone with it");
        result
    }

    /// Like a reading virtual machine, which bars writing without writing.
    #[test]
    fn what_others_bar_is_respected() {
        let path = std::env::temp_dir().join(format!("blkmq-barred-{}", std::process::id()));
        std::fs::write(&path, [0; 512]).expect("a small file");
        let open = || File::open(&path).expect("it is there");
        for permission in [Permission::Read, Permission::Write, Permission::Resize] {
            let other = open();
            hold(&other, UNSHARED + i64::from(permission as u8)).expect("it is free");
            for access in [Read, Write, Resize] {
                let found = match lock(&open(), access) {
                    Ok(()) => None,
                    Err(LockError::Conflict(conflict)) => Some(conflict),
                    Err(other) => panic!("{other:?}"),
                };
                let barred = access.uses().contains(&permission);
                let expected = barred.then_some(Conflict::Unshared(permission));
                assert_eq!(found, expected, "{access:?} while {permission:?} is barred");
            }
        }
        let _ = std::fs::remove_file(&path);
    }

    #[test]
    fn readers_share_and_writers_are_alone() {
        let both = |first, second| both("readers_share_and_writers_are_alone", first, second);
        assert_eq!([both(Read, Read), both(Read, Write), both(Write, Read)], [Ok(()); 3]);
        for (first, second) in [(Write, Write), (Write, Resize), (Resize, Write), (Resize, Resize)]
        {
            let conflict = Err(Conflict::Used(Permission::Write));
            assert_eq!(both(first, second), conflict, "{second:?} after {first:?}");
        }
    }
}
