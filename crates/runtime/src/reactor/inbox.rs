//! The data that a reactor shares with its callers: I/Os that it has not taken, and answers that were not fetched.
//!
//! [`Inbox`] is plain data behind one mutex (`shared.rs`). The mutex is held for a few dozen instructions at a time,
//! once per I/O by callers and once per batch by the reactor. No foreign code runs under it: no waker is cloned or
//! woken, no callback called, no payload dropped. So no thread can panic while it holds the mutex, and no thread waits
//! for it for long. There are no atomics, so there is nothing for a model checker to explore: every transition below is
//! one critical section.
//!
//! # A ticket
//!
//! Every I/O has a ticket until it is answered. Its number may be known to two parties: the reactor (or its queue, as
//! the I/O's cookie) and a future. The last of the two frees the ticket.
//!
//! | ticket | there is room | answered | future polled | cancelled | future dropped | reactor closed |
//! |---|---|---|---|---|---|---|
//! | `Line`: has no place yet | `Sent` | - | waker kept | `Done` | freed, I/O not done | `Done(Closed)`, woken |
//! | `Sent`: in the inbox | - | - | waker kept | `Done` | `Orphan` | continues |
//! | `Sent`: in the queue | - | `Done`, woken | waker kept | the reactor asks the queue | `Orphan` | continues |
//! | `Orphan`: likewise, no future waits | - | freed, dropped | - | - | - | continues |
//! | `Call`: likewise, for a callback | - | freed, called | - | - | - | continues |
//! | `Done`: answer not fetched yet | - | - | freed, ready | - | freed, dropped | stays |
//! | `Wanted`: a permit, in line | `Granted`, woken | - | waker kept | - | freed | `Refused`, woken |
//! | `Granted`: a place is kept | - | - | a permit | - | freed, and the place | stays |
//! | `Refused`: no permit | - | - | freed, ready | - | freed | stays |
//!
//! A permit keeps the ticket that was `Granted`, and returns it with or without an I/O. The I/O takes over the place.
//!
//! # Kinds that wait for a limit
//!
//! The reactor takes I/Os that wait for a limit of their group out of the inbox, so that others can use it. They wait
//! in rows without credit (`client/kept.rs`). The rows are bounded here:
//!
//! | a kind: group and direction | its row has `most` I/Os | its row has at most half as many | and its line is empty |
//! |---|---|---|---|
//! | shares the inbox and its line | becomes *full*: its I/Os in line move to their own line | - | - |
//! | is *full* | - | I/Os in its line go to the reactor | shares the inbox again |
//!
//! I/Os that had a place when their kind became full follow into the row, `most` at most. I/Os with a permit wait in no
//! line; beyond `most` of them, they take places of the inbox.
//!
//! # Waking the reactor
//!
//! | `asleep` | an I/O is put in, or the inbox is closed | the reactor takes I/Os | [`listen`](Inbox::listen) |
//! |---|---|---|---|
//! | no | no | no | becomes yes if there is nothing to take, and *the reactor* parks; otherwise no, and it continues |
//! | yes | no, and *the caller* unparks the reactor | no | yes, and the reactor parks |
//!
//! `listen` and putting an I/O in exclude each other. Either the reactor sees the I/O and does not park, or the caller
//! sees `asleep` and unparks the reactor. If the reactor has not parked yet, its next parking then returns immediately.
//! Unparking a task means waking the waker that it has left here: a task that is woken before it returns is polled
//! again. While the reactor is awake, callers that put I/Os in make no system call. Without credit for more I/Os, the
//! reactor parks without being `asleep`: it is woken by a completion, or by a cancellation, for which it is `parked`.

use super::slab::Slab;
use crate::Client;
use crate::client::kept::Kind;
use crate::planted::{self, Planted};
use crate::submit_error::{Answer, SubmitError, Unavailable};
use blkmq_core::{IoError, Payload};
use blkmq_engine::{Completion, Io, Unsubmitted};
use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

/// Places in the inbox for each I/O that may be in flight: while one depth of I/Os keeps the device busy, a second one
/// is ready, and callers are preparing a third.
const INBOX_DEPTHS: u32 = 2;

