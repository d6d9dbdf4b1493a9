//! [`VhostUser`] and [`Ublk`]: the settings of an export as a disk of a virtual machine, or as a block device of this
//! machine.

use blkmq::core::{Class, IoPrio};
use blkmq_ublk::control::UblkError;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The maximum number of queues of a disk.
pub const MOST_QUEUES: u16 = 64;

/// An export as a disk of a virtual machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VhostUser {
    /// The socket to which the front end connects. It has the permissions of the server's sockets.
    pub path: PathBuf,
    /// The number of queues available to a guest, 1 to [`MOST_QUEUES`].
    pub queues: u16,
    /// The treatment of the priorities that the guest assigns to its requests.
    pub guest_ioprio: GuestIoprio,
}

impl VhostUser {
    /// Uses the socket at `path`, with four queues, ignoring priorities of the guest.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, queues: 4, guest_ioprio: GuestIoprio::default() }
    }
}

/// An export as a block device of this machine, `/dev/ublkbN`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ublk {
    /// The number of the device.
    pub number: u32,
    /// The maximum number of queues, 1 to [`MOST_QUEUES`]; the device has at most one for each processor.
    pub queues: u16,
}

impl Ublk {
    /// Uses the block device with this number, with one queue.
    #[must_use]
    pub fn new(number: u32) -> Self {
        Self { number, queues: 1 }
    }

    /// Checks that this machine supports such devices. Changes nothing.
    ///
    /// # Errors
    /// If the driver is missing or too old, or this process may not use it.
    pub fn check_driver() -> Result<(), UblkError> {
        blkmq_ublk::control::check_driver()
    }
}

/// The treatment of the priorities that a guest assigns to its requests. Linux sends that of the process (`ionice`)
/// with each request, including those of ext4's journal; writes from the page cache have the priority of the kernel's
/// thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GuestIoprio {
    /// Ignored: every request has the class of the export.
    #[default]
    Off,
    /// The guest may lower the priority of its requests and order them among each other. No request gets a better class
    /// than the export; an export without a class counts as best-effort.
    Clamp,
    /// The priorities are accepted unchanged.
    Trust,
}

impl GuestIoprio {
    /// The priority of an I/O to an export with the priority `export`, for which the guest requests `asked`.
    pub(crate) fn apply(self, asked: u16, export: IoPrio) -> IoPrio {
        let asked = IoPrio::from_bits(asked);
        let class = asked.class();
        let best = match export.class() {
            Class::None => Class::BestEffort,
            class => class,
        };
        match self {
            Self::Off => export,
            _ if class == Class::None => export,
            Self::Trust => asked,
            Self::Clamp if class >= best => asked,
            Self::Clamp => IoPrio::new(best, 0).expect("there is a level 0"),
        }
    }
}

impl FromStr for GuestIoprio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "clamp" => Ok(Self::Clamp),
            "trust" => Ok(Self::Trust),
            _ => Err(format!("'{text}' is no use of priorities; accepted: off, clamp, trust")),
        }
    }
}

impl fmt::Display for GuestIoprio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Clamp => "clamp",
            Self::Trust => "trust",
        })
    }
}
