//! The schedule of turns in virtual time: CPUs, pump threads, and the operator of the queue.
//!
//! It does not know the work of a turn. A turn that is put forward or back leaves an old event in the agenda, which
//! does not count any more.

use crate::agenda::Agenda;
use blkmq_core::{HwQueue, Instant, Nanos};

/// The next turn of a participant, unless it was rescheduled since.
#[derive(Clone, Copy)]
struct Event {
    who: Who,
    epoch: u64,
}

/// The participants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    Cpu(usize),
    /// A pump thread.
    Pump(HwQueue),
    /// The operator, which changes the queue.
    Operator,
}

/// The time of a participant's next turn.
#[derive(Clone, Copy, Default)]
struct Scheduled {
    at: Option<Instant>,
    /// Events of earlier epochs do not count any more.
    epoch: u64,
}

/// The virtual time, the number of past turns, and the turns to come.
pub(crate) struct Timeline {
    now: Instant,
    agenda: Agenda<Event>,
    cpus: Vec<Scheduled>,
    pumps: Vec<Scheduled>,
    operator: Scheduled,
    events: u64,
}

impl Timeline {
    /// A timeline at time `now`, without any turn scheduled.
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

    /// The virtual time.
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

    /// The participant with the next turn; the time advances to that turn.
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

    /// Wakes the sleeping `who`, which takes `takes`. A participant already on its way comes no later.
    pub(crate) fn wake(&mut self, who: Who, takes: Nanos) {
        let at = self.now + takes;
        if self.scheduled(who).at.is_none_or(|before| before > at) {
            self.schedule(who, Some(at));
        }
    }
}
