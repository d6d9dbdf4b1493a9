//! What a reactor and those who call it share: I/Os on their way in, answers on their way out.
//!
//! [`Inbox`] is plain data behind one mutex ([`Shared`]). It is held for a few dozen instructions at a time,
//! by callers once for each I/O and by the reactor once for each batch, and no code of others runs under it:
//! no waker is cloned or woken, no callback called, no payload dropped. So nobody can panic while holding it,
//! and nobody waits for long. There are no atomics, and there is nothing for a model checker to find: every
//! transition below is one critical section.
//!
//! # A ticket
//!
//! Every I/O has one until it is answered. Two may know its number: the reactor (or its queue, as the I/O's
//! cookie) and a future. Whoever of the two is last frees it.
//!
//! | ticket | there is room | answered | future polled | cancelled | future dropped | reactor closed |
//! |---|---|---|---|---|---|---|
//! | `Line`: has no place yet | `Sent` | - | waker kept | `Done` | freed, I/O not done | `Done(Closed)`, woken |
//! | `Sent`: in the inbox | - | - | waker kept | `Done` | `Orphan` | goes on |
//! | `Sent`: in the queue | - | `Done`, woken | waker kept | the reactor asks the queue | `Orphan` | goes on |
//! | `Orphan`: likewise, no future waits | - | freed, dropped | - | - | - | goes on |
//! | `Call`: likewise, for a callback | - | freed, called | - | - | - | goes on |
//! | `Done`: answer not fetched yet | - | - | freed, ready | - | freed, dropped | stays |
//!
//! # Who wakes the reactor
//!
//! | `asleep` | something is put in, or it is closed | the reactor comes to exchange | [`listen`](Inbox::listen) |
//! |---|---|---|---|
//! | no | no | no | nothing to take: yes, and *it* parks. Something: no, and it goes on |
//! | yes | no, and *the caller* unparks it | no | yes, and it parks |
//!
//! `listen` and putting something in exclude each other: either the reactor sees it and does not park, or it
//! is seen asleep and unparked after it said so, which makes its next parking return at once if it has not
//! parked yet. Of all who put something in while it is awake nobody makes a system call. Without credit for
//! more the reactor parks without being `asleep`: a completion wakes it, or a cancel, for which it is `parked`.

use super::answer::{Answer, SubmitError, Unavailable};
use super::slab::Slab;
use crate::host::Threads;
use blkmq_core::{IoError, SubmitterId};
use blkmq_engine::{Completion, Io, Unsubmitted};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

/// Places in the inbox for each I/O that may be in flight: while a device is kept busy by one depth of them,
/// another is ready to follow in one plug after the other, and a third is being made.
const INBOX_DEPTHS: u32 = 2;

pub(super) type Callback<P> = Box<dyn FnOnce(Answer<P>) + Send>;

/// The mutex, and how to wake the reactor behind it.
pub(super) struct Shared<P> {
    inbox: Mutex<Inbox<P>>,
    threads: Arc<Threads>,
    reactor: SubmitterId,
}