pub(super) type Callback<P> = Box<dyn FnOnce(Answer<P>) + Send>;

/// The owner and the state of an I/O or of a permit; the module's table has the transitions.
enum Ticket<P> {
    Line { place: u64, io: Io<P>, waker: Option<Waker> },
    Sent { cookie: u64, waker: Option<Waker> },
    Orphan,
    Call { cookie: u64, then: Callback<P> },
    Done(Answer<P>),
    Wanted { place: u64, waker: Option<Waker> },
    Granted,
    Refused,
}

/// How to deliver an answer, outside the lock.
pub(super) enum Delivery<P> {
    Wake(Option<Waker>),
    Call(Callback<P>, Answer<P>),
    Drop { _answer: Answer<P> },
}

/// A wake-up of the reactor, to be sent outside the lock; with a waker if the reactor is a task.
#[must_use]
pub(super) struct Call(pub(super) Option<Waker>);

/// The parts of a future's ticket that are to be dropped outside the lock.
pub(super) struct Remains<P> {
    _io: Option<Io<P>>,
    _waker: Option<Waker>,
    _answer: Option<Answer<P>>,
}

/// Tickets in line for a place, sorted by `place`; their futures are alive.
type Line = VecDeque<(u64, u32)>;

pub(super) struct Inbox<P> {
    tickets: Slab<Ticket<P>>,
    /// I/Os that have a place: at most `most`.
    queue: VecDeque<(u32, Io<P>)>,
    line: Line,
    /// The lines of full kinds: so many of their I/Os wait for a ceiling in the client that it takes no more of them.
    full: BTreeMap<Kind, Line>,
    /// I/Os beyond that bound in the client, which came by permits.
    over: usize,
    next_place: u64,
    /// Places kept by permits.
    kept: usize,
    most: u32,
    /// Tickets of I/Os that the reactor has taken and is to cancel.
    cancels: Vec<u32>,
    /// I/Os with a callback that were cancelled before the reactor took them. The reactor answers them.
    given_up: Vec<(u32, Io<P>)>,
    asleep: bool,
    parked: bool,
    /// The waker of a reactor that is a task; `None` if a caller has taken it.
    task: Option<Waker>,
    closed: bool,
}

impl<P> Inbox<P> {
    pub(super) fn new(depth: u32) -> Self {
        let most = depth.saturating_mul(INBOX_DEPTHS);
        Self {
            tickets: Slab::with_capacity((most + depth) as usize),
            queue: VecDeque::with_capacity(most as usize),
            line: Line::new(),
            full: BTreeMap::new(),
            over: 0,
            next_place: 0,
            kept: 0,
            most,
            cancels: Vec::new(),
            given_up: Vec::new(),
            asleep: false,
            parked: false,
            task: None,
            closed: false,
        }
    }

    /// An error if there is no place for this I/O.
    pub(super) fn check_room_for(&self, io: &Io<P>) -> Result<(), Unavailable> {
        if self.full.contains_key(&Kind::of(io)) && !self.closed {
            return Err(Unavailable::Full { most: self.most });
        }
        self.check_room()
    }

    /// An error if there is no place for a new I/O of any kind.
    pub(super) fn check_room(&self) -> Result<(), Unavailable> {
        if self.closed {
            Err(Unavailable::Closed)
        } else if self.has_room() && self.line.is_empty() {
            Ok(())
        } else {
            Err(Unavailable::Full { most: self.most })
        }
    }

    fn has_room(&self) -> bool {
        self.has_place() && self.queue.len() + self.kept + self.over < self.most as usize
    }

    /// Returns whether there is a place for an I/O whose permit was spent, which does not wait for I/Os in rows.
    fn has_place(&self) -> bool {
        self.queue.len() + self.kept < self.most as usize
    }

    /// Puts in an I/O, and returns the ticket for its future. There must be a free place.
    pub(super) fn send(&mut self, io: Io<P>) -> u32 {
        debug_assert!(self.has_place() && !self.closed);
        let ticket = self.tickets.insert(Ticket::Sent { cookie: io.cookie, waker: None });
        self.queue.push_back((ticket, io));
        ticket
    }

