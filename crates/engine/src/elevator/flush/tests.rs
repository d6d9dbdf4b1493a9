use super::*;
use blkmq_core::IoError;

const HW: HwQueue = HwQueue(2);
const T0: Instant = Instant::ZERO;
const BARE: Sequence = Sequence { pre: true, data: false, post: false };
const PRE: Sequence = Sequence { pre: true, data: true, post: false };
const POST: Sequence = Sequence { pre: false, data: true, post: true };
const BOTH: Sequence = Sequence { pre: true, data: true, post: true };
const BACK: WriteCache = WriteCache::Back { fua: false };

fn rq(index: u32) -> RequestId {
    RequestId::new(index, 0)
}

fn queues() -> FlushQueues {
    FlushQueues::new(BACK, 2..4, 16)
}

fn enter(flushes: &mut FlushQueues, index: u32, steps: Sequence) {
    assert_eq!(flushes.enter(T0, HW, rq(index), steps), !steps.pre);
}

/// A flush in the name of `carrier` is over; returns the next steps of the requests that it served.
fn flushed(flushes: &mut FlushQueues, carrier: u32, result: IoResult) -> Vec<(u32, Next)> {
    flushes.flushed(HW, rq(carrier), result);
    let served = std::iter::from_fn(|| flushes.next_served(HW));
    served.map(|(id, next)| (id.index() as u32, next)).collect()
}

fn end(data: bool) -> Next {
    Next::End { result: Ok(()), data }
}

#[test]
fn what_an_io_needs_follows_from_its_flags_and_the_cache() {
    let of = |cache, op, flags| Sequence::of(cache, op, flags);
    let fua = WriteCache::Back { fua: true };
    for op in [Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes, Op::Read] {
        assert_eq!(of(WriteCache::Through, op, BARRIERS), None);
    }
    assert_eq!(of(BACK, Op::Flush, IoFlags::NONE), Some(BARE));
    assert_eq!(of(fua, Op::Flush, IoFlags::NONE), Some(BARE));
    assert_eq!(of(BACK, Op::Write, IoFlags::SYNC), None);
    assert_eq!(of(BACK, Op::Write, IoFlags::PREFLUSH), Some(PRE));
    assert_eq!(of(BACK, Op::Write, IoFlags::FUA), Some(POST));
    assert_eq!(of(BACK, Op::Write, BARRIERS), Some(BOTH));
    assert_eq!(of(fua, Op::Write, IoFlags::FUA), None, "the device does it");
    assert_eq!(of(fua, Op::Write, BARRIERS), Some(PRE));
    assert!(fua.sequenced() == IoFlags::PREFLUSH && BACK.sequenced() == BARRIERS);
    assert!(fua.meaningless() == IoFlags::NONE && BACK.meaningless() == IoFlags::NONE);
    let through = WriteCache::Through;
    assert!(through.sequenced() == IoFlags::NONE && through.meaningless() == BARRIERS);
}

#[test]
fn all_three_steps_come_in_order() {
    let mut f = queues();
    enter(&mut f, 0, BOTH);
    assert_eq!(f.begin(T0, HW), Some(rq(0)));
    assert_eq!(f.way(rq(0)), Way::Flush);
    assert_eq!(flushed(&mut f, 0, Ok(())), [(0, Next::Data)]);
    assert_eq!((f.way(rq(0)), f.begin(T0, HW)), (Way::Data, None));
    assert_eq!(f.data_done(T0, HW, rq(0), Ok(())), None);
    assert_eq!(f.begin(T0, HW), Some(rq(0)));
    assert_eq!(flushed(&mut f, 0, Ok(())), [(0, end(true))]);
    assert!(f.is_empty() && f.way(rq(0)) == Way::Plain);
}

#[test]
fn steps_that_are_not_needed_are_left_out() {
    let mut f = queues();
    enter(&mut f, 0, BARE);
    enter(&mut f, 1, PRE);
    enter(&mut f, 2, POST);
    assert_eq!(f.way(rq(2)), Way::Data);
    assert_eq!(f.data_done(T0, HW, rq(2), Ok(())), None);
    assert_eq!(f.begin(T0, HW), Some(rq(0)));
    let after = [(0, end(false)), (1, Next::Data), (2, end(true))];
    assert_eq!(flushed(&mut f, 0, Ok(())), after);
    assert_eq!(f.data_done(T0, HW, rq(1), Ok(())), Some(Ok(())));
    assert!(f.is_empty() && f.begin(T0, HW).is_none());
}

