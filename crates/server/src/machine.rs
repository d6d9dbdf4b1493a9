//! [`VhostUser`] and [`Ublk`]: the settings of an export as a disk of a virtual machine, and of this one.

use blkmq::core::{Class, IoPrio};
use blkmq_ublk::control::UblkError;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The most queues of a disk.
pub const MOST_QUEUES: u16 = 64;

/// An export as a disk of a virtual machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VhostUser {
    /// The socket to which the front end connects. It has the rights of the server's sockets.
    pub path: PathBuf,
    /// The queues that a guest may use, 1 to [`MOST_QUEUES`].
    pub queues: u16,
    /// The use of the priorities that the guest gives its requests.
    pub guest_ioprio: GuestIoprio,
}

impl VhostUser {
    /// A socket at `path`, with four queues and without priorities of the guest.
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
    /// The queues of the device, 1 to [`MOST_QUEUES`]. It has one for each processor at most.
    pub queues: u16,
}

impl Ublk {
    /// The block device with this number, with a queue.
    #[must_use]
    pub fn new(number: u32) -> Self {
        Self { number, queues: 1 }
    }

    /// Checks that this machine can have such devices. Changes nothing.
    ///
    /// # Errors
    /// If there is no driver, it is too old, or this process may not use it.
    pub fn check_driver() -> Result<(), UblkError> {
        blkmq_ublk::control::check_driver()
    }
}

/// The use of the priorities that a guest gives its requests. Linux sends that of the process (`ionice`) with each
/// request, also of the journal of ext4; writes through the page cache have the priority of the kernel's thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GuestIoprio {
    /// Ignored: every request has the class of the export.
    #[default]
    Off,
    /// The guest may lower the priority of its requests, and order them among each other. None has a better class than the
    /// export; an export without a class counts as best-effort.
    Clamp,
    /// The priorities are taken as they are.
    Trust,
}

impl GuestIoprio {
    /// The priority of an I/O of an export with the priority `export`, for which the guest asks `asked`.
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
