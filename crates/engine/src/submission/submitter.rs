//! A submitter: one thread's way into a queue and back. It corresponds to the kernel's software queue (ctx).
//!
//! It owns its bio cells (its credit), its plug and its ends of two rings; pushing and reaping touch nothing that
//! other threads write. Contention begins, if at all, at [`flush`](Submitter::flush).

use self::park::Rest;
use super::parts::Parts;
use super::plug::{PLUG_REQUESTS, Plug};
use super::split::Splits;
use super::throttle::Throttle;
use crate::DeviceQueue;
use crate::dispatch::engine::Engine;
use crate::reconfiguration::root::Root;
use crate::shared::shard::Shard;
use crate::shared::stats::SubmitterCounters;
use crate::submission::follow::Follow;
use crate::submission::holdup::Holdup;
use crate::sync::{Arc, yield_now};
use blkmq_core::{HwQueue, Instant, SubmitterId};
use crossbeam_utils::CachePadded;
use std::fmt;

mod cancel;
mod deadline;
mod departure;
mod distress;
mod flush;
#[cfg(feature = "compare")]
mod interrupted;
mod limited;
#[cfg(feature = "compare")]
mod locked;
mod park;
mod push;
mod reap;
mod reaped;
mod throttled;

use distress::Health;
pub use flush::Awaited;
use push::plain_sizes;

/// One thread's handle to a queue.
///
/// # Contract
///
/// I/Os are taken in the order of [`push`](Self::push) and may complete in any order. An I/O that exceeds a limit of
/// the device is divided, and completes when all its parts have (`spec/framework.md` section 13): it costs a credit
/// for each part, and its payload must allow it ([`split_off`](blkmq_core::Payload::split_off)). A pushed I/O is sent
/// at the next [`flush`](Self::flush) at the latest. With [`PumpMode::Inline`](crate::PumpMode::Inline) I/Os make
/// progress while any submitter of the queue submits, polls, or is parked as [`prepare_park`](Self::prepare_park)
/// allows: a thread that leaves for a long computation with I/Os in flight should flush first and expect to find them
/// unfinished when it comes back.
///
/// Dropping a submitter cancels the I/Os that it has not flushed. With I/Os in flight, its number and its cells come
/// back into use when those are done; no memory is freed that a device may still write to.
pub struct Submitter<P> {
    root: Arc<Root<P>>,
    /// The queue as this submitter last knew it.
    q: Arc<Engine<P>>,
    /// `None` only while the submitter is being dropped.
    parts: Option<Parts>,
    plug: Plug,
    throttle: Throttle,
    shard: usize,
    depth: u32,
    follow: Follow,
    holdup: Holdup,
    /// By operation: the most sectors that are taken whole, as one segment. 0 for a flush, which has no sectors and
    /// takes the rare path.
    plain: [u32; 5],
    /// The most sectors of a read or a write of a group whose requests are shortened for a latency goal.
    longest: u32,
    splits: Splits<P>,
    rest: Rest,
    health: Health,
    tally: Arc<CachePadded<SubmitterCounters>>,
}

impl<P> fmt::Debug for Submitter<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submitter").field("depth", &self.depth).finish_non_exhaustive()
    }
}

impl<P: Send> Submitter<P> {
    pub(crate) fn new(root: Arc<Root<P>>, parts: Parts) -> Self {
        let q = root.current();
        let depth = parts.credit.depth();
        let tally = Arc::clone(&q.hub.lasting.tallies[usize::from(parts.id.0)]);
        let shard = q.hub.shard_of(parts.hw);
        let follow = Follow::new(parts.id, q.hub.shards[shard].lead());
        let longest = u32::MAX;
        let plain = plain_sizes(&q.hub.limits, longest);
        Self {
            root,
            q,
            parts: Some(parts),
            plug: Plug::new(PLUG_REQUESTS),
            throttle: Throttle::default(),
            shard,
            depth,
            follow,
            holdup: Holdup::default(),
            plain,
            longest,
            splits: Splits::new(),
            rest: Rest::default(),
            health: Health::Sound,
            tally,
        }
    }

    /// Gives the submitter a lane to the device, made by [`DeviceQueue::another`](crate::DeviceQueue::another). A submitter of
    /// a number that was registered before has it from then on.
    ///
    /// # Panics
    /// If it has one, as every submitter without lanes of their own ([`PumpMode::Owner`](crate::PumpMode)) has.
    pub fn install_lane(&mut self, lane: Box<dyn DeviceQueue<P>>) {
        assert!(!self.parts().has_lane, "the submitter has a lane, perhaps with requests");
        self.parts().has_lane = true;
        // Held because a pump is entered here under the number of the thread that changes the queue, and so that the queue
        // is not replaced until the lane is in it.
        let _state = self.root.change_state();
        let q = self.root.current();
        // A thread that looks after all lanes leaves this one soon. Without an owner it has no requests.
        while !q.hub.lasting.control.is_poisoned() {
            if let Some(mut pump) = q.pump_gate(self.lane()).enter(q.hub.changer()) {
                pump.install((lane, Instant::ZERO));
                return;
            }
            yield_now();
        }
    }

    fn parts(&mut self) -> &mut Parts {
        self.parts.as_mut().expect("parts are there until the submitter is dropped")
    }

    fn shard(&self) -> &Shard {
        &self.q.hub.shards[self.shard]
    }

    /// The submitter's number.
    #[must_use]
    pub fn id(&self) -> SubmitterId {
        self.parts.as_ref().expect("parts are there until the submitter is dropped").id
    }

    /// The hardware queue to which the submitter maps.
    #[must_use]
    pub fn hw(&self) -> HwQueue {
        self.parts.as_ref().expect("parts are there until the submitter is dropped").hw
    }

    /// The lane that the submitter pumps first.
    fn lane(&self) -> HwQueue {
        self.parts.as_ref().expect("parts are there until the submitter is dropped").lane
    }

    /// The submitter's credit: the most bios that it may have in flight. Each I/O is a bio, or several if it is
    /// divided.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Credit in use: bios taken and not yet reaped, plugged ones included. Each part of a divided I/O counts until
    /// it is reaped, so this can exceed [`outstanding`](Self::outstanding).
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.depth - self.parts.as_ref().map_or(0, |parts| parts.credit.left())
    }

    /// I/Os taken and not yet reaped, plugged ones included: completions still to come.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.in_flight() - self.splits.extra()
    }

    /// Requests in the plug, and I/Os that have merged in plugs of this submitter so far. For programs that show the
    /// effect of each [`push`](Self::push).
    #[must_use]
    pub fn plugged(&self) -> (u32, u64) {
        (self.plug.len() as u32, self.tally.plug_merges.get())
    }
}