    /// Puts in an I/O with a callback. There must be a free place.
    pub(super) fn call(&mut self, io: Io<P>, then: Callback<P>) {
        debug_assert!(self.has_place() && !self.closed);
        let ticket = self.tickets.insert(Ticket::Call { cookie: io.cookie, then });
        self.queue.push_back((ticket, io));
    }

    /// Puts an I/O in line for a place.
    pub(super) fn stand_in_line(&mut self, io: Io<P>) -> u32 {
        let kind = Kind::of(&io);
        self.line_up(Some(kind), |place| Ticket::Line { place, io, waker: None })
    }

    fn line_up(&mut self, kind: Option<Kind>, ticket: impl FnOnce(u64) -> Ticket<P>) -> u32 {
        let place = self.next_place;
        self.next_place += 1;
        let ticket = self.tickets.insert(ticket(place));
        self.line_of(kind).push_back((place, ticket));
        ticket
    }

    /// The line for I/Os of this kind, or for permits.
    fn line_of(&mut self, kind: Option<Kind>) -> &mut Line {
        kind.and_then(|kind| self.full.get_mut(&kind)).unwrap_or(&mut self.line)
    }

    /// Returns whether any kind is full.
    pub(super) fn has_full(&self) -> bool {
        !self.full.is_empty()
    }

    /// Checks the I/Os that wait for a ceiling in the client. A kind with a whole inbox of such I/Os becomes full: its
    /// further I/Os wait in their own line, where they hold up no others. When half of the waiting ones have left, I/Os
    /// of that line move to `into`, for the reactor. O(I/Os in line) when a kind becomes full.
    pub(super) fn see_rows<Q: Payload>(&mut self, client: &Client<Q>, into: &mut VecDeque<Io<P>>) {
        let most = self.most as usize;
        // I/Os that were in the inbox when their kind became full may follow, up to another `most`.
        self.over = client.kept().map(|(_, len)| len.saturating_sub(2 * most)).sum();
        let full = client.kept().filter(|(_, len)| *len >= most).map(|(kind, _)| kind);
        full.for_each(|kind| self.set_full(kind));
        let (tickets, closed) = (&mut self.tickets, self.closed);
        self.full.retain(|kind, line| {
            let len = client.kept_of(*kind);
            if len <= most / 2 && !closed {
                let moves = line.len().min(most - len);
                into.extend(line.drain(..moves).map(|(_, ticket)| sent(tickets, ticket)));
            }
            len > most / 2 || !line.is_empty()
        });
    }

    /// Gives a kind its own line, and moves its I/Os in the common line there.
    fn set_full(&mut self, kind: Kind) {
        if self.full.contains_key(&kind) {
            return;
        }
        let tickets = &self.tickets;
        let is = |ticket: u32| matches!(tickets.get(ticket), Ticket::Line { io, .. } if Kind::of(io) == kind);
        let (own, others) = self.line.drain(..).partition(|(_, ticket)| is(*ticket));
        self.line = others;
        self.full.insert(kind, own);
    }

    /// Returns the answer and frees the ticket; `None` if there is no answer yet.
    pub(super) fn fetch(&mut self, ticket: u32) -> Option<Answer<P>> {
        if !matches!(self.tickets.get_mut(ticket), Ticket::Done(_)) {
            return None;
        }
        match self.tickets.remove(ticket) {
            Ticket::Done(answer) => Some(answer),
            _ => unreachable!("it was done just now"),
        }
    }

    /// Where to put the waker for the answer of an I/O or the decision about a permit. The ticket must still wait for
    /// it.
    pub(super) fn waker(&mut self, ticket: u32) -> &mut Option<Waker> {
        match self.tickets.get_mut(ticket) {
            Ticket::Line { waker, .. }
            | Ticket::Sent { waker, .. }
            | Ticket::Wanted { waker, .. } => waker,
            _ => unreachable!("a future waits for what is on its way only"),
        }
    }

