//! What an oracle says when something does not hold.

use blkmq_core::{GroupId, HwQueue, Instant, IoResult, Nanos, SubmitterId, Tag};
use blkmq_engine::{QueueStats, Refusal};
use std::fmt;

/// Where an I/O is, as far as can be seen from outside the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Taken by the engine.
    Submitted,
    /// Taken by the device.
    AtDevice,
    /// Finished by the device.
    Served(IoResult),
    /// Taken back by its submitter.
    Ended,
}

/// A promise that was broken. The first one ends a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Violation {
    /// An I/O went from one stage to another that does not follow: completed twice, completed without the
    /// device, served again, or completed with another result than the device gave it.
    Stages {
        /// Which.
        cookie: u64,
        /// Where it was.
        was: Stage,
        /// Where it went.
        now: Stage,
    },
    /// A completion for an I/O that nobody submitted.
    Unknown {
        /// Its cookie.
        cookie: u64,
    },
    /// A completion reached somebody else than the submitter, or with somebody else's payload.
    Misrouted {
        /// Which.
        cookie: u64,
        /// Who got it.
        by: SubmitterId,
    },
    /// A request at the device is not what its bios make of it.
    Malformed {
        /// On which hardware queue.
        hw: HwQueue,
        /// What is wrong with it.
        what: &'static str,
        /// Its first sector.
        sector: u64,
    },
    /// An I/O began or ended without a flush that it needed.
    NotDurable {
        /// Which.
        cookie: u64,
        /// What was missing.
        what: &'static str,
    },
    /// A driver tag was used twice at a time.
    TagTwice {
        /// On which hardware queue.
        hw: HwQueue,
        /// Which.
        tag: Tag,
    },
    /// More in use than there are.
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        used: u32,
        /// Of how many.
        of: u32,
    },
    /// More has arrived of a group than its limits allow.
    TooFast {
        /// Which.
        group: GroupId,
        /// Bytes or I/Os that have arrived.
        units: u64,
        /// The most that there may be by now.
        of: u64,
        /// Per second.
        rate: u64,
    },
    /// The device was given another request than the policy picked next for this hardware queue.
    OutOfOrder {
        /// On which hardware queue.
        hw: HwQueue,
        /// First sector of the policy's choice, if it had made one.
        picked: Option<u64>,
        /// First sector of what arrived.
        arrived: u64,
    },
    /// Nobody came to a hardware queue at the time that its device, or the rule of 3 ms, had named.
    Late {
        /// To which.
        hw: HwQueue,
        /// The time named.
        due: Instant,
        /// The time.
        now: Instant,
        /// How much later would have been all right.
        slack: Nanos,
    },
    /// The device was idle, and the policy, which was holding requests back, was not asked again.
    NotAsked {
        /// For which hardware queue it was asked last.
        hw: HwQueue,
        /// When it should have been.
        due: Instant,
        /// The time.
        now: Instant,
        /// How much later would have been all right.
        slack: Nanos,
    },
    /// The queue said that it was frozen.
    NotFrozen {
        /// Requests that the device held all the same, or was about to be offered again.
        at_device: u32,
    },
    /// I/Os are in flight and nothing will ever happen again.
    Stuck {
        /// How many.
        in_flight: u32,
        /// Since when.
        since: Instant,
    },
    /// Much happens and nothing comes of it.
    Endless {
        /// I/Os in flight.
        in_flight: u32,
        /// Events in the phase.
        events: u64,
    },
    /// Something else is stored than may be there.
    Contents {
        /// The first sector of the block.
        sector: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// An I/O within the limits was refused.
    Refused(Refusal),
    /// Everything has ended and the counters do not agree.
    Counters {
        /// What should hold.
        rule: &'static str,
        /// What the queue counted.
        stats: Box<QueueStats>,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stages { cookie, was, now } => {
                write!(f, "I/O {cookie} was {was:?} and is now {now:?}")
            }
            Self::Unknown { cookie } => write!(f, "nobody submitted I/O {cookie}, which completed"),
            Self::Misrouted { cookie, by } => {
                write!(f, "I/O {cookie} was completed to {by:?}, or with another's payload")
            }
            Self::Malformed { hw, what, sector } => {
                write!(f, "the request at sector {sector} on {hw:?}: {what}")
            }
            Self::NotDurable { cookie, what } => {
                write!(f, "I/O {cookie} did not get {what}, or not in time")
            }
            Self::TagTwice { hw, tag } => write!(f, "driver tag {} of {hw:?} is used twice", tag.0),
            Self::TooMany { what, used, of } => write!(f, "{used} {what} in use, of {of}"),
            Self::TooFast { group, units, of, rate } => write!(
                f,
                "{units} bytes or I/Os of {group:?} have arrived, and {of} may have at {rate} per second"
            ),
            Self::OutOfOrder { hw, picked: Some(picked), arrived } => write!(
                f,
                "{hw:?} was given the request at sector {arrived} before that at {picked}, which the \
                 policy had picked earlier"
            ),
            Self::OutOfOrder { hw, picked: None, arrived } => {
                write!(f, "{hw:?} was given the request at sector {arrived}, which was not picked")
            }
            Self::Late { hw, due, now, slack } => write!(
                f,
                "{hw:?} was due at {} ns and nobody has come by {} ns, with {slack} allowed",
                due.as_nanos(),
                now.as_nanos()
            ),
            Self::NotAsked { hw, due, now, slack } => write!(
                f,
                "the device was idle, and the policy of {hw:?} was to be asked at {} ns and was not by \
                 {} ns, with {slack} allowed",
                due.as_nanos(),
                now.as_nanos()
            ),
            Self::NotFrozen { at_device } => {
                write!(f, "the queue is frozen, with {at_device} requests at its device")
            }
            Self::Stuck { in_flight, since } => write!(
                f,
                "{in_flight} I/Os in flight, and nothing will ever happen after {} ns",
                since.as_nanos()
            ),
            Self::Endless { in_flight, events } => {
                write!(f, "{in_flight} I/Os still in flight after {events} events")
            }
            Self::Contents { sector, what } => write!(f, "what is at sector {sector}: {what}"),
            Self::Refused(why) => write!(f, "an I/O within the limits was refused: {why}"),
            Self::Counters { rule, stats } => write!(f, "at rest, not {rule}: {stats:?}"),
        }
    }
}

impl std::error::Error for Violation {}