impl<P> Shared<P> {
    pub(super) fn new(depth: u32, threads: Arc<Threads>, reactor: SubmitterId) -> Arc<Self> {
        Arc::new(Self { inbox: Mutex::new(Inbox::new(depth)), threads, reactor })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inbox<P>> {
        self.inbox.lock().expect("no code of others runs under the lock")
    }

    /// Gives up the I/O of a future that still waits for it, if that is possible.
    pub(super) fn cancel(&self, ticket: u32) {
        let mut inbox = self.lock();
        let waker = inbox.cancel(ticket);
        let was_parked = !inbox.cancels.is_empty() && std::mem::take(&mut inbox.parked);
        drop(inbox);
        if was_parked {
            self.threads.wake_submitter(self.reactor);
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Lets go of the inbox after something was put in.
    pub(super) fn unlock_and_ring(&self, mut inbox: MutexGuard<'_, Inbox<P>>) {
        let was_asleep = std::mem::take(&mut inbox.asleep);
        drop(inbox);
        if was_asleep {
            self.threads.wake_submitter(self.reactor);
        }
    }

    /// Takes nothing more. What has a place goes on; who is in line has the I/O back.
    pub(super) fn close(&self) {
        let mut inbox = self.lock();
        let wakers = inbox.close();
        self.unlock_and_ring(inbox);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Who waits for an I/O, and where it is.
enum Ticket<P> {
    Line { place: u64, io: Io<P>, waker: Option<Waker> },
    Sent { cookie: u64, waker: Option<Waker> },
    Orphan,
    Call { cookie: u64, then: Callback<P> },
    Done(Answer<P>),
}

/// What is to be done about an answer, outside the lock.
pub(super) enum Delivery<P> {
    Wake(Option<Waker>),
    Call(Callback<P>, Answer<P>),
    Drop { _answer: Answer<P> },
}

/// What a future left behind, to be dropped outside the lock.
pub(super) struct Remains<P> {
    _io: Option<Io<P>>,
    _waker: Option<Waker>,
    _answer: Option<Answer<P>>,
}

pub(super) struct Inbox<P> {
    tickets: Slab<Ticket<P>>,
    /// Has a place: at most `most`.
    queue: VecDeque<(u32, Io<P>)>,
    /// In line for one, by `place`, ascending: tickets of futures that are alive.
    line: VecDeque<(u64, u32)>,
    next_place: u64,
    most: u32,
    /// In the queue, and to be given up.
    cancels: Vec<u32>,
    asleep: bool,
    parked: bool,
    closed: bool,
}

impl<P> Inbox<P> {
    fn new(depth: u32) -> Self {
        let most = depth.saturating_mul(INBOX_DEPTHS);
        Self {
            tickets: Slab::with_capacity((most + depth) as usize),
            queue: VecDeque::with_capacity(most as usize),
            line: VecDeque::new(),
            next_place: 0,
            most,
            cancels: Vec::new(),
            asleep: false,
            parked: false,
            closed: false,
        }
    }

    /// May a new I/O have a place?
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
        self.queue.len() < self.most as usize
    }

    /// Puts in an I/O whose future will ask for the ticket. There must be room.
    pub(super) fn send(&mut self, io: Io<P>) -> u32 {
        debug_assert!(self.check_room().is_ok());
        let ticket = self.tickets.insert(Ticket::Sent { cookie: io.cookie, waker: None });
        self.queue.push_back((ticket, io));
        ticket
    }

    /// Puts in an I/O with a callback. There must be room.
    pub(super) fn call(&mut self, io: Io<P>, then: Callback<P>) {
        debug_assert!(self.check_room().is_ok());
        let ticket = self.tickets.insert(Ticket::Call { cookie: io.cookie, then });
        self.queue.push_back((ticket, io));
    }

    /// Puts an I/O in line for a place.
    pub(super) fn stand_in_line(&mut self, io: Io<P>) -> u32 {
        let place = self.next_place;
        self.next_place += 1;
        let ticket = self.tickets.insert(Ticket::Line { place, io, waker: None });
        self.line.push_back((place, ticket));
        ticket
    }

    /// The answer, if there is one. Then the ticket is void.
    pub(super) fn fetch(&mut self, ticket: u32) -> Option<Answer<P>> {
        if !matches!(self.tickets.get_mut(ticket), Ticket::Done(_)) {
            return None;
        }
        match self.tickets.remove(ticket) {
            Ticket::Done(answer) => Some(answer),
            _ => unreachable!("it was done just now"),
        }
    }

    /// Whom to wake when the ticket's I/O is answered, which it is not.
    pub(super) fn waker(&mut self, ticket: u32) -> &mut Option<Waker> {
        match self.tickets.get_mut(ticket) {
            Ticket::Line { waker, .. } | Ticket::Sent { waker, .. } => waker,
            _ => unreachable!("a future waits for what is on its way only"),
        }
    }

    /// The future of this ticket is gone. O(1); if it was in line, O(log n) to find it and O(n) to close up.
    pub(super) fn forsake(&mut self, ticket: u32) -> Remains<P> {
        let mut remains = Remains { _io: None, _waker: None, _answer: None };
        if let Ticket::Sent { waker, .. } = self.tickets.get_mut(ticket) {
            remains._waker = waker.take();
            *self.tickets.get_mut(ticket) = Ticket::Orphan;
            return remains;
        }
        match self.tickets.remove(ticket) {
            Ticket::Line { place, io, waker } => {
                let at = self.line.binary_search_by_key(&place, |(place, _)| *place);
                self.line.remove(at.expect("who has a place in line is there"));
                (remains._io, remains._waker) = (Some(io), waker);
            }
            Ticket::Done(answer) => remains._answer = Some(answer),
            _ => unreachable!("a ticket has one future"),
        }
        remains
    }

    /// Answers an I/O that the reactor has not taken; of one that it has, it will learn. The waker is to be woken.
    fn cancel(&mut self, ticket: u32) -> Option<Waker> {
        let entry = self.tickets.get_mut(ticket);
        match std::mem::replace(entry, Ticket::Orphan) {
            Ticket::Line { place, io, waker } => {
                *entry = Ticket::Done(Ok(cancelled(io)));
                let at = self.line.binary_search_by_key(&place, |(place, _)| *place);
                self.line.remove(at.expect("who has a place in line is there"));
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

    /// The reactor takes the tickets of I/Os that it has and that are to be given up.
    pub(super) fn take_cancels(&mut self, into: &mut Vec<u32>) {
        into.append(&mut self.cancels);
    }

    /// The reactor takes up to `most` I/Os; those in line move up. With what it takes, `cookie` is the ticket.
    pub(super) fn take(&mut self, most: u32, into: &mut impl Extend<Io<P>>) {
        (self.asleep, self.parked) = (false, false);
        let n = self.queue.len().min(most as usize);
        into.extend(self.queue.drain(..n).map(|(ticket, io)| Io { cookie: ticket.into(), ..io }));
        while self.has_room()
            && let Some((_, ticket)) = self.line.pop_front()
        {
            let entry = self.tickets.get_mut(ticket);
            let Ticket::Line { io, waker, .. } = std::mem::replace(entry, Ticket::Orphan) else {
                unreachable!("who is in line has the ticket for it")
            };
            *entry = Ticket::Sent { cookie: io.cookie, waker };
            self.queue.push_back((ticket, io));
        }
    }

    /// An I/O that the reactor took is answered.
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

    /// Has the reactor something to do here, with so many I/Os in flight and credit for `depth`?
    pub(super) fn calls(&self, in_flight: u32, depth: u32) -> bool {
        !self.queue.is_empty() && in_flight < depth
            || !self.cancels.is_empty()
            || self.closed && in_flight == 0
    }

    /// The same, for a reactor that parks if not: whoever puts something in that it could take wakes it.
    pub(super) fn listen(&mut self, in_flight: u32, depth: u32) -> bool {
        let calls = self.calls(in_flight, depth);
        self.asleep = !calls && in_flight < depth;
        self.parked = !calls;
        calls
    }

    /// Is it closed, with nothing left to take?
    pub(super) fn is_over(&self) -> bool {
        self.closed && self.queue.is_empty()
    }

    fn close(&mut self) -> Vec<Waker> {
        self.closed = true;
        let line = std::mem::take(&mut self.line);
        let closed = line.into_iter().filter_map(|(_, ticket)| {
            let entry = self.tickets.get_mut(ticket);
            let Ticket::Line { io, waker, .. } = std::mem::replace(entry, Ticket::Orphan) else {
                unreachable!("who is in line has the ticket for it")
            };
            *entry = Ticket::Done(Err(SubmitError::Closed(Unsubmitted::new(io))));
            waker
        });
        closed.collect()
    }

    /// After the reactor has panicked: answers whatever it has not.
    pub(super) fn give_up(&mut self) -> Vec<Delivery<P>> {
        let queue = std::mem::take(&mut self.queue);
        let closed = queue
            .into_iter()
            .map(|(ticket, io)| (ticket, Err(SubmitError::Closed(Unsubmitted::new(io)))));
        let mut deliveries: Vec<_> =
            closed.map(|(ticket, answer)| self.deliver(ticket, answer)).collect();
        let used: Vec<u32> = self.tickets.used().collect();
        for ticket in used {
            if !matches!(self.tickets.get_mut(ticket), Ticket::Done(_)) {
                let lost = SubmitError::Lost { cookie: ticket.into() };
                deliveries.push(self.deliver(ticket, Err(lost)));
            }
        }
        deliveries
    }
}

/// The answer to an I/O that was given up before the queue had it.
pub(super) fn cancelled<P>(io: Io<P>) -> Completion<P> {
    Completion { cookie: io.cookie, result: Err(IoError::CANCELLED), payload: io.payload }
}

/// Puts the caller's cookie where the ticket's number was.
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
