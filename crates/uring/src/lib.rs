//! Files and block devices behind a queue, through io_uring, or by threads where io_uring is forbidden. Linux only: on
//! other systems this crate is empty.
//!
//! [`UringDevice::open`] determines the type and the limits of a file, and [`UringDevice::queues`] makes a ring for
//! each hardware queue, or threads for all of them. Payloads give the address of their bytes ([`IoBuf`]). An
//! [`AlignedBuf`] is a payload that direct I/O accepts, and a [`BufferPool`] has many of them in memory that the kernel
//! maps only once. The device's page (`doc/uring.md`) has its costs, its parameters and its limitations.
//!
//! ```
//! use blkmq_buf::AlignedBuf;
//! use blkmq_core::Bytes;
//! use blkmq_engine::{BlockDevice, Io};
//! use blkmq_runtime::Service;
//! use blkmq_uring::UringDevice;
//! # let path = std::env::temp_dir().join(format!("blkmq-uring-doc-{}", std::process::id()));
//! # std::fs::write(&path, vec![7; 1 << 20])?;
//! # if UringDevice::parse(&path.to_string_lossy()).is_err_and(|e| e.is_unavailable()) {
//! #     return Ok(std::fs::remove_file(&path)?);
//! # }
//!
//! // Read only, past the page cache; `path` is a file or a block device.
//! let device = UringDevice::parse(&format!("{},readonly=1", path.display()))?;
//! let service = Service::start(device.config()?)?;
//! let mut disk = service.blocking()?;
//! let (result, mut bytes) = disk.call(Io::read(Bytes(8192), AlignedBuf::new(4096)))?;
//! result?;
//! assert_eq!(bytes.as_mut_slice(), [7; 4096]);
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Why the memory is safe
//!
//! The kernel writes to a buffer after the call that passed it has returned. The argument rests on this crate, on the
//! engine and on implementations of the unsafe trait [`IoBuf`]. Safe code has to keep no promise:
//!
//! 1. *The buffer exists and does not move.* A payload belongs to its I/O from submission until its completion is
//!    taken, in a cell of the engine's table ([`BioTable`]). [`IoBuf`] promises that in this time its bytes do not move
//!    and that only the device reaches them. The cell opens only to the holder of the request's token. The token cannot
//!    be shared between threads, and here it is in a place of the queue.
//! 2. *No token leaves early.* A request's [`Inflight`] leaves its place only after the kernel has reported, in the
//!    completion ring, that it is done with the request, or while the kernel does not have it (between two tries).
//!    [`abandon`] and dropping a queue first wait until the kernel has released all requests, whatever the state of the
//!    queue.
//! 3. *The engine frees no payload whose token has not been returned.* When a queue ends, the engine asks for the
//!    requests that are still held ([`abandon`]), and looks for the token of every payload that remains. A payload
//!    without its token is leaked and counted ([`blkmq_engine::leaked_bios`]).
//!
//! With threads in place of a ring, a request contains its token while the pool has it, and returns with it. The same
//! conclusions hold.
//!
//! So a device may wrap one of these, keep tokens, ignore `abandon`, or forget the queue (`std::mem::forget`,
//! `ManuallyDrop`): the ring, its places and the payloads then stay for the life of the process. That costs memory, not
//! soundness. A registered pool outlives the ring, because the ring holds a share in it. Its buffers count their
//! ranges, so a leaked buffer is never given out again.
//!
//! A process that forks does not share its rings with the child (`MADV_DONTFORK`): a child that uses or drops a queue
//! of its parent is killed by SIGSEGV and reaches no memory of either process.
//!
//! [`IoBuf`]: blkmq_buf::IoBuf
//! [`AlignedBuf`]: blkmq_buf::AlignedBuf
//! [`BufferPool`]: blkmq_buf::BufferPool
//! [`BioTable`]: blkmq_engine::BioTable
//! [`Inflight`]: blkmq_engine::Inflight
//! [`DeviceQueue`]: blkmq_engine::DeviceQueue
//! [`abandon`]: blkmq_engine::DeviceQueue::abandon

#![cfg(target_os = "linux")]

mod device;
mod file;
mod options;
mod parts;
mod queue;
mod request;
mod ring;
mod target;

