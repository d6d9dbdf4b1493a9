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
    let io = take(&mut inbox, 8).remove(0);
    let refused = Refused::new(io, Refusal::Misaligned { block: 512 });
    inbox.deliver(ticket, Err(SubmitError::Refused(refused)));
    let answer = inbox.fetch(ticket).expect("it was delivered").expect_err("it was refused");
    assert_eq!(answer.into_io().expect("unchanged"), tests::io(70));
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
    // Tickets of dropped futures are freed. Other tickets keep their answers for their futures, one of which is dropped
    // here.
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
