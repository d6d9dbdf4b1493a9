//! [`OpenError`]: the reasons why an image cannot be opened.

use blkmq_core::PairError;
use std::fmt;
use std::io;

/// The reason why an image cannot be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The description names no image.
    NoImageGiven,
    /// The name of the image is not understood.
    Spec(String),
    /// A word of the description is not a pair, or contains a NUL.
    Syntax(String),
    /// A parameter is unknown, or has an impossible value.
    Parameter(PairError),
    /// The machine has no librados or librbd.
    NoLibrary {
        /// The file that the loader searched for.
        name: String,
        /// The message of the loader.
        why: String,
    },
    /// The library lacks this function.
    OldLibrary(&'static str),
    /// The configuration of the cluster cannot be read.
    Conf {
        /// The file, if one was given.
        path: Option<String>,
        /// The error number of librados.
        errno: i32,
    },
    /// The cluster has no such pool.
    NoPool(String),
    /// The pool has no such image, or the image no such snapshot.
    NoImage(String),
    /// A step on the way to the image failed.
    Cluster {
        /// The step, as the beginning of a sentence.
        what: &'static str,
        /// The error number of librados or librbd.
        errno: i32,
    },
    /// The image cannot be a device, for the reason given.
    Unfit(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = |errno: i32| io::Error::from_raw_os_error(errno);
        match self {
            Self::NoImageGiven => {
                f.write_str("no image; accepted: rbd:POOL/[NAMESPACE/]IMAGE[@SNAP][,KEY=VALUE]...")
            }
            Self::Spec(text) => {
                write!(f, "'{text}' names no image; accepted: POOL/[NAMESPACE/]IMAGE[@SNAP]")
            }
            Self::Syntax(word) => write!(
                f,
                "'{}' is no KEY=VALUE; accepted: rbd:POOL/[NAMESPACE/]IMAGE[@SNAP][,KEY=VALUE]...",
                word.escape_debug()
            ),
            Self::Parameter(error) => error.fmt(f),
            Self::NoLibrary { name, why } => write!(
                f,
                "rbd: needs {name}, which this machine does not have: install the package librbd1 (Debian, Ubuntu, \
                 Fedora, RHEL, openSUSE) or ceph-libs (Arch); the loader says: {why}"
            ),
            Self::OldLibrary(function) => {
                write!(
                    f,
                    "librbd has no {function}; accepted: librbd of Ceph 16 (Pacific) or later"
                )
            }
            Self::Conf { path: Some(path), errno } => {
                write!(f, "{path}: {}", reason(*errno))
            }
            Self::Conf { path: None, errno } => write!(
                f,
                "no configuration of a cluster in $CEPH_CONF, /etc/ceph/ceph.conf, ~/.ceph/config or ./ceph.conf \
                 ({}); accepted: conf=PATH",
                reason(*errno)
            ),
            Self::NoPool(pool) => write!(f, "the cluster has no pool '{pool}'"),
            Self::NoImage(spec) => write!(f, "there is no image '{spec}'"),
            Self::Cluster { what, errno } => write!(f, "{what}: {}", reason(*errno)),
            Self::Unfit(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Parameter(error) => Some(error),
            _ => None,
        }
    }
}

impl From<PairError> for OpenError {
    fn from(error: PairError) -> Self {
        Self::Parameter(error)
    }
}