    /// Ends the future's interest in this ticket. O(1); for a ticket in line, O(log n) to find it and O(n) to remove
    /// it.
    pub(super) fn forsake(&mut self, ticket: u32) -> Remains<P> {
        let mut remains = Remains { _io: None, _waker: None, _answer: None };
        if let Ticket::Sent { waker, .. } = self.tickets.get_mut(ticket) {
            remains._waker = waker.take();
            *self.tickets.get_mut(ticket) = Ticket::Orphan;
            return remains;
        }
        match self.tickets.remove(ticket) {
            Ticket::Line { place, io, waker } => {
                self.leave_line(place, Some(Kind::of(&io)));
                (remains._io, remains._waker) = (Some(io), waker);
            }
            Ticket::Wanted { place, waker } => {
                self.leave_line(place, None);
                remains._waker = waker;
            }
            Ticket::Granted => self.kept -= 1,
            Ticket::Refused => {}
            Ticket::Done(answer) => remains._answer = Some(answer),
            _ => unreachable!("a ticket has one future"),
        }
        remains
    }

    fn leave_line(&mut self, place: u64, kind: Option<Kind>) {
        let line = self.line_of(kind);
        let at = line.binary_search_by_key(&place, |(place, _)| *place);
        line.remove(at.expect("who has a place in line is there"));
    }

    /// Answers an I/O that the reactor has not taken, and returns the waker to be woken. For an I/O that the reactor
    /// has taken, asks the reactor to cancel it.
    pub(super) fn cancel(&mut self, ticket: u32) -> Option<Waker> {
        let entry = self.tickets.get_mut(ticket);
        match std::mem::replace(entry, Ticket::Orphan) {
            Ticket::Line { place, io, waker } => {
                let kind = Kind::of(&io);
                *entry = Ticket::Done(Ok(cancelled(io)));
                self.leave_line(place, Some(kind));
                waker
            }
            Ticket::Sent { cookie, waker } => {
                let Some(at) = self.queue.iter().position(|(of, _)| *of == ticket) else {
                    *entry = Ticket::Sent { cookie, waker };
                    self.cancels.push(ticket);
                    return None;
                };
                let (_, io) = self.queue.remove(at).expect("it was found there");
                *entry = Ticket::Done(Ok(cancelled(io)));
                waker
            }
            other => {
                *entry = other;
                None
            }
        }
    }

    /// Cancels the oldest I/O with this cookie and a callback, or asks the reactor to cancel it. Returns whether there
    /// is one.
    pub(super) fn cancel_call(&mut self, cookie: u64) -> bool {
        let is = |ticket: &Ticket<P>| matches!(ticket, Ticket::Call { cookie: own, .. } if *own == cookie);
        let waits = self.queue.iter().position(|(ticket, _)| is(self.tickets.get(*ticket)));
        // An I/O that the reactor has taken is older than one in the queue.
        match self.tickets.find(|at, ticket| is(ticket) && !self.is_queued(at)) {
            Some(ticket) => self.cancels.push(ticket),
            None => {
                let waits = waits.and_then(|at| self.queue.remove(at));
                let is_here = waits.is_some();
                self.given_up.extend(waits);
                return is_here;
            }
        }
        true
    }

    fn is_queued(&self, ticket: u32) -> bool {
        self.queue.iter().any(|(of, _)| *of == ticket)
    }

    /// Moves the tickets of the I/Os to cancel to `into`, and the I/Os that were cancelled before the reactor took them
    /// to `given_up`.
    pub(super) fn take_cancels(
        &mut self,
        into: &mut Vec<u32>,
        given_up: &mut Vec<(u32, Answer<P>)>,
    ) {
        into.append(&mut self.cancels);
        given_up.extend(self.given_up.drain(..).map(|(ticket, io)| (ticket, Ok(cancelled(io)))));
    }

    /// The reactor takes up to `most` I/Os, each with its ticket as `cookie`. Those in line move up; wakers of
    /// futures that have a permit now are added to `woken`.
    pub(super) fn take(
        &mut self,
        most: u32,
        into: &mut impl Extend<Io<P>>,
        woken: &mut Vec<Delivery<P>>,
    ) {
        (self.asleep, self.parked) = (false, false);
        let n = self.queue.len().min(most as usize);
        into.extend(self.queue.drain(..n).map(|(ticket, io)| Io { cookie: ticket.into(), ..io }));
        self.move_up(|waker| woken.push(Delivery::Wake(Some(waker))));
    }

