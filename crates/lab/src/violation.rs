//! The findings of oracles: conditions that did not hold.

use blkmq_core::{GroupId, HwQueue, Instant, IoResult, Nanos, SubmitterId, Tag};
use blkmq_engine::{QueueStats, Refusal};

/// The stage of an I/O, as visible from outside the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Taken by the engine.
    Submitted,
    /// Taken by the device.
    AtDevice,
    /// Finished by the device.
    Served(IoResult),
    /// Reaped by its submitter.
    Ended,
}

/// A promise that was broken. The first one ends a run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// An I/O went to a stage that does not follow: completed twice, completed without the device, served again, or
    /// completed with another result than the device gave it.
    #[error("I/O {cookie} was {was:?} and is now {now:?}")]
    Stages {
        /// The I/O.
        cookie: u64,
        /// Its stage before.
        was: Stage,
        /// Its stage after.
        now: Stage,
    },
    /// A completion for an I/O that was never submitted.
    #[error("nobody submitted I/O {cookie}, which completed")]
    Unknown {
        /// Its cookie.
        cookie: u64,
    },
    /// A completion reached another submitter, or with the payload of another I/O.
    #[error("I/O {cookie} was completed to {by:?}, or with another's payload")]
    Misrouted {
        /// The I/O.
        cookie: u64,
        /// The submitter that got it.
        by: SubmitterId,
    },
    /// A request at the device does not agree with its bios.
    #[error("the request at sector {sector} on {hw:?}: {what}")]
    Malformed {
        /// The hardware queue.
        hw: HwQueue,
        /// The disagreement.
        what: &'static str,
        /// Its first sector.
        sector: u64,
    },
    /// An I/O began or ended without a flush that it needed.
    #[error("I/O {cookie} did not get {what}, or not in time")]
    NotDurable {
        /// The I/O.
        cookie: u64,
        /// The missing flush.
        what: &'static str,
    },
    /// A driver tag was used twice at the same time.
    #[error("driver tag {} of {hw:?} is used twice", .tag.0)]
    TagTwice {
        /// The hardware queue.
        hw: HwQueue,
        /// The tag.
        tag: Tag,
    },
    /// More of a resource is in use than there is.
    #[error("{used} {what} in use, of {of}")]
    TooMany {
        /// The resource.
        what: &'static str,
        /// The number in use.
        used: u32,
        /// The number of all.
        of: u32,
    },
    /// More of a group's I/O has arrived than its limits allow.
    #[error(
        "{units} bytes or I/Os of {group:?} have arrived, and {of} may have at {rate} per second"
    )]
    TooFast {
        /// The group.
        group: GroupId,
        /// Bytes or I/Os that have arrived.
        units: u64,
        /// The most that may have arrived by now.
        of: u64,
        /// The limit per second.
        rate: u64,
    },
    /// The device was given a request other than the policy's next pick for this hardware queue.
    #[error("{hw:?} was given the request at sector {arrived}{}", before(*.picked))]
    OutOfOrder {
        /// The hardware queue.
        hw: HwQueue,
        /// First sector of the policy's pick, if there was one.
        picked: Option<u64>,
        /// First sector of the request that arrived.
        arrived: u64,
    },
    /// No thread visited a hardware queue at the time that its device, or the rule of 3 ms, had named.
    #[error(
        "{hw:?} was due at {} ns and nobody has come by {} ns, with {slack} allowed",
        .due.as_nanos(), .now.as_nanos()
    )]
    Late {
        /// The hardware queue.
        hw: HwQueue,
        /// The time named.
        due: Instant,
        /// The time.
        now: Instant,
        /// The permitted delay.
        slack: Nanos,
    },
    /// The device was idle, and the policy, which was holding requests back, was not asked again.
    #[error(
        "the device was idle, and the policy of {hw:?} was to be asked at {} ns and was not \
         by {} ns, with {slack} allowed",
        .due.as_nanos(), .now.as_nanos()
    )]
    NotAsked {
        /// The hardware queue for which it was last asked.
        hw: HwQueue,
        /// The time at which it should have been asked.
        due: Instant,
        /// The time.
        now: Instant,
        /// The permitted delay.
        slack: Nanos,
    },
    /// The queue reported that it was frozen, but was not.
    #[error("the queue is frozen, with {at_device} requests at its device")]
    NotFrozen {
        /// Requests that the device held, or was about to be offered again.
        at_device: u32,
    },
    /// I/Os are in flight and no event will ever come.
    #[error(
        "{in_flight} I/Os in flight, and nothing will ever happen after {} ns",
        .since.as_nanos()
    )]
    Stuck {
        /// The number of I/Os.
        in_flight: u32,
        /// The time of the last event.
        since: Instant,
    },
    /// Events keep coming, and the run does not end.
    #[error("{in_flight} I/Os still in flight after {events} events")]
    Endless {
        /// I/Os in flight.
        in_flight: u32,
        /// Events in the phase.
        events: u64,
    },
    /// The contents of a block are not among the possible ones.
    #[error("what is at sector {sector}: {what}")]
    Contents {
        /// The first sector of the block.
        sector: u64,
        /// The description.
        what: &'static str,
    },
    /// An I/O within the limits was refused.
    #[error("an I/O within the limits was refused: {0}")]
    Refused(Refusal),
    /// All I/Os have ended and the counters do not agree.
    #[error("at rest, not {rule}: {stats:?}")]
    Counters {
        /// The rule that should hold.
        rule: &'static str,
        /// The counters of the queue.
        stats: Box<QueueStats>,
    },
}

fn before(picked: Option<u64>) -> String {
    picked.map_or_else(
        || ", which was not picked".into(),
        |picked| format!(" before that at {picked}, which the policy had picked earlier"),
    )
}
