//! A scripted device: the fate of each attempt, its time, and the answer to `timed_out`. The device records when the
//! engine asks.

use blkmq_core::{HwQueue, Instant, IoError, IoResult, Nanos, Tag};
use blkmq_engine::{
    BioTable, Busy, Config, DeviceQueue, DeviceShape, Enqueued, Expiry, Finished, Inflight, Verdict,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// The fate of one attempt to hand a request to the device.
#[derive(Clone, Copy, Debug)]
pub enum Attempt {
    Refuse(Busy),
    Inline(IoResult),
    Take(Fate),
}

/// The fate of a request at the device.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    /// The request ends this much later; `Nanos(u64::MAX)` for never.
    pub after: Nanos,
    pub end: End,
    /// How often the device resets the timer before it gives up the request.
    pub resets: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Answer(Verdict),
    /// The request is finished, but the device notices only when it is asked: an interrupt was missed.
    Missed(IoResult),
}

impl Fate {
    pub const LOST: Self =
        Self { after: Nanos(u64::MAX), end: End::Answer(Verdict::Done(Ok(()))), resets: 0 };

    pub fn after(after: Nanos, verdict: Verdict) -> Self {
        Self { after, end: End::Answer(verdict), resets: 0 }
    }
}

pub fn ok(after: Nanos) -> Attempt {
    Attempt::Take(Fate::after(after, Verdict::Done(Ok(()))))
}

/// The device's answer to the query for its next event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Says {
    /// The true time.
    When,
    /// `None`: it cannot tell.
    Nothing,
    /// `Instant::MAX`: it will interrupt, so there is no event to wait for.
    Never,
}

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The device returned the request before its deadline.
    Reaped,
    /// The device returned the request in the very turn in which its deadline passed.
    Tie,
    /// The request timed out.
    TimedOut,
    /// The request had finished, as the device noticed when it was asked.
    Found,
    /// The device wanted the request again later.
    Requeued,
    RequeuedTail,
    /// The device answered within the call and never held the request.
    Inline,
}

/// One event that the device saw or caused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Taken { sector: u64, at: Instant },
    Refused { sector: u64, at: Instant },
    Asked { sector: u64, at: Instant },
    Over { sector: u64, outcome: Outcome, result: IoResult },
}

type Attempts = Box<dyn FnMut(u64) -> Attempt + Send>;

/// The script of a test, and its log.
pub struct Book {
    attempts: Attempts,
    pub says: Says,
    pub events: Vec<Event>,
}

#[derive(Clone)]
pub struct Oracle(Arc<Mutex<Book>>);

impl Oracle {
    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().expect("a test that panics is over")
    }

    /// The times at which the device was asked about the request at `sector`.
    pub fn asked(&self, sector: u64) -> Vec<Instant> {
        let of = |event: &Event| match event {
            Event::Asked { sector: s, at } if *s == sector => Some(*at),
            _ => None,
        };
        self.book().events.iter().filter_map(of).collect()
    }

    /// The requests that the device took, and when.
    pub fn taken(&self) -> Vec<(u64, Instant)> {
        let of = |event: &Event| match event {
            Event::Taken { sector, at } => Some((*sector, *at)),
            _ => None,
        };
        self.book().events.iter().filter_map(of).collect()
    }

    /// How the attempts ended, in order.
    pub fn outcomes(&self) -> Vec<Outcome> {
        let of = |event: &Event| match event {
            Event::Over { outcome, .. } => Some(*outcome),
            _ => None,
        };
        self.book().events.iter().filter_map(of).collect()
    }
}

struct Held {
    rq: Inflight,
    until: Instant,
    end: End,
    resets: u32,
    deadline: Instant,
}

struct Fated {
    oracle: Oracle,
    timeout: Nanos,
    held: Vec<Held>,
    now: Instant,
}

impl Fated {
    /// Logs a request that leaves the device.
    fn over(&self, rq: &Inflight, outcome: Outcome, result: IoResult) {
        self.oracle.book().events.push(Event::Over { sector: rq.sector(), outcome, result });
    }
}

