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
//! in rows without credit (`client.rs`). The rows are bounded here:
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

use crate::Client;
use crate::client::Kind;
use crate::planted::{self, Planted};
use crate::submit_error::{Answer, SubmitError, Unavailable};
use blkmq_core::{IoError, Payload};
use blkmq_engine::{Completion, Io, Unsubmitted};
use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

/// Places in the inbox for each I/O that may be in flight: while one depth of I/Os keeps the device busy, a second one
/// is ready, and callers are preparing a third.
const INBOX_DEPTHS: u32 = 2;

type Callback<P> = Box<dyn FnOnce(Answer<P>) + Send>;

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
    fn check_room(&self) -> Result<(), Unavailable> {
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

/// Values with numbers that stay the same until the values are removed. Never shrinks.
struct Slab<T> {
    entries: Vec<Entry<T>>,
    /// The first free entry, or [`NIL`].
    free: u32,
}

enum Entry<T> {
    Used(T),
    /// The next free entry, or [`NIL`].
    Free(u32),
}

const NIL: u32 = u32::MAX;

impl<T> Slab<T> {
    /// An empty table, which holds `n` values before it allocates.
    pub(super) fn with_capacity(n: usize) -> Self {
        Self { entries: Vec::with_capacity(n), free: NIL }
    }

    /// Inserts a value and returns its number. O(1), except when more entries are used than ever before.
    ///
    /// # Panics
    /// If 2^32 - 1 entries are used.
    fn insert(&mut self, value: T) -> u32 {
        let at = self.free;
        if at == NIL {
            let at = u32::try_from(self.entries.len()).ok().filter(|at| *at != NIL);
            self.entries.push(Entry::Used(value));
            return at.expect("fewer I/Os wait than memory could hold");
        }
        match std::mem::replace(&mut self.entries[at as usize], Entry::Used(value)) {
            Entry::Free(next) => self.free = next,
            Entry::Used(_) => unreachable!("entry {at} is in the list of free ones"),
        }
        at
    }

    /// Removes the value at `at`. O(1).
    ///
    /// # Panics
    /// If the entry is free.
    pub(super) fn remove(&mut self, at: u32) -> T {
        match std::mem::replace(&mut self.entries[at as usize], Entry::Free(self.free)) {
            Entry::Used(value) => {
                self.free = at;
                value
            }
            Entry::Free(_) => panic!("nothing is at {at}"),
        }
    }

    /// The value at `at`.
    ///
    /// # Panics
    /// If the entry is free.
    pub(super) fn get(&self, at: u32) -> &T {
        match &self.entries[at as usize] {
            Entry::Used(value) => value,
            Entry::Free(_) => panic!("nothing is at {at}"),
        }
    }

    /// The first number at which `is` accepts the value. O(n).
    pub(super) fn find(&self, is: impl Fn(u32, &T) -> bool) -> Option<u32> {
        let used = (0..).zip(&self.entries);
        used.filter_map(|(at, entry)| match entry {
            Entry::Used(value) => Some((at, value)),
            Entry::Free(_) => None,
        })
        .find(|(at, value)| is(*at, value))
        .map(|(at, _)| at)
    }

    /// The value at `at`.
    ///
    /// # Panics
    /// If the entry is free.
    pub(super) fn get_mut(&mut self, at: u32) -> &mut T {
        match &mut self.entries[at as usize] {
            Entry::Used(value) => value,
            Entry::Free(_) => panic!("nothing is at {at}"),
        }
    }

    /// The numbers in use, ascending. O(n).
    pub(super) fn used(&self) -> impl Iterator<Item = u32> + '_ {
        let used = |(at, entry): (u32, _)| matches!(entry, &Entry::Used(_)).then_some(at);
        (0..).zip(&self.entries).filter_map(used)
    }
}

#[cfg(test)]
mod tests {
    //! One test for each row of the tables, without threads: every transition is one critical section.

