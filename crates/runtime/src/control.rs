//! Looking at a queue and changing it while it is in use, for callers that can wait.
//!
//! The engine says what is possible and takes the steps; here is the loop around them.

use crate::{Clock, Service};
use blkmq_core::{Nanos, Payload};
use blkmq_engine::attributes::{self, Attribute, AttributeError, SetAttributeError};
use blkmq_engine::{Change, ChangeError, Plan};

impl<P: Payload> Service<P> {
    /// Every attribute of the queue with its present value, in the order of lists.
    #[must_use]
    pub fn attributes(&self) -> Vec<(Attribute, String)> {
        attributes::read_all(&self.queue().snapshot())
    }

    /// The attribute at `path`, as text.
    ///
    /// # Errors
    /// If there is no such attribute.
    pub fn attribute(&self, path: &str) -> Result<String, AttributeError> {
        self.queue().attribute(path)
    }

    /// Sets the attribute at `path` to what `text` says, and waits until that holds. If somebody else is about to
    /// change the queue, waits for that first. Says how long it took in all. I/O may go on meanwhile, and the
    /// calling thread's own need not be reaped; but while the queue is quiesced, this may not return.
    ///
    /// # Errors
    /// If there is no such attribute, or it cannot be set to that.
    pub fn set_attribute(&self, path: &str, text: &str) -> Result<Nanos, SetAttributeError> {
        let begun = self.clock().now();
        let mut patience = Patience::new(self.clock());
        let change = loop {
            match self.queue().set_attribute(path, text) {
                Err(SetAttributeError::Change(ChangeError::Busy)) => patience.wait(),
                result => break result?,
            }
        };
        finish(change, self.clock());
        Ok(self.clock().now() - begun)
    }

    /// Makes the queue up as `to` says, and waits until it is. Says how long that took. What is said about
    /// waiting for [`set_attribute`](Self::set_attribute) holds here as well.
    ///
    /// # Errors
    /// If the plan is impossible or for another device, or somebody else is about to change the queue: then `to`
    /// may no longer be what is wanted.
    pub fn change(&self, to: Plan) -> Result<Nanos, ChangeError> {
        let begun = self.clock().now();
        finish(self.queue().change(to)?, self.clock());
        Ok(self.clock().now() - begun)
    }
}

fn finish<P: Send + 'static>(mut change: Change<P>, clock: Clock) {
    let mut patience = Patience::new(clock);
    while !change.step(clock.now()) {
        patience.wait();
    }
}

/// How to wait for others whose call nobody can wait for: not at once asleep, and never longer than a moment.
struct Patience {
    clock: Clock,
    waits: u32,
}

/// Times to give the CPU away: as long as what is in flight on a fast device takes.
const YIELDS: u32 = 64;
/// The first sleep; as short as timers go. Each one after it is twice as long.
const SHORTEST: Nanos = Nanos::from_micros(50);
/// How often it doubles: up to 1.6 ms, which is little beside a disk's seek.
const DOUBLINGS: u32 = 5;

impl Patience {
    fn new(clock: Clock) -> Self {
        Self { clock, waits: 0 }
    }

    fn wait(&mut self) {
        self.waits += 1;
        match self.waits.checked_sub(YIELDS) {
            None => std::thread::yield_now(),
            Some(slept) => {
                let sleep = Nanos(SHORTEST.0 << slept.min(DOUBLINGS));
                self.clock.sleep_until(self.clock.now() + sleep);
            }
        }
    }
}
