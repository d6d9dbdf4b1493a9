//! The state that stays from the creation of a queue to its end, however often the queue is rebuilt.

use crate::groups::{Ledger, Meters};
use crate::shared::slots::BioSender;
use crate::shared::stats::SubmitterCounters;
use crate::shared::tags::Membership;
use crate::submission::seats::Seats;
use crate::sync::{Arc, Attendance, Control, Mutex};
use crate::{BioTable, Host, PumpMode};
use crossbeam_utils::CachePadded;

/// Counters behind those of the pump threads: for a thread that changes the queue, and for a thread that keeps a run.
pub(crate) const OTHER_TALLIES: u16 = 2;

pub(crate) struct Lasting<P> {
    pub(crate) table: BioTable<P>,
    pub(crate) senders: Box<[BioSender]>,
    /// By submitter.
    pub(crate) attendance: Box<[CachePadded<Attendance>]>,
    pub(crate) host: Box<dyn Host>,
    pub(crate) tallies: Box<[Arc<CachePadded<SubmitterCounters>>]>,
    /// Counters of pump threads, by hardware queue; behind them those of a thread that changes the queue, and of a
    /// [`Run`](crate::Run).
    pub(crate) pump_tallies: Box<[CachePadded<SubmitterCounters>]>,
    pub(crate) control: Control,
    /// The limits of groups.
    pub(crate) meters: Meters,
    /// The statistics of groups.
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) pump_mode: PumpMode,
    /// The private state of submitters that are not registered.
    pub(crate) seats: Seats,
    /// Held by a thread that ends the remaining I/Os of a poisoned queue (`reconfiguration/salvage.rs`).
    pub(crate) salvage: Mutex<()>,
    /// Its place among the queues with which it shares its tags, if it shares them.
    pub(crate) membership: Option<Membership>,
}
