//! The end of a queue: requests that are still on their way end here, and the payloads of tokens that do not come
//! back are leaked instead of freed (decision 0009).

use crate::dispatch::engine::Engine;
use crate::shared::lasting::Lasting;
#[cfg(feature = "compare")]
use crate::shared::shard::Shard;
use crate::submission::parts::Parts;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
// A count and no protocol. It is the same under the model checkers: their atomics cannot be in a static.
use crate::sync::GlobalCount;

static LEAKED: GlobalCount = GlobalCount::new(0);

/// Bios of this process whose payloads were leaked, because their queue went away before the device had given the
/// requests back: the device kept the requests, or forgot them. 0 unless a device is at fault.
///
/// The payload of such a bio is neither dropped nor reused, so that a device, or the kernel behind it, may go on
/// writing to it.
#[must_use]
pub fn leaked_bios() -> u64 {
    LEAKED.load()
}

impl<P> Drop for Engine<P> {
    /// No submitter is left, since each of them holds the queue.
    ///
    /// # Panics
    /// If a device does, after everything else has been given back.
    fn drop(&mut self) {
        let mut panic = None;
        for (gate, hctx) in self.pumps.iter_mut().zip(&self.hub.hctxs) {
            let pump = gate.get_mut();
            // A device may panic here. The requests that it has given back by then are in `held`, and the rest is
            // leaked.
            let mut held = Vec::new();
            let given_back = catch_unwind(AssertUnwindSafe(|| pump.abandon(&mut held)));
            panic = panic.or(given_back.err());
            for rq in held {
                hctx.tags.put_abandoned(rq.tag);
                rq.into_head().orphan();
            }
            pump.send_rest(&self.hub.lasting);
        }
        #[cfg(feature = "compare")]
        self.hub.shards.iter().for_each(Shard::orphan_parked);
        for gate in &mut self.elevators {
            let runner = gate.get_mut();
            runner.end_all();
            runner.completions.send_rest(&self.hub.lasting);
        }
        // A second panic would abort, and hide the first.
        if let Some(panic) = panic
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

impl<P> Drop for Lasting<P> {
    fn drop(&mut self) {
        let leaked = self.table.settle(self.seats.drain().map(|Parts { receiver, .. }| receiver));
        LEAKED.add(leaked);
    }
}