impl<P> DeviceQueue<P> for Fated {
    fn enqueue(&mut self, now: Instant, _: &BioTable<P>, rq: Inflight) -> Enqueued {
        assert!(now >= self.now, "time runs backwards");
        self.now = now;
        assert!(self.held.iter().all(|held| held.rq.tag() != rq.tag()), "its tag is in use");
        let sector = rq.sector();
        let mut book = self.oracle.book();
        let attempt = (book.attempts)(sector);
        if let Attempt::Refuse(why) = attempt {
            book.events.push(Event::Refused { sector, at: now });
            return Enqueued::Busy(rq, why);
        }
        book.events.push(Event::Taken { sector, at: now });
        drop(book);
        match attempt {
            Attempt::Inline(result) => {
                self.over(&rq, Outcome::Inline, result);
                return Enqueued::Done(rq, result);
            }
            Attempt::Take(Fate { after, end, resets }) => {
                let (until, deadline) = (now + after, now + self.timeout);
                self.held.push(Held { rq, until, end, resets, deadline });
            }
            Attempt::Refuse(_) => unreachable!("answered above"),
        }
        Enqueued::Accepted
    }

    fn reap(&mut self, now: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        self.now = now;
        let ready = |held: &mut Held| held.until <= now && matches!(held.end, End::Answer(_));
        let ready: Vec<Held> = self.held.extract_if(.., ready).collect();
        for Held { rq, end, deadline, .. } in ready {
            let End::Answer(verdict) = end else { unreachable!("sorted out above") };
            let (outcome, result) = match verdict {
                Verdict::Done(result) if deadline <= now => (Outcome::Tie, result),
                Verdict::Done(result) => (Outcome::Reaped, result),
                Verdict::Requeue => (Outcome::Requeued, Ok(())),
                Verdict::RequeueTail => (Outcome::RequeuedTail, Ok(())),
            };
            self.over(&rq, outcome, result);
            out.push(Finished { rq, verdict });
        }
    }

    fn timed_out(&mut self, now: Instant, tag: Tag) -> Expiry {
        assert_eq!(now, self.now, "in the same turn as the reap before");
        let at = self.held.iter().position(|held| held.rq.tag() == tag);
        let at = at.unwrap_or_else(|| panic!("asked about tag {}, which is not here", tag.0));
        let held = &mut self.held[at];
        assert!(held.deadline <= now, "asked too early, or twice for one expiry");
        let missed = matches!(held.end, End::Missed(_));
        assert!(missed || held.until > now, "asked about what has just been finished");
        let sector = held.rq.sector();
        self.oracle.book().events.push(Event::Asked { sector, at: now });
        let (outcome, result) = match held.end {
            End::Missed(result) if held.until <= now => (Outcome::Found, result),
            _ if held.resets > 0 => {
                held.resets -= 1;
                held.deadline = now + self.timeout;
                return Expiry::ResetTimer;
            }
            _ => (Outcome::TimedOut, Err(IoError::TIMED_OUT)),
        };
        let held = self.held.swap_remove(at);
        self.over(&held.rq, outcome, result);
        Expiry::Done(held.rq, result)
    }

    /// The engine calls this at the end of each turn.
    fn next_event(&self) -> Option<Instant> {
        let in_time = self.held.iter().all(|held| held.deadline > self.now);
        assert!(in_time, "the turn is over, a deadline has passed, and nobody asked");
        match self.oracle.book().says {
            Says::Nothing => None,
            Says::Never => Some(Instant::MAX),
            Says::When => {
                let comes = self.held.iter().filter(|held| matches!(held.end, End::Answer(_)));
                Some(comes.map(|held| held.until).min().unwrap_or(Instant::MAX))
            }
        }
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.held.drain(..).map(|held| held.rq));
    }
}

/// A configuration around such a device. `attempts` decides each attempt, given its sector.
pub fn fated(
    shape: DeviceShape,
    attempts: impl FnMut(u64) -> Attempt + Send + 'static,
) -> (Config<u32>, Oracle) {
    let says = Says::When;
    let book = Book { attempts: Box::new(attempts), says, events: Vec::new() };
    let oracle = Oracle(Arc::new(Mutex::new(book)));
    let queue = |_| {
        let (oracle, timeout) = (oracle.clone(), shape.timeout);
        Box::new(Fated { oracle, timeout, held: Vec::new(), now: Instant::ZERO }) as _
    };
    let queues = (0..shape.hw_queues).map(queue).collect();
    (Config::new(shape, queues), oracle)
}

/// Like [`fated`], with a list of attempts; after the last of them, every attempt is answered within the call.
pub fn scripted(
    shape: DeviceShape,
    script: impl IntoIterator<Item = Attempt>,
) -> (Config<u32>, Oracle) {
    let mut script: VecDeque<Attempt> = script.into_iter().collect();
    fated(shape, move |_| script.pop_front().unwrap_or(Attempt::Inline(Ok(()))))
}

pub const HW: HwQueue = HwQueue(0);
