//! [`Prospect`]: the forecast of an elevator as its runner has published it, for threads that push.
//!
//! Each word is an independent hint: no other memory is read on the strength of it, so loads and stores are relaxed. A
//! thread may see words of two publications; the forecast is then off by what happened between them.

use crate::sync::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use blkmq_core::{GroupIndex, Instant, Nanos, Op};
use blkmq_sched::Outlook;
use blkmq_sched::forecast::{CLASSES, Share};

/// The forecast as published last.
pub(crate) struct Prospect {
    held: AtomicU64,
    at_device: AtomicU32,
    clear: AtomicU64,
    device: AtomicU64,
    costs: [AtomicU64; CLASSES],
    /// By group and direction.
    shares: Box<[AtomicU16]>,
}

/// A store that does not take the line from its readers if nothing changes.
fn store(word: &AtomicU64, value: u64) {
    if word.load(Ordering::Relaxed) != value {
        word.store(value, Ordering::Relaxed);
    }
}

fn place(group: GroupIndex, writes: bool) -> usize {
    2 * usize::from(group.0) + usize::from(writes)
}

impl Prospect {
    /// For groups with numbers below `groups`.
    pub(crate) fn new(groups: u16) -> Self {
        let shares = 0..2 * usize::from(groups);
        Self {
            held: AtomicU64::new(0),
            at_device: AtomicU32::new(0),
            clear: AtomicU64::new(0),
            device: AtomicU64::new(0),
            costs: std::array::from_fn(|_| AtomicU64::new(0)),
            shares: shares.map(|_| AtomicU16::new(Share::ALL.parts())).collect(),
        }
    }

    pub(crate) fn publish(&self, outlook: &Outlook) {
        store(&self.held, outlook.held.0);
        self.at_device.store(outlook.at_device, Ordering::Relaxed);
        store(&self.clear, outlook.clear.as_nanos());
        store(&self.device, outlook.device.0);
        for (word, cost) in self.costs.iter().zip(&outlook.costs) {
            store(word, cost.0);
        }
    }

    pub(crate) fn publish_share(&self, group: GroupIndex, writes: bool, share: Share) {
        if let Some(word) = self.shares.get(place(group, writes)) {
            word.store(share.parts(), Ordering::Relaxed);
        }
    }

    /// How long an I/O takes that arrives at `now`, where `at_device` requests are at the device, and how much of that is its
    /// own device time.
    pub(crate) fn expects(
        &self,
        now: (Instant, u32),
        group: GroupIndex,
        op: Op,
        sectors: u32,
    ) -> (Nanos, Nanos) {
        let outlook = Outlook {
            held: Nanos(self.held.load(Ordering::Relaxed)),
            at_device: self.at_device.load(Ordering::Relaxed),
            clear: Instant::from_nanos(self.clear.load(Ordering::Relaxed)),
            device: Nanos(self.device.load(Ordering::Relaxed)),
            costs: std::array::from_fn(|at| Nanos(self.costs[at].load(Ordering::Relaxed))),
        };
        let share = self.shares.get(place(group, op.is_write()));
        let share = share.map_or(Share::ALL, |word| Share::of_parts(word.load(Ordering::Relaxed)));
        (outlook.expects(now, share, op, sectors), outlook.own(op, sectors))
    }
}
