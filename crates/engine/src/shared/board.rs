//! Values that a runner publishes for readers without ever waiting for them: the board of latency goals, and
//! [`Prospect`], the forecast of an elevator for threads that push.
//!
//! Each word of a prospect is an independent hint: it guards no other memory, so loads and stores are relaxed. A thread
//! may see words of two publications; the forecast is then off by the difference between them.

use crate::GroupTree;
use crate::groups::{MAX_GROUPS, micros};
use crate::sync::{Arc, AtomicU16, AtomicU32, AtomicU64, Mutex, Ordering, PoisonError};
use blkmq_core::{GroupIndex, Instant, Nanos, Op, SECTOR_SIZE};
use blkmq_sched::forecast::{CLASSES, Share};
use blkmq_sched::{GoalReport, Goals, Outlook, Taken};

/// The latency goals of a queue, their states, and the bounds on groups without goals.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GoalsStatus {
    /// The goals, sorted by group, reads first.
    pub goals: Vec<GoalReport>,
    /// The bounds on the groups without goals.
    pub taken: Taken,
    /// The time of the controller's last check.
    pub at: Instant,
}

impl GoalsStatus {
    /// A line for each goal, and one for the bounds. `groups` has the names.
    #[must_use]
    pub fn lines(&self, groups: &GroupTree) -> Vec<String> {
        let name = |index: GroupIndex| groups.at(index).map_or("/", |group| &group.name);
        let line = |it: &GoalReport| {
            format!(
                "{} {}={} state={} p99={} windows={} missed={} best={}",
                name(it.group),
                it.kind.word(),
                micros(it.goal),
                it.state.name(),
                micros(it.p99),
                it.windows,
                it.missed,
                micros(it.best),
            )
        };
        let mut lines = Vec::from_iter(self.goals.iter().map(line));
        let shown = |rate: Option<u64>| rate.map_or("max".into(), |rate| rate.to_string());
        let [lighter, equal, heavier] = self.taken.rates.map(shown);
        let depth = shown(self.taken.device_depth.map(u64::from));
        let bytes = |sectors: u32| u64::from(sectors) * u64::from(SECTOR_SIZE);
        let length = shown(self.taken.sectors.map(bytes));
        lines.push(format!(
            "taken length={length} device_depth={depth} lighter={lighter} equal={equal} heavier={heavier}"
        ));
        lines
    }
}

/// Where the state of a queue's goals is published, and the time of the next check.
#[derive(Clone)]
pub(crate) struct Board(Arc<Published>);

struct Published {
    status: Mutex<GoalsStatus>,
    /// When a pass is needed for a check, if none is made before; nanoseconds, `u64::MAX` for never. A timer of the
    /// gate would have to be set in every pass, because each pass clears it.
    next_look: AtomicU64,
    /// The most sectors of a read or a write of a group whose requests are shortened; `u32::MAX` for any number. A
    /// submitter reads it when it sends its plug, and divides longer I/Os from then on.
    ///
    /// The words of the board are hints from here on, and guard nothing: an I/O is valid whether or not it was divided by
    /// the latest value. So accesses are relaxed.
    longest: AtomicU32,
    /// A bit for each group whose requests are shortened. Set together with the groups.
    shortened: [AtomicU64; SHORTENED],
}

/// The number of words with a bit for each group.
const SHORTENED: usize = MAX_GROUPS as usize / 64 + 1;

impl Board {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Published {
            status: Mutex::new(GoalsStatus::default()),
            next_look: AtomicU64::new(u64::MAX),
            longest: AtomicU32::new(u32::MAX),
            shortened: std::array::from_fn(|_| AtomicU64::new(0)),
        }))
    }

    /// The most sectors of a read or a write of a group whose requests are shortened; `u32::MAX` for any number.
    #[inline]
    pub(crate) fn longest(&self) -> u32 {
        self.0.longest.load(Ordering::Relaxed)
    }

    /// Returns whether the requests of `group` are shortened.
    pub(crate) fn shortens(&self, group: GroupIndex) -> bool {
        let word = self.0.shortened.get(usize::from(group.0) / 64);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (group.0 % 64) & 1 == 1)
    }

    pub(crate) fn set_longest(&self, sectors: Option<u32>) {
        self.0.longest.store(sectors.unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    pub(crate) fn set_shortened(&self, goals: &Goals) {
        for (word, of) in self.0.shortened.iter().enumerate() {
            let bit = |at: u16| goals.shortens(GroupIndex(word as u16 * 64 + at));
            let bits = (0..64).fold(0, |bits, at| bits | u64::from(bit(at)) << at);
            of.store(bits, Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self) -> GoalsStatus {
        self.0.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// When a pass is needed for a check; `None` for never. A hint, like the deadline of a gate.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        match self.0.next_look.load(Ordering::Acquire) {
            u64::MAX => None,
            ns => Some(Instant::from_nanos(ns)),
        }
    }

    pub(crate) fn set_next_look(&self, at: Option<Instant>) {
        self.0.next_look.store(at.map_or(u64::MAX, Instant::as_nanos), Ordering::Release);
    }

    /// Publishes the state, unless a reader is using it at this moment: the next check comes soon.
    pub(crate) fn publish(&self, now: Instant, goals: &Goals) {
        if let Ok(mut status) = self.0.status.try_lock() {
            status.goals.clear();
            status.goals.extend(goals.reports());
            status.taken = goals.taken();
            status.at = now;
        }
    }
}

/// The last published forecast.
pub(crate) struct Prospect {
    held: AtomicU64,
    at_device: AtomicU32,
    clear: AtomicU64,
    device: AtomicU64,
    costs: [AtomicU64; CLASSES],
    /// By group and direction.
    shares: Box<[AtomicU16]>,
}

/// Stores only a changed value, so that readers keep the cache line otherwise.
fn store(word: &AtomicU64, value: u64) {
    if word.load(Ordering::Relaxed) != value {
        word.store(value, Ordering::Relaxed);
    }
}

fn place(group: GroupIndex, writes: bool) -> usize {
    2 * usize::from(group.0) + usize::from(writes)
}

impl Prospect {
    /// A forecast for the groups with numbers below `groups`.
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

    /// How long an I/O that arrives at `now` is expected to take, with `at_device` requests at the device, and how much
    /// of that is its own device time.
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