pub use device::UringDevice;
use file::{Access, LockError};
pub use file::{Conflict, FileState, Permission};
use nix::errno::Errno;
pub use options::{Options, ParamError, THREADS, THREADS_PAGE, URING, URING_PAGE};
pub use queue::UringQueue;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The reason why a device was not opened, or its rings were not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The description is invalid.
    #[error("{0}")]
    Parameter(#[from] ParamError),
    /// The operating system refused an operation on the file.
    #[error("cannot {what} {}: {why}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operation: "open", "extend".
        what: &'static str,
        /// The reason.
        #[source]
        why: io::Error,
    },
    /// It is neither a regular file nor a block device.
    #[error("{} is neither a regular file nor a block device", .path.display())]
    NotStorage {
        /// The file.
        path: PathBuf,
    },
    /// Another program has the file open in a conflicting way.
    #[error(fmt = in_use)]
    InUse {
        /// The file.
        path: PathBuf,
        /// Whether the file was to be opened for writing.
        for_writing: bool,
        /// The conflict.
        conflict: Conflict,
    },
    /// The file is shorter than a block.
    #[error(
        "{} has not room for one block of {block} bytes; size=16m makes it larger",
        .path.display()
    )]
    Empty {
        /// The file.
        path: PathBuf,
        /// Its block size in bytes.
        block: u32,
    },
    /// `size` was given for a block device, or together with `readonly` for a file that is smaller.
    #[error("{} cannot be extended: {why}", .path.display())]
    NotExtended {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: &'static str,
    },
    /// It is an image of another format than raw, and `format=raw` was not given.
    #[error(
        "{} begins like a {format} image, and its bytes would be taken as those of a disk; \
         accepted: a raw image, as qemu-img convert -O raw makes, an export of qemu-nbd (nbd:), or \
         format=raw to take it as it is",
        .path.display()
    )]
    Image {
        /// The file.
        path: PathBuf,
        /// The name of the format.
        format: &'static str,
    },
    /// `iopoll` was given, and the file is on no disk that can be polled, or does not bypass the page cache.
    #[error(
        "{} cannot be polled (iopoll=1): accepted is direct I/O on a disk whose queue/io_poll is 1 \
         in sysfs; for NVMe the kernel needs nvme.poll_queues=N",
        .path.display()
    )]
    NotPolled {
        /// The file.
        path: PathBuf,
    },
    /// io_uring is not available: not built into the kernel, switched off, or filtered.
    #[error(fmt = no_io_uring)]
    NoIoUring {
        /// `ENOSYS`, `EPERM` or `EACCES`.
        #[source]
        why: io::Error,
        /// The value of `kernel.io_uring_disabled`, if it exists.
        disabled: Option<String>,
    },
    /// The kernel's io_uring is too old.
    #[error(
        "the kernel's io_uring lacks {}; Linux 5.6 and later have them",
        .operations.join(", ")
    )]
    Missing {
        /// The missing operations.
        operations: Vec<&'static str>,
    },
    /// A ring was not made or set up, or threads were not started.
    #[error("cannot {what}: {why}{}", remedy(.why))]
    Ring {
        /// The operation.
        what: &'static str,
        /// The reason.
        #[source]
        why: io::Error,
    },
}

impl OpenError {
    pub(crate) fn file(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |why| Self::File { path, what, why }
    }

    /// The error for a file that was not locked.
    pub(crate) fn locked(path: &Path, access: Access, why: LockError) -> Self {
        let path = path.to_path_buf();
        match why {
            LockError::Conflict(conflict) => {
                Self::InUse { path, for_writing: access != Access::Read, conflict }
            }
            LockError::Unsupported => Self::File { path, what: "lock", why: Errno::ENOLCK.into() },
            LockError::Io(why) => Self::File { path, what: "lock", why },
        }
    }

    pub(crate) fn ring(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |why| Self::Ring { what, why }
    }

    /// Returns whether io_uring is missing, forbidden or too old on this machine, or in this container.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::NoIoUring { .. } | Self::Missing { .. })
    }

    /// Returns whether threads can do the I/O: io_uring is unavailable, or there is no memory for the smallest ring.
    pub(crate) fn leaves_threads(&self) -> bool {
        match self {
            Self::Ring { why, .. } => why.raw_os_error() == Some(libc::ENOMEM),
            _ => self.is_unavailable(),
        }
    }

    /// Returns whether the file is in use elsewhere, so that opening it may succeed later.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        match self {
            Self::InUse { .. } => true,
            Self::File { why, .. } => why.kind() == io::ErrorKind::ResourceBusy,
            _ => false,
        }
    }
}

