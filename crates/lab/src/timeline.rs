//! Who has a turn when, in virtual time: CPUs, pump threads, and whoever changes the queue.
//!
//! It knows nothing of what they do. A turn that is put forward or back leaves an old event in the agenda, which
//! does not count any more.

use crate::agenda::Agenda;
use blkmq_core::{HwQueue, Instant, Nanos};

/// Somebody's next turn, unless it was rescheduled since.
#[derive(Clone, Copy)]
struct Event {
    who: Who,
    epoch: u64,
}

/// Who has turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    Cpu(usize),
    /// A pump thread.
    Pump(HwQueue),
    /// Whoever changes the queue.
    Operator,
}

/// When somebody has its next turn.
#[derive(Clone, Copy, Default)]
struct Scheduled {
    at: Option<Instant>,
    /// Events of earlier epochs do not count any more.
    epoch: u64,
}

/// What happened so far is a time and a number; the rest is still to come.
pub(crate) struct Timeline {
    now: Instant,
    agenda: Agenda<Event>,
    cpus: Vec<Scheduled>,
    pumps: Vec<Scheduled>,
    operator: Scheduled,
    events: u64,
}

impl Timeline {
    /// It is `now`, and no turn is scheduled.
    pub(crate) fn new(now: Instant, cpus: usize, pumps: u16) -> Self {
        Self {
            now,
            agenda: Agenda::new(),
            cpus: vec![Scheduled::default(); cpus],
            pumps: vec![Scheduled::default(); pumps.into()],
            operator: Scheduled::default(),
            events: 0,
        }
    }

    /// The time.
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// Turns so far.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    fn scheduled(&mut self, who: Who) -> &mut Scheduled {
        match who {
            Who::Cpu(at) => &mut self.cpus[at],
            Who::Pump(hw) => &mut self.pumps[usize::from(hw.0)],
            Who::Operator => &mut self.operator,
        }
    }

    /// Who has the next turn; it has become that time.
    pub(crate) fn next_turn(&mut self) -> Option<Who> {
        loop {
            let (at, Event { who, epoch }) = self.agenda.pop()?;
            if self.scheduled(who).epoch == epoch {
                self.now = at;
                self.events += 1;
                return Some(who);
            }
        }
    }

    /// The next turn of `who` is at `at`, or when it is woken, and at no other time.
    pub(crate) fn schedule(&mut self, who: Who, at: Option<Instant>) {
        let scheduled = self.scheduled(who);
        scheduled.at = at;
        scheduled.epoch += 1;
        let epoch = scheduled.epoch;
        if let Some(at) = at {
            self.agenda.enter(at, Event { who, epoch });
        }
    }

    /// `who` sleeps and is woken, which takes so long. Who is on the way comes no later.
    pub(crate) fn wake(&mut self, who: Who, takes: Nanos) {
        let at = self.now + takes;
        if self.scheduled(who).at.is_none_or(|before| before > at) {
            self.schedule(who, Some(at));
        }
    }
}
