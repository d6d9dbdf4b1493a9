//! Reports stalls to an observer: I/Os that a client has been waiting for too long, while it is still waiting.
//!
//! Linux reports hung tasks, this module stalled clients. Each client checks the clock when it is otherwise idle,
//! before it yields its CPU, so the check costs time only there. Without an observer it is one comparison. A report is
//! repeated after twice the time, and so on; when a completion arrives at last, that is reported as well.
//!
//! It cancels nothing. A stall ends when the device completes an I/O or the limits of a group permit one.

use blkmq_core::{Instant, Nanos, SubmitterId};
use blkmq_engine::{Outstanding, Queue, Submitter};
use std::fmt;
use std::sync::Arc;

/// The default time without a completion before the first report.
pub const STALL_AFTER: Nanos = Nanos::from_secs(10);
/// The most requests that a report names.
const NAMED: usize = 4;

/// A report to an observer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A waiting client has received no completion for a while.
    Stalled(Stall),
    /// A client has received a completion after a stall was reported.
    Resumed(Resumed),
}

/// A client that receives no completions.
#[derive(Clone, Debug)]
pub struct Stall {
    /// The number of the client.
    pub submitter: SubmitterId,
    /// The number of I/Os that it has in flight.
    pub outstanding: u32,
    /// How many of them are held back by the limits of groups.
    pub throttled: u32,
    /// When the first of the throttled I/Os may proceed; `None` if none is throttled.
    pub until: Option<Instant>,
    /// How long the client has received no completion.
    pub waited: Nanos,
    /// The oldest requests of the whole queue, which may include the client's own.
    pub held: Vec<Outstanding>,
    /// The time of the report.
    pub at: Instant,
}

/// A client that has received a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resumed {
    /// The number of the client.
    pub submitter: SubmitterId,
    /// How long the client had received no completion.
    pub waited: Nanos,
}

/// A span in seconds.
struct Seconds(Nanos);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} s", self.0.0 / 1_000_000_000, self.0.0 / 100_000_000 % 10)
    }
}

impl fmt::Display for Stall {
    /// One line, plus one for each named request; no newline at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { submitter, outstanding, throttled, until, waited, held, at } = self;
        write!(f, "submitter {}: {outstanding} outstanding for {}", submitter.0, Seconds(*waited))?;
        if *throttled > 0 {
            write!(f, ", {throttled} of them wait for the limits of their group")?;
            if let Some(until) = until {
                write!(f, " (the next may go in {})", Seconds(*until - *at))?;
            }
        }
        held.iter().try_for_each(|one| write!(f, "\n  {}", one.at(*at)))
    }
}

impl fmt::Display for Resumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "submitter {}: goes on after {}", self.submitter.0, Seconds(self.waited))
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stalled(stall) => stall.fmt(f),
            Self::Resumed(resumed) => resumed.fmt(f),
        }
    }
}

/// A callback for stalls. It runs on the thread of the waiting client, so it should return quickly.
pub type Observer = Arc<dyn Fn(&Event) + Send + Sync>;

/// A service's settings for its clients' reports.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) observer: Option<Observer>,
    pub(crate) after: Nanos,
}

impl Default for Settings {
    fn default() -> Self {
        Self { observer: None, after: STALL_AFTER }
    }
}

/// One client's stalls.
pub(crate) struct Stalls<P> {
    settings: Settings,
    /// For the list of the oldest requests.
    queue: Queue<P>,
    /// The start of the time without a completion; `None` until the first check after a completion.
    since: Option<Instant>,
    /// The number of completions at that time.
    had: u64,
    /// Reports of the current stall.
    said: u32,
    /// When the next report is due.
    next: Instant,
}

impl<P> fmt::Debug for Stalls<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stalls").field("since", &self.since).finish_non_exhaustive()
    }
}