#[test]
fn c1_one_flush_at_a_time_and_who_comes_later_waits_for_the_next() {
    let mut f = queues();
    (0..3).for_each(|i| enter(&mut f, i, BARE));
    assert_eq!(f.begin(T0, HW), Some(rq(0)));
    (3..6).for_each(|i| enter(&mut f, i, BARE));
    let late = T0 + PENDING_AGE + PENDING_AGE;
    assert_eq!((f.begin(late, HW), f.deadline(HW)), (None, None), "not even after 5 s");
    let first: Vec<_> = (0..3).map(|i| (i, end(false))).collect();
    assert_eq!(flushed(&mut f, 0, Ok(())), first);
    assert_eq!(f.begin(late, HW), Some(rq(3)));
    let second: Vec<_> = (3..6).map(|i| (i, end(false))).collect();
    assert_eq!(flushed(&mut f, 3, Ok(())), second);
    assert!(f.is_empty());
}

/// The rule that makes FUA true: the flush under way may have begun before the data was in the cache.
#[test]
fn a_flush_that_began_before_the_data_was_done_does_not_count() {
    let mut f = queues();
    enter(&mut f, 0, BARE);
    assert_eq!(f.begin(T0, HW), Some(rq(0)));
    enter(&mut f, 1, POST);
    assert_eq!(f.data_done(T0, HW, rq(1), Ok(())), None);
    assert_eq!(flushed(&mut f, 0, Ok(())), [(0, end(false))], "1 is not served");
    assert_eq!(f.begin(T0, HW), Some(rq(1)));
    assert_eq!(flushed(&mut f, 1, Ok(())), [(1, end(true))]);
}

#[test]
fn c2_a_flush_waits_for_data_that_could_share_it() {
    let mut f = queues();
    (0..8).for_each(|i| enter(&mut f, i, POST));
    for i in 0..8 {
        assert_eq!(f.begin(T0, HW), None, "{i} done");
        assert_eq!(f.data_done(T0, HW, rq(i), Ok(())), None);
    }
    assert_eq!(f.begin(T0, HW), Some(rq(0)));
    assert_eq!(flushed(&mut f, 0, Ok(())).len(), 8);
}

#[test]
fn c3_after_5_s_it_waits_no_longer() {
    let mut f = queues();
    let since = T0 + Nanos::from_millis(7);
    enter(&mut f, 0, POST);
    assert_eq!(f.deadline(HW), None, "nobody is pending");
    assert!(!f.enter(since, HW, rq(1), BARE));
    assert!(!f.enter(since + Nanos::from_secs(3), HW, rq(2), BARE), "the oldest counts");
    let due = since + PENDING_AGE;
    assert_eq!(f.deadline(HW), Some(due));
    assert_eq!(f.begin(Instant::from_nanos(due.as_nanos() - 1), HW), None);
    assert_eq!(f.begin(due, HW), Some(rq(1)));
    assert_eq!(flushed(&mut f, 1, Ok(())).len(), 2);
    assert_eq!(f.data_done(due, HW, rq(0), Ok(())), None);
    assert_eq!(f.begin(due, HW), Some(rq(0)), "its age begins when it becomes pending");
}

#[test]
fn an_error_in_any_step_ends_the_sequence() {
    let error = Err(IoError::TIMED_OUT);
    let failed = |data| Next::End { result: error, data };
    let mut f = queues();
    enter(&mut f, 0, BOTH);
    enter(&mut f, 1, BARE);
    assert_eq!(f.begin(T0, HW), Some(rq(0)));
    assert_eq!(flushed(&mut f, 0, error), [(0, failed(false)), (1, failed(false))], "in PRE");

    enter(&mut f, 0, POST);
    assert_eq!(f.data_done(T0, HW, rq(0), error), Some(error), "in DATA");
    assert!(f.is_empty());

    enter(&mut f, 0, POST);
    assert_eq!(f.data_done(T0, HW, rq(0), Ok(())), None);
    assert_eq!(f.begin(T0, HW), Some(rq(0)));
    assert_eq!(flushed(&mut f, 0, error), [(0, failed(true))], "in POST");
    assert!(f.is_empty() && f.begin(T0, HW).is_none());
}

