//! A virtual CPU under the oracles: its client, and the turns that it takes.
//!
//! A turn is the work of a thread between two moments at which other threads could interleave: take completions, push
//! a batch and flush it, poll, and decide whether to continue, wait or park. A call into the engine takes no
//! virtual time; its cost delays the CPU's next turn.

use crate::body::{Body, Costs, Habits, Next};
use crate::oracle::Oracle;
use crate::violation::Violation;
use crate::{Client, Payload, Stamp, Want};
use blkmq_core::{Deadline, Instant, Nanos};
use blkmq_engine::{Completion, Io, Queue, Refusal, Submitter};

/// The description of a virtual CPU.
pub struct Plan {
    /// The client that runs on it.
    pub client: Box<dyn Client>,
    /// Its habits.
    pub habits: Habits,
    /// The seed of the draws that decide when it is caught or absent.
    pub seed: u64,
}

pub(crate) struct Cpu {
    body: Body<Stamp>,
    client: Box<dyn Client>,
    /// Cookies of the I/Os that it has pushed and not reaped.
    in_flight: Vec<u64>,
    /// An I/O that the client wanted, refused for lack of credit.
    refused: Option<Io<Payload>>,
    /// I/Os of the client that have not ended.
    outstanding: u32,
    /// The client wants no more I/Os.
    finished: bool,
}

/// The environment of a CPU's turn.
pub(crate) struct Turn<'a> {
    pub(crate) now: Instant,
    pub(crate) queue: &'a Queue<Stamp>,
    pub(crate) costs: &'a Costs,
    pub(crate) oracle: &'a Oracle,
}

impl Cpu {
    pub(crate) fn new(submitter: Submitter<Stamp>, plan: Plan) -> Self {
        Self {
            body: Body::new(submitter, plan.habits, plan.seed),
            client: plan.client,
            in_flight: Vec::new(),
            refused: None,
            outstanding: 0,
            finished: false,
        }
    }

    /// Returns whether the client wants no more I/Os.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.body.is_parked()
    }

    /// One turn.
    pub(crate) fn turn(&mut self, turn: &Turn<'_>) -> Result<Next, Violation> {
        match self.body.resume(turn.now, turn.costs) {
            Some(next) => Ok(next),
            None => self.work(turn),
        }
    }

    fn work(&mut self, turn: &Turn<'_>) -> Result<Next, Violation> {
        let Turn { now, costs, .. } = *turn;
        let reaped = self.reap(turn);
        let (want, pushed) = self.push_batch(turn)?;
        let spent = costs.reap.0 * u64::from(reaped) + costs.push.0 * u64::from(pushed);
        let flush = if pushed > 0 { costs.flush } else { Nanos::ZERO };
        let then = now + Nanos(spent) + flush + costs.poll;
        self.cancel(turn);
        if let Some(run) = self.body.begin_run(turn.queue) {
            // The CPU's own plug is staged or parked like any other, and its next pass takes it in.
            self.body.submitter.flush(now);
            self.cancel(turn);
            let gap = self.body.is_caught_with(run);
            return Ok(Next::At(then + gap));
        }
        if let Some(stall) = self.body.stall() {
            return Ok(Next::At(then + stall));
        }
        self.body.submitter.flush(now);
        self.cancel(turn);
        self.body.submitter.poll(now);
        if let Some(absence) = self.body.absence() {
            return Ok(Next::At(then + absence));
        }
        Ok(match want {
            Want::Nothing if self.body.habits.leaves && self.body.submitter.in_flight() == 0 => {
                Next::Never
            }
            Want::Io(_) => Next::At(then),
            Want::Completion | Want::Nothing => self.body.rest(now, then, None),
            Want::At(at) => self.body.rest(now, then, Some(at)),
        })
    }

    /// With the chance of its habits, cancels one of its I/Os.
    fn cancel(&mut self, turn: &Turn<'_>) {
        if self.in_flight.is_empty() || !self.body.habits.cancels.strikes(&mut self.body.rng) {
            return;
        }
        let cookie = self.in_flight[self.body.rng.below(self.in_flight.len() as u64) as usize];
        turn.oracle
            .with(|oracle| oracle.asked_to_cancel(turn.now, self.body.submitter.id(), cookie));
        self.body.submitter.cancel(turn.now, cookie);
    }

    fn reap(&mut self, turn: &Turn<'_>) -> u32 {
        let Self { body, client, in_flight, .. } = self;
        let submitter = &mut body.submitter;
        let by = submitter.id();
        let announced = submitter.has_completions(1);
        let reaped = submitter.reap(u32::MAX, |Completion { cookie, result, payload }| {
            in_flight.retain(|other| *other != cookie);
            let completion = Completion { cookie, result, payload: payload.key };
            let found = payload.into_found();
            turn.oracle.with(|oracle| oracle.ended(turn.now, by, &completion, &found));
            client.ended(turn.now, &completion);
        });
        assert_eq!(announced, reaped > 0, "has_completions(1) is exact");
        self.outstanding -= reaped;
        assert_eq!(self.body.submitter.outstanding(), self.outstanding, "after reaping");
        reaped
    }

    /// Pushes up to a batch. Returns the client's next wish (an I/O if the batch is full), and the number of I/Os
    /// pushed.
    fn push_batch(&mut self, turn: &Turn<'_>) -> Result<(Want, u32), Violation> {
        let mut pushed = 0;
        loop {
            let want = match self.refused.take() {
                Some(io) => Want::Io(io),
                None => self.client.next(turn.now, self.outstanding),
            };
            self.finished |= want == Want::Nothing;
            let Want::Io(io) = want else { return Ok((want, pushed)) };
            if pushed == self.body.habits.batch.max(1) {
                self.refused = Some(io);
                return Ok((want, pushed));
            }
            if !self.push(turn, io)? {
                self.refused = Some(io);
                return Ok((Want::Completion, pushed));
            }
            pushed += 1;
        }
    }

    /// Pushes `io`; false if there is no credit for it.
    fn push(&mut self, turn: &Turn<'_>, io: Io<Payload>) -> Result<bool, Violation> {
        let by = self.body.submitter.id();
        // Before the call: a full plug is flushed in it, with the first parts of this I/O if it has several.
        let (io, memory) = turn.oracle.with(|oracle| (oracle.announced(by, io), oracle.memory()));
        match self.body.submitter.push(turn.now, Stamp::on(io, memory)) {
            Ok(()) => {
                self.outstanding += 1;
                assert_eq!(self.body.submitter.outstanding(), self.outstanding, "after pushing");
                turn.oracle.with(|oracle| oracle.pushed(turn.now, by, io));
                self.in_flight.push(io.cookie);
                self.client.submitted(turn.now, &io);
                Ok(true)
            }
            Err(refused) if matches!(refused.why, Refusal::NoCredit { .. }) => {
                let back = Stamp::off(refused.into_io());
                assert_eq!(back, io, "a refused I/O comes back unchanged");
                turn.oracle.with(|oracle| oracle.refused(&io));
                Ok(false)
            }
            Err(refused) if matches!(refused.why, Refusal::Late { .. }) => {
                let back = Stamp::off(refused.into_io());
                assert_eq!(back, io, "a refused I/O comes back unchanged");
                assert!(io.deadline.rejects(), "no other I/O is refused for its deadline");
                turn.oracle.with(|oracle| oracle.refused(&io));
                self.push(turn, io.deadline(Deadline::NONE))
            }
            Err(refused) => Err(Violation::Refused(refused.why)),
        }
    }
}