impl<P: Send + 'static> Stalls<P> {
    pub(crate) fn new(settings: Settings, queue: Queue<P>) -> Self {
        Self { settings, queue, since: None, had: 0, said: 0, next: Instant::ZERO }
    }

    /// The client's queue.
    pub(crate) fn queue(&self) -> &Queue<P> {
        &self.queue
    }

    /// Notes that a completion has arrived.
    #[inline]
    pub(crate) fn came(&mut self, now: Instant, submitter: &Submitter<P>) {
        if self.said > 0 {
            self.resumed(now, submitter.id());
        }
        self.since = None;
    }

    #[cold]
    fn resumed(&mut self, now: Instant, submitter: SubmitterId) {
        self.said = 0;
        if let (Some(since), Some(observer)) = (self.since, &self.settings.observer) {
            observer(&Event::Resumed(Resumed { submitter, waited: now - since }));
        }
    }

    /// Notes that the client still waits at `now`, and that no completion has arrived since the last call. Returns when
    /// it must be called again at the latest, or [`Instant::MAX`].
    #[inline]
    pub(crate) fn waiting(&mut self, now: Instant, submitter: &Submitter<P>) -> Instant {
        if self.settings.observer.is_none() || submitter.outstanding() == 0 {
            return Instant::MAX;
        }
        let had = submitter.taken_back();
        if self.had != had {
            // A completion arrived while the client was not waiting.
            self.came(now, submitter);
        }
        match self.since {
            None => {
                (self.since, self.had) = (Some(now), had);
                self.next = now + self.settings.after;
            }
            Some(since) if now >= self.next => self.report(now, since, submitter),
            Some(_) => {}
        }
        self.next
    }

    #[cold]
    fn report(&mut self, now: Instant, since: Instant, submitter: &Submitter<P>) {
        let waited = now - since;
        self.said += 1;
        // The next report is due when the wait is twice as long.
        self.next = now + Nanos(waited.0.max(1));
        let (throttled, until) = submitter.throttled();
        let stall = Stall {
            submitter: submitter.id(),
            outstanding: submitter.outstanding(),
            throttled,
            until,
            waited,
            held: self.queue.outstanding(now, NAMED),
            at: now,
        };
        if let Some(observer) = &self.settings.observer {
            observer(&Event::Stalled(stall));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Op;
    use blkmq_device::{MachineShape, registry};
    use blkmq_engine::{Config, Io};
    use std::sync::Mutex;

    fn at(s: u64) -> Instant {
        Instant::ZERO + Nanos::from_secs(s)
    }

    /// The reports about a client that asks each second, with a read in flight since 100 s and another since 101 s.
    #[test]
    fn a_stall_is_reported_ever_more_seldom_and_its_end_once() {
        let machine = MachineShape { cpus: 1, nodes: 1 };
        let device = "null,irqmode=2,completion_nsec=3600000000000,hw_queue_depth=1";
        let config: Config<u64> = registry::parse(device, &machine).unwrap().config();
        let queue = Queue::new(Config { depth: 2, nr_requests: Some(4), ..config }).unwrap();
        let mut submitter = queue.submitter().unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let observer: Observer = {
            let said = Arc::clone(&said);
            Arc::new(move |event: &Event| said.lock().unwrap().push(event.to_string()))
        };
        let settings = Settings { observer: Some(observer), after: Nanos::from_secs(10) };
        let mut stalls = Stalls::new(settings, queue);
        assert_eq!(stalls.waiting(at(1), &submitter), Instant::MAX, "it waits for nothing");
        submitter.push(at(100), Io::new(Op::Read, 4096, 8, 1, 0)).unwrap();
        submitter.flush(at(100));
        submitter.push(at(101), Io::new(Op::Read, 0, 8, 1, 0)).unwrap();
        submitter.flush(at(101));
        assert_eq!(stalls.waiting(at(101), &submitter), at(111));
        for second in 102..200 {
            let _ = stalls.waiting(at(second), &submitter);
        }
        stalls.came(at(200), &submitter);
        stalls.came(at(201), &submitter);
        let said = said.lock().unwrap();
        let first: Vec<&str> = said[0].lines().collect();
        assert_eq!(
            first,
            [
                "submitter 0: 2 outstanding for 10.0 s",
                "  read of 8 sectors at 4096, thread 0: at the device, for 11.0 s",
                "  read of 8 sectors at 0, thread 0: in the elevator, for 10.0 s"
            ]
        );
        let firsts: Vec<&str> = said.iter().filter_map(|text| text.lines().next()).collect();
        assert_eq!(
            firsts[1..],
            [
                "submitter 0: 2 outstanding for 20.0 s",
                "submitter 0: 2 outstanding for 40.0 s",
                "submitter 0: 2 outstanding for 80.0 s",
                "submitter 0: goes on after 99.0 s"
            ]
        );
    }
}