#[test]
fn hardware_queues_flush_by_themselves() {
    let mut f = queues();
    enter(&mut f, 0, POST);
    assert!(!f.enter(T0, HwQueue(3), rq(1), BARE));
    assert_eq!(f.begin(T0, HwQueue(3)), Some(rq(1)), "the data of another one does not hold it up");
    assert_eq!(f.begin(T0, HW), None);
    assert_eq!(f.hws().collect::<Vec<_>>(), [HW, HwQueue(3)]);
    let f = FlushQueues::new(BACK, 3..6, 16);
    assert_eq!(f.hws().collect::<Vec<_>>(), [3, 4, 5].map(HwQueue));
}

#[test]
fn a_reused_slot_is_not_taken_for_what_was_in_it() {
    let mut f = queues();
    enter(&mut f, 0, POST);
    assert_eq!(f.way(rq(0).next_generation()), Way::Plain);
    assert_eq!(f.data_done(T0, HW, rq(0), Err(IoError::IO)), Some(Err(IoError::IO)));
    let again = rq(0).next_generation();
    assert!(!f.enter(T0, HW, again, BARE));
    assert_eq!(f.begin(T0, HW), Some(again));
}

#[test]
fn a_request_is_in_a_sequence_from_its_entry_to_its_end() {
    let mut f = queues();
    assert!(!f.has(rq(0)) && !f.has(rq(99)), "a slot beyond the last one has no entry");
    enter(&mut f, 0, BOTH);
    assert!(f.has(rq(0)) && !f.has(rq(0).next_generation()) && !f.is_empty());
    assert_eq!(f.way(rq(0)), Way::Plain, "it waits, and is not issued");
    assert_eq!(f.begin(T0, HW), Some(rq(0)));
    assert_eq!(f.way(rq(0).next_generation()), Way::Plain, "the flush goes by another name");
    assert_eq!(flushed(&mut f, 0, Ok(())), [(0, Next::Data)]);
    assert!(f.has(rq(0)) && !f.is_empty());
    assert_eq!(f.data_done(T0, HW, rq(0), Ok(())), None);
    assert!(f.has(rq(0)));
    assert_eq!(f.begin(T0, HW), Some(rq(0)));
    assert_eq!(flushed(&mut f, 0, Ok(())), [(0, end(true))]);
    assert!(!f.has(rq(0)) && f.is_empty());
}

#[test]
#[should_panic(expected = "is in a sequence already")]
fn a_request_enters_once() {
    let mut f = queues();
    enter(&mut f, 0, BARE);
    enter(&mut f, 0, BARE);
}

#[test]
#[should_panic(expected = "is in no sequence")]
fn data_of_a_request_that_ended_is_refused() {
    let mut f = queues();
    enter(&mut f, 0, POST);
    assert_eq!(f.data_done(T0, HW, rq(0), Err(IoError::IO)), Some(Err(IoError::IO)));
    let _ = f.data_done(T0, HW, rq(0), Ok(()));
}

#[test]
#[should_panic(expected = "is in no sequence")]
fn data_of_another_request_in_the_slot_is_refused() {
    let mut f = queues();
    enter(&mut f, 0, POST);
    let _ = f.data_done(T0, HW, rq(0).next_generation(), Ok(()));
}

#[test]
#[should_panic(expected = "has no data in flight")]
fn data_that_has_not_been_issued_is_refused() {
    let mut f = queues();
    enter(&mut f, 0, PRE);
    let _ = f.data_done(T0, HW, rq(0), Ok(()));
}

#[test]
#[should_panic(expected = "carries no flush")]
fn a_flush_ends_in_the_name_in_which_it_began() {
    let mut f = queues();
    (0..2).for_each(|i| enter(&mut f, i, BARE));
    assert_eq!(f.begin(T0, HW), Some(rq(0)));
    f.flushed(HW, rq(1), Ok(()));
}

#[test]
fn without_a_cache_there_is_nothing_to_look_at() {
    let f = FlushQueues::new(WriteCache::Through, 0..1, 1 << 20);
    assert!(f.is_empty() && f.entries.is_empty());
    assert_eq!(f.way(rq(3)), Way::Plain);
}