    /// Gives free places to the tickets in line, in order. Passes the wakers of futures that now have a permit to
    /// `woken`.
    pub(super) fn move_up(&mut self, mut woken: impl FnMut(Waker)) {
        while !self.closed
            && self.has_room()
            && let Some((_, ticket)) = self.line.pop_front()
        {
            let entry = self.tickets.get_mut(ticket);
            match std::mem::replace(entry, Ticket::Granted) {
                Ticket::Line { io, waker, .. } => {
                    *entry = Ticket::Sent { cookie: io.cookie, waker };
                    self.queue.push_back((ticket, io));
                }
                Ticket::Wanted { waker, .. } => {
                    self.kept += 1;
                    waker.into_iter().for_each(&mut woken);
                }
                _ => unreachable!("who is in line has the ticket for it"),
            }
        }
    }

    /// Keeps a place for a permit, or puts the permit in line for one.
    pub(super) fn want_permit(&mut self) -> u32 {
        match self.check_room() {
            Ok(()) => {
                self.kept += 1;
                self.tickets.insert(Ticket::Granted)
            }
            Err(Unavailable::Full { .. }) => {
                self.line_up(None, |place| Ticket::Wanted { place, waker: None })
            }
            Err(Unavailable::Closed) => self.tickets.insert(Ticket::Refused),
        }
    }

    /// The decision about a permit; `None` if there is none yet. Frees the ticket if it was refused.
    pub(super) fn permit(&mut self, ticket: u32) -> Option<Result<(), Unavailable>> {
        match self.tickets.get_mut(ticket) {
            Ticket::Granted => Some(Ok(())),
            Ticket::Refused => {
                self.tickets.remove(ticket);
                Some(Err(Unavailable::Closed))
            }
            _ => None,
        }
    }

    /// Gives up a permit's place to the I/O that is put in next. An error if the reactor is gone.
    pub(super) fn spend(&mut self, permit: &mut Option<u32>) -> Result<(), Unavailable> {
        self.tickets.remove(permit.take().expect("a permit is spent once"));
        self.kept -= 1;
        if self.closed { Err(Unavailable::Closed) } else { Ok(()) }
    }

    /// Answers an I/O that the reactor took.
    pub(super) fn deliver(&mut self, ticket: u32, mut answer: Answer<P>) -> Delivery<P> {
        self.cancels.retain(|other| *other != ticket);
        let entry = self.tickets.get_mut(ticket);
        if let Ticket::Sent { cookie, waker } = entry {
            restore(&mut answer, *cookie);
            let waker = waker.take();
            *entry = Ticket::Done(answer);
            return Delivery::Wake(waker);
        }
        match self.tickets.remove(ticket) {
            Ticket::Orphan => Delivery::Drop { _answer: answer },
            Ticket::Call { cookie, then } => {
                restore(&mut answer, cookie);
                Delivery::Call(then, answer)
            }
            _ => unreachable!("the reactor answers what it took, and once"),
        }
    }

    /// Returns whether the inbox has work for the reactor, with `in_flight` I/Os in flight and credit for `depth`.
    pub(super) fn calls(&self, in_flight: u32, depth: u32) -> bool {
        !self.queue.is_empty() && in_flight < depth
            || !self.cancels.is_empty()
            || !self.given_up.is_empty()
            || self.closed && in_flight == 0
    }

    /// As [`calls`](Self::calls), for a reactor that parks if there is no work: a caller that puts in an I/O that the
    /// reactor could take will wake it.
    pub(super) fn listen(&mut self, in_flight: u32, depth: u32) -> bool {
        let calls = self.calls(in_flight, depth);
        self.asleep = !calls && in_flight < depth && !planted::is(Planted::SleepsSilently);
        self.parked = !calls && !planted::is(Planted::ParksSilently);
        calls
    }

    /// As [`listen`](Self::listen), for a reactor that is a task: leaves `waker` for the callers, unless it is already
    /// there.
    #[cfg(all(target_os = "linux", feature = "tokio"))]
    pub(super) fn listen_as(
        &mut self,
        in_flight: u32,
        depth: u32,
        waker: &mut Option<Waker>,
    ) -> bool {
        let calls = self.listen(in_flight, depth);
        let is_there = match (&self.task, &*waker) {
            (Some(there), Some(waker)) => there.will_wake(waker),
            (there, _) => there.is_some(),
        };
        if !calls && !is_there {
            std::mem::swap(&mut self.task, waker);
        }
        calls
    }