    use super::*;
    use crate::SubmitErrorKind;
    use blkmq_core::Op;
    use blkmq_engine::{Completion, Refusal, Refused};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    const DEPTH: u32 = 2;
    const MOST: u32 = DEPTH * INBOX_DEPTHS;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Woken {
        fn times(&self) -> u32 {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn io(cookie: u64) -> Io<u64> {
        Io::new(Op::Read, 0, 8, cookie, cookie)
    }

    /// The queue's answer to an I/O that the reactor took.
    fn answer_to(io: &Io<u64>) -> Answer<u64> {
        Ok(Completion { cookie: io.cookie, result: Ok(()), payload: io.payload })
    }

    fn take(inbox: &mut Inbox<u64>, most: u32) -> Vec<Io<u64>> {
        let mut taken = Vec::new();
        inbox.take(most, &mut taken, &mut Vec::new());
        taken
    }

    fn enter(inbox: &mut Inbox<u64>, cookie: u64) -> u32 {
        match inbox.check_room_for(&io(cookie)) {
            Ok(()) => inbox.send(io(cookie)),
            Err(_) => inbox.stand_in_line(io(cookie)),
        }
    }

    /// Delivers answers to `taken`; returns the number of wakers that were woken.
    fn deliver(inbox: &mut Inbox<u64>, taken: &[Io<u64>]) -> usize {
        let one = |io: &Io<u64>| match inbox.deliver(io.cookie as u32, answer_to(io)) {
            Delivery::Wake(waker) => waker.is_some_and(|waker| {
                waker.wake();
                true
            }),
            Delivery::Call(then, answer) => {
                then(answer);
                false
            }
            Delivery::Drop { .. } => false,
        };
        taken.iter().map(one).filter(|woken| *woken).count()
    }

    fn in_use(inbox: &Inbox<u64>) -> usize {
        inbox.tickets.used().count()
    }

    #[test]
    fn an_answer_has_the_cookie_of_its_io_and_wakes_whoever_polled_last() {
        let mut inbox = Inbox::new(DEPTH);
        let ticket = enter(&mut inbox, 70);
        assert!(inbox.fetch(ticket).is_none());
        let woken = Arc::new(Woken::default());
        *inbox.waker(ticket) = Some(Arc::clone(&woken).into());
        let taken = take(&mut inbox, 8);
        assert_eq!((taken.len(), taken[0].cookie), (1, ticket.into()));
        assert_eq!(deliver(&mut inbox, &taken), 1);
        assert_eq!(woken.times(), 1);
        let answer = inbox.fetch(ticket).expect("it was delivered").expect("and went well");
        assert_eq!((answer.cookie, answer.payload), (70, 70));
        assert_eq!(in_use(&inbox), 0);
    }

    #[test]
    fn refused_ios_have_their_cookies_back_too() {
        let mut inbox = Inbox::new(DEPTH);
        let ticket = enter(&mut inbox, 70);
        let taken = take(&mut inbox, 8).remove(0);
        let refused = Refused::new(taken, Refusal::Misaligned { block: 512 });
        inbox.deliver(ticket, Err(SubmitError::Refused(refused)));
        let answer = inbox.fetch(ticket).expect("it was delivered").expect_err("it was refused");
        assert_eq!(answer.into_io().expect("unchanged"), io(70));
    }

    #[test]
    fn whoever_finds_no_room_moves_up_in_order_and_keeps_the_waker() {
        let mut inbox = Inbox::new(DEPTH);
        let tickets: Vec<u32> = (0..u64::from(MOST) + 3).map(|n| enter(&mut inbox, n)).collect();
        assert_eq!((inbox.queue.len(), inbox.line.len()), (MOST as usize, 3));
        assert_eq!(inbox.check_room(), Err(Unavailable::Full { most: MOST }));
        let woken = Arc::new(Woken::default());
        *inbox.waker(tickets[MOST as usize]) = Some(Arc::clone(&woken).into());
        let mut order = Vec::new();
        while inbox.check_room().is_err() || !inbox.queue.is_empty() {
            let taken = take(&mut inbox, DEPTH);
            order.extend(taken.iter().map(|io| io.payload));
            deliver(&mut inbox, &taken);
        }
        assert_eq!(order, (0..u64::from(MOST) + 3).collect::<Vec<_>>());
        assert_eq!(woken.times(), 1, "for the answer, and not for having moved up");
        assert!(tickets.iter().all(|ticket| inbox.fetch(*ticket).is_some()));
    }

    #[test]
    fn a_forsaken_io_goes_on_if_it_had_a_place_and_ends_if_it_stood_in_line() {
        let mut inbox = Inbox::new(DEPTH);
        let tickets: Vec<u32> = (0..u64::from(MOST) + 3).map(|n| enter(&mut inbox, n)).collect();
        inbox.forsake(tickets[0]);
        inbox.forsake(tickets[MOST as usize + 1]);
        assert_eq!((inbox.queue.len(), inbox.line.len()), (MOST as usize, 2));
        let mut payloads = Vec::new();
        while !inbox.queue.is_empty() {
            let taken = take(&mut inbox, DEPTH);
            payloads.extend(taken.iter().map(|io| io.payload));
            deliver(&mut inbox, &taken);
        }
        let skipped = u64::from(MOST) + 1;
        let expected: Vec<u64> = (0..u64::from(MOST) + 3).filter(|n| *n != skipped).collect();
        assert_eq!(payloads, expected);
        // Tickets of dropped futures are freed. Other tickets keep their answers for their futures, one of which is
        // dropped here.
        assert_eq!(in_use(&inbox), MOST as usize + 1);
        inbox.forsake(tickets[1]);
        assert_eq!(in_use(&inbox), MOST as usize);
    }

    #[test]
    fn the_reactor_is_rung_for_when_it_sleeps_and_could_take_something() {
        let mut inbox = Inbox::new(DEPTH);
        assert!(!inbox.listen(0, DEPTH) && inbox.asleep);
        enter(&mut inbox, 1);
        assert!(inbox.listen(0, DEPTH) && !inbox.asleep, "it goes on instead");
        assert!(!inbox.listen(DEPTH, DEPTH) && !inbox.asleep, "a completion wakes it");
        assert!(inbox.calls(DEPTH - 1, DEPTH));
        take(&mut inbox, 1);
        assert!(!inbox.listen(1, DEPTH) && inbox.asleep);
        take(&mut inbox, 1);
        assert!(!inbox.asleep, "who exchanges is awake");
    }

    #[cfg(all(target_os = "linux", feature = "tokio"))]
    #[test]
    fn a_reactor_that_is_a_task_is_woken_by_the_waker_that_it_has_left() {
        let mut inbox = Inbox::new(DEPTH);
        let [old, new] = [(); 2].map(|()| Arc::new(Woken::default()));
        let mut spare = Some(Arc::clone(&old).into());
        assert!(!inbox.listen_as(0, DEPTH, &mut spare) && spare.is_none());
        // The waker stays in place for a second sleep; another waker replaces it.
        spare = Some(Arc::clone(&old).into());
        assert!(!inbox.listen_as(0, DEPTH, &mut spare) && spare.is_some());
        spare = Some(Arc::clone(&new).into());
        assert!(!inbox.listen_as(0, DEPTH, &mut spare) && spare.is_some());
        enter(&mut inbox, 1);
        let Some(Call(Some(waker))) = inbox.rouse() else { panic!("it is asleep") };
        waker.wake();
        assert_eq!((old.times(), new.times()), (0, 1));
        enter(&mut inbox, 2);
        assert!(inbox.rouse().is_none(), "it is awake");
        // With work to do, the reactor leaves no waker.
        assert!(inbox.listen_as(0, DEPTH, &mut spare) && inbox.task.is_none());
    }

    #[test]
    fn closing_gives_back_what_is_in_line_and_goes_on_with_the_rest() {
        let mut inbox = Inbox::new(DEPTH);
        let tickets: Vec<u32> = (0..u64::from(MOST) + 1).map(|n| enter(&mut inbox, n)).collect();
        let woken = Arc::new(Woken::default());
        *inbox.waker(tickets[MOST as usize]) = Some(Arc::clone(&woken).into());
        inbox.close().into_iter().for_each(Waker::wake);
        assert_eq!(woken.times(), 1);
        let in_line = inbox.fetch(tickets[MOST as usize]).expect("it is answered");
        let in_line = in_line.expect_err("the inbox is closed");
        assert_eq!(in_line.why(), SubmitErrorKind::Closed);
        assert_eq!(in_line.into_io(), Some(io(MOST.into())));
        assert_eq!(inbox.check_room(), Err(Unavailable::Closed));
        assert!(!inbox.is_over() && !inbox.calls(DEPTH, DEPTH));
        assert_eq!(take(&mut inbox, MOST).len(), MOST as usize);
        assert!(inbox.is_over() && inbox.calls(0, DEPTH));
    }

    #[test]
    fn a_reactor_that_gives_up_answers_everybody_once() {
        let mut inbox = Inbox::new(DEPTH);
        let called = Arc::new(Woken::default());
        let sent = enter(&mut inbox, 1);
        let counter = Arc::clone(&called);
        inbox.call(
            io(2),
            Box::new(move |answer| {
                assert!(matches!(answer, Err(SubmitError::Lost { cookie: 2 })));
                counter.wake();
            }),
        );
        let done = enter(&mut inbox, 3);
        let taken = take(&mut inbox, 3);
        deliver(&mut inbox, &taken[2..]);
        let queued = enter(&mut inbox, 4);
        for delivery in inbox.give_up() {
            if let Delivery::Call(then, answer) = delivery {
                then(answer);
            }
        }
        assert_eq!(called.times(), 1);
        assert!(matches!(inbox.fetch(sent), Some(Err(SubmitError::Lost { cookie: 1 }))));
        assert!(inbox.fetch(done).expect("it was done before").is_ok());
        let queued = inbox.fetch(queued).expect("it is answered").expect_err("it was not taken");
        assert_eq!((queued.why(), queued.into_io()), (SubmitErrorKind::Closed, Some(io(4))));
        assert_eq!(in_use(&inbox), 0);
    }

    #[test]
    fn numbers_are_used_again_before_new_ones_are_made() {
        let mut slab = Slab::with_capacity(2);
        let numbers: Vec<u32> = ["a", "b", "c"].map(|value| slab.insert(value)).into();
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!((slab.remove(0), slab.remove(2)), ("a", "c"));
        assert_eq!(slab.used().collect::<Vec<_>>(), [1]);
        assert_eq!((slab.insert("d"), slab.insert("e"), slab.insert("f")), (2, 0, 3));
        assert_eq!(*slab.get_mut(0), "e");
    }

    #[test]
    #[should_panic(expected = "nothing is at 0")]
    fn a_number_is_good_once() {
        let mut slab = Slab::with_capacity(1);
        let at = slab.insert(());
        slab.remove(at);
        slab.remove(at);
    }
}
