//! Bursts of new queues (`spec/bfq.md` section 13): a build or a boot is not an application that a user waits for. Eight
//! queues of a group, each created within 180 ms of the one before it, are a large burst; none of them is raised.

use super::QueueRef;
use blkmq_core::{Instant, Nanos};

/// The number of queues in a large burst.
const LARGE: usize = 8;
/// Queues created further apart do not belong to one burst.
const APART: Nanos = Nanos::from_millis(180);
/// A queue that was idle for this long no longer belongs to a burst.
pub(super) const FORGIVEN: Nanos = Nanos::from_secs(10);

/// Queues of a burst.
type Members = [Option<QueueRef>; LARGE];

/// The burst in progress.
#[derive(Debug)]
pub(super) struct Burst {
    /// Its queues, until it is large and each of them is marked.
    members: Members,
    size: usize,
    large: bool,
    last: Instant,
    level: u32,
}

impl Burst {
    pub(super) const fn new() -> Self {
        Self { members: [None; LARGE], size: 0, large: false, last: Instant::ZERO, level: 0 }
    }

    /// Begins a new burst, with `first` if it counts.
    fn restart(&mut self, level: u32, first: Option<QueueRef>) {
        self.members = [first, None, None, None, None, None, None, None];
        self.size = usize::from(first.is_some());
        (self.large, self.level) = (false, level);
    }

    /// Removes `gone`, which is being freed.
    pub(super) fn leave(&mut self, gone: QueueRef) {
        for at in 0..self.size {
            if self.members[at] == Some(gone) {
                self.size -= 1;
                self.members[at] = self.members[self.size].take();
                return;
            }
        }
    }

    /// Accounts for a queue that has been created on `level`; `alone`: no queue is busy. Returns the queues that are found
    /// to be part of a large burst.
    pub(super) fn join(&mut self, new: QueueRef, level: u32, alone: bool, now: Instant) -> Members {
        let mut marked = [None; LARGE];
        if self.size == 0 && !self.large && !alone {
            return marked;
        }
        let apart = now > self.last + APART;
        self.last = now;
        if apart || level != self.level {
            self.restart(level, alone.then_some(new));
        } else if self.large {
            marked[0] = Some(new);
        } else {
            self.members[self.size] = Some(new);
            self.size += 1;
            if self.size == LARGE {
                (self.large, self.size) = (true, 0);
                marked = core::mem::take(&mut self.members);
            }
        }
        marked
    }
}

#[cfg(test)]
mod tests {
    use super::super::queues::Queues;
    use super::*;

    #[test]
    fn a_queue_that_is_freed_lowers_the_count() {
        let mut queues = Queues::new(4);
        let links = [0; 4].map(|_| {
            let q = queues.add(Instant::ZERO);
            queues.link(q)
        });
        let mut burst = Burst::new();
        burst.restart(0, Some(links[0]));
        burst.members[1] = Some(links[1]);
        burst.size = 2;
        burst.leave(links[0]);
        assert_eq!((burst.size, burst.members[0]), (1, Some(links[1])));
        burst.leave(links[3]);
        assert_eq!(burst.size, 1, "it was no member");
    }
}