    /// The wake-up for a new I/O or for closing; `None` if the reactor is not asleep.
    pub(super) fn rouse(&mut self) -> Option<Call> {
        let was_asleep = std::mem::take(&mut self.asleep);
        was_asleep.then(|| Call(self.task.take()))
    }

    /// The wake-up for a cancellation; `None` if the reactor is not parked.
    pub(super) fn rouse_to_cancel(&mut self) -> Option<Call> {
        let is_asked = !self.cancels.is_empty() || !self.given_up.is_empty();
        let was_parked = is_asked && std::mem::take(&mut self.parked);
        was_parked.then(|| Call(self.task.take()))
    }

    /// Returns whether the inbox is closed and empty.
    pub(super) fn is_over(&self) -> bool {
        self.closed && self.queue.is_empty() && self.given_up.is_empty()
    }

    pub(super) fn close(&mut self) -> Vec<Waker> {
        self.closed = true;
        let full = std::mem::take(&mut self.full);
        let line = std::mem::take(&mut self.line).into_iter().chain(full.into_values().flatten());
        let closed = line.filter_map(|(_, ticket)| {
            let entry = self.tickets.get_mut(ticket);
            match std::mem::replace(entry, Ticket::Refused) {
                Ticket::Line { io, waker, .. } => {
                    *entry = Ticket::Done(Err(SubmitError::Closed(Unsubmitted::new(io))));
                    waker
                }
                Ticket::Wanted { waker, .. } => waker,
                _ => unreachable!("who is in line has the ticket for it"),
            }
        });
        closed.collect()
    }

    /// Answers every I/O without an answer, after the reactor has panicked.
    pub(super) fn give_up(&mut self) -> Vec<Delivery<P>> {
        let queue = std::mem::take(&mut self.queue);
        let closed = queue
            .into_iter()
            .map(|(ticket, io)| (ticket, Err(SubmitError::Closed(Unsubmitted::new(io)))));
        let given_up = std::mem::take(&mut self.given_up);
        let given_up = given_up.into_iter().map(|(ticket, io)| (ticket, Ok(cancelled(io))));
        let mut deliveries: Vec<_> =
            closed.chain(given_up).map(|(ticket, answer)| self.deliver(ticket, answer)).collect();
        let used: Vec<u32> = self.tickets.used().collect();
        for ticket in used {
            let is_kept = |ticket: &Ticket<P>| {
                matches!(ticket, Ticket::Done(_) | Ticket::Granted | Ticket::Refused)
            };
            if !is_kept(self.tickets.get(ticket)) {
                let lost = SubmitError::Lost { cookie: ticket.into() };
                deliveries.push(self.deliver(ticket, Err(lost)));
            }
        }
        deliveries
    }
}

/// Takes the I/O of a ticket in line for the reactor.
fn sent<P>(tickets: &mut Slab<Ticket<P>>, ticket: u32) -> Io<P> {
    let entry = tickets.get_mut(ticket);
    let Ticket::Line { io, waker, .. } = std::mem::replace(entry, Ticket::Orphan) else {
        unreachable!("who is in line has the ticket for it")
    };
    *entry = Ticket::Sent { cookie: io.cookie, waker };
    Io { cookie: ticket.into(), ..io }
}

/// The answer to an I/O that was cancelled before the queue had it.
pub(super) fn cancelled<P>(io: Io<P>) -> Completion<P> {
    Completion { cookie: io.cookie, result: Err(IoError::CANCELLED), payload: io.payload }
}

/// Puts the caller's cookie in place of the ticket's number.
fn restore<P>(answer: &mut Answer<P>, cookie: u64) {
    match answer {
        Ok(done) => done.cookie = cookie,
        Err(SubmitError::Refused(refused)) => refused.io_mut().cookie = cookie,
        Err(SubmitError::Closed(io)) => io.io_mut().cookie = cookie,
        Err(SubmitError::Lost { cookie: number }) => *number = cookie,
    }
}

#[cfg(test)]
mod tests;