/// Keeps the text, with the error kind of the operating system if there is one.
impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        let kind = match &error {
            OpenError::File { why, .. }
            | OpenError::NoIoUring { why, .. }
            | OpenError::Ring { why, .. } => why.kind(),
            OpenError::Missing { .. } | OpenError::NotPolled { .. } => io::ErrorKind::Unsupported,
            OpenError::InUse { .. } => io::ErrorKind::ResourceBusy,
            OpenError::Parameter(_)
            | OpenError::NotStorage { .. }
            | OpenError::Empty { .. }
            | OpenError::Image { .. }
            | OpenError::NotExtended { .. } => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}

/// Writes the text of [`OpenError::InUse`]. The conflicting programs lock images as QEMU does.
fn in_use(
    path: &Path,
    for_writing: &bool,
    conflict: &Conflict,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let path = path.display();
    let (mode, readonly) = if *for_writing { ("writing", "readonly=1, ") } else { ("reading", "") };
    let other = "another program (a virtual machine, qemu-img, blkmq) has it open";
    write!(f, "cannot open {path} for {mode}: {other} ")?;
    match conflict {
        Conflict::Used(Permission::Read) => f.write_str("for reading")?,
        Conflict::Used(Permission::Write) => f.write_str("for writing")?,
        Conflict::Used(Permission::Resize) => f.write_str("to resize it")?,
        Conflict::Unshared(Permission::Read) => f.write_str("and lets no other read it")?,
        Conflict::Unshared(Permission::Write) => f.write_str("and lets no other write to it")?,
        Conflict::Unshared(Permission::Resize) => f.write_str("and lets no other resize it")?,
    }
    write!(f, "; accepted: to close it there, {readonly}or locking=0 to open it nevertheless")
}

/// Writes the text of [`OpenError::NoIoUring`].
fn no_io_uring(
    why: &io::Error,
    disabled: &Option<String>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(f, "io_uring is not available here ({why}): ")?;
    match disabled.as_deref() {
        Some("0") => f.write_str(
            "sysctl kernel.io_uring_disabled is 0, so a seccomp filter (as containers have) \
             forbids io_uring_setup; allow it there",
        ),
        Some(n) => write!(
            f,
            "sysctl kernel.io_uring_disabled is {n}; 0 allows every process, 1 only \
             kernel.io_uring_group and CAP_SYS_ADMIN, 2 no process"
        ),
        None => f.write_str(
            "the kernel is older than Linux 5.6 or built without CONFIG_IO_URING, or a \
             seccomp filter (as containers have) forbids io_uring_setup",
        ),
    }
}

fn remedy(why: &io::Error) -> &'static str {
    match why.raw_os_error() {
        Some(libc::ENOMEM) => {
            "; raise RLIMIT_MEMLOCK (ulimit -l), or use fewer hw_queues, a smaller hw_queue_depth \
             or fixed=0"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(errno: i32, disabled: Option<&str>) -> String {
        let why = io::Error::from_raw_os_error(errno);
        let error = OpenError::NoIoUring { why, disabled: disabled.map(Into::into) };
        assert!(error.is_unavailable());
        error.to_string()
    }

    #[test]
    fn a_refused_ring_names_the_sysctl_or_the_filter() {
        let text = refused(libc::EPERM, Some("2"));
        assert!(text.contains("kernel.io_uring_disabled is 2"), "{text}");
        let text = refused(libc::EPERM, Some("0"));
        assert!(text.contains("seccomp"), "{text}");
        let text = refused(libc::ENOSYS, None);
        assert!(text.contains("CONFIG_IO_URING") && text.contains("seccomp"), "{text}");
    }

    #[test]
    fn memory_that_may_not_be_locked_is_explained() {
        let why = io::Error::from_raw_os_error(libc::ENOMEM);
        let text = OpenError::ring("register buffers")(why).to_string();
        assert!(text.starts_with("cannot register buffers") && text.contains("RLIMIT_MEMLOCK"));
    }
}
