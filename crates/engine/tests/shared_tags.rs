//! Resources that several share. Line 4 of `spec/framework.md` section 16 with whole queues: several queues share a set
//! of driver tags, each has its fair share, and a queue that waits for a tag is kicked when another returns one.
//!
//! Tokens and counters that instances of a policy share (`blkmq_sched::PolicyEnv`), as the engine implements them: the
//! bound over all hardware queues, the wake-ups when a token returns, and the governor's work.

use crate::common::{
    Call, Calls, Handle, accesses, assert_at_rest, config, deadline, replan, shape, ways, write,
};
use blkmq_core::{HwQueue, Instant, IoError, Nanos, SubmitterId};
use blkmq_engine::{Access, Config, ConfigError, DeviceShape, Queue, SharedTags, Submitter};
use blkmq_sched::Options;
use blkmq_sched::testkit::rationed;

/// One of several queues.
struct Member {
    queue: Queue<u32>,
    submitter: Submitter<u32>,
    device: Handle,
    calls: Calls,
    next: u64,
}

fn member(tags: &SharedTags, change: impl Fn(&mut Config<u32>)) -> Member {
    let (config, device) = config(shape(1, tags.depth()));
    let calls = Calls::default();
    let tags = Some(tags.clone());
    let mut config = Config { tags, host: Box::new(calls.clone()), ..config }.scheduler(deadline());
    change(&mut config);
    let queue = Queue::new(config).expect("valid");
    let submitter = queue.submitter().expect("one was asked for");
    Member { queue, submitter, device, calls, next: 0 }
}

impl Member {
    fn push(&mut self, now: Instant, ios: u64) {
        for _ in 0..ios {
            self.submitter.push(now, write(self.next * 64, 8)).expect("there is credit");
            self.next += 1;
        }
        self.submitter.flush(now);
    }

    fn poll(&mut self, now: Instant) -> u32 {
        self.submitter.poll(now);
        self.submitter.reap(u32::MAX, |_| {})
    }

    fn inside(&self) -> usize {
        self.device.with(|c| c.inside)
    }

    /// Completes all requests at its device.
    fn end_all(&mut self, now: Instant) {
        self.device.with(|c| c.finish = c.inside);
        self.poll(now);
    }
}

#[test]
fn s16_04_five_busy_queues_of_32_tags_have_seven_each_and_of_8_four() {
    for (depth, each) in [(32, 7), (8, 4)] {
        for access in accesses() {
            let tags = SharedTags::new(depth, 5);
            let mut members: Vec<_> =
                (0..5).map(|_| member(&tags, |c| c.access = access)).collect();
            let mut now = Instant::ZERO;
            // The first queue takes all tags, until others want some.
            members[0].push(now, 100);
            assert_eq!(members[0].inside(), depth as usize, "{access:?}");
            members[1..].iter_mut().for_each(|member| member.push(now, 100));
            for _ in 0..40 {
                now += Nanos(1000);
                for member in &mut members {
                    member.device.finish(1);
                    member.poll(now);
                }
            }
            assert_eq!(tags.share(), Some(each), "{access:?}");
            let held: Vec<_> = members.iter().map(Member::inside).collect();
            assert!(held.iter().all(|held| *held <= each as usize), "{access:?}: {held:?}");
            let all: usize = held.iter().sum();
            assert_eq!(all as u32, tags.in_use(), "{access:?}");
            assert!(all as u32 >= depth.min(5 * each) - 4, "{access:?}: {held:?} of {depth}");
            for _ in 0..400 {
                now += Nanos(1000);
                members.iter_mut().for_each(|member| member.end_all(now));
            }
            members.iter().for_each(|member| assert_at_rest(&member.queue, 1));
            assert_eq!(tags.in_use(), 0, "{access:?}");
        }
    }
}

#[test]
fn who_is_idle_for_a_tenth_of_a_second_is_not_counted() {
    let tags = SharedTags::new(32, 4);
    let mut members: Vec<_> = (0..4).map(|_| member(&tags, |_| {})).collect();
    let mut now = Instant::ZERO;
    members.iter_mut().for_each(|member| member.push(now, 1));
    members.iter_mut().for_each(|member| member.end_all(now));
    assert_eq!(tags.share(), Some(8));
    members[2].push(now, 200);
    let mut most = 0;
    for _ in 0..40 {
        now += Nanos::from_millis(10);
        members[2].device.finish(1);
        members[2].poll(now);
        most = most.max(members[2].inside());
        if now < Instant::ZERO + Nanos::from_millis(100) {
            assert_eq!(most, 8, "the others may come back");
        }
    }
    assert_eq!((most, tags.share()), (32, Some(32)));
    members[0].push(now, 1);
    assert_eq!(tags.share(), Some(16));
}

#[test]
fn a_queue_that_sleeps_is_called_when_another_one_gives_tags_back() {
    for access in accesses() {
        let tags = SharedTags::new(1, 2);
        let [mut one, mut other] = [(); 2].map(|()| member(&tags, |c| c.access = access));
        let now = Instant::ZERO;
        one.push(now, 1);
        other.push(now, 1);
        assert_eq!((one.inside(), other.inside()), (1, 0), "{access:?}");
        assert!(other.submitter.prepare_park(now).is_some());
        assert_eq!(other.submitter.next_deadline(), None, "{access:?}: only a call brings it back");
        one.end_all(now);
        assert_eq!(other.calls.take(), [Call::Submitter(SubmitterId(0))], "{access:?}");
        other.submitter.unpark();
        other.poll(now);
        assert_eq!((one.inside(), other.inside()), (0, 1), "{access:?}");
        other.end_all(now);
        assert_eq!(tags.in_use(), 0);
    }
}

#[test]
fn a_queue_that_goes_away_leaves_its_tags_and_its_place_to_others() {
    let tags = SharedTags::new(4, 2);
    let mut one = member(&tags, |_| {});
    let mut other = member(&tags, |_| {});
    assert_eq!(tags.room(), 0);
    let now = Instant::ZERO;
    one.push(now, 4);
    other.push(now, 4);
    assert_eq!((one.inside(), other.inside()), (4, 0));
    assert!(other.submitter.prepare_park(now).is_some());
    drop(one);
    assert_eq!(other.calls.take(), [Call::Submitter(SubmitterId(0))]);
    other.submitter.unpark();
    other.poll(now);
    assert_eq!((other.inside(), tags.in_use(), tags.room()), (4, 4, 1));
    other.end_all(now);
    assert_at_rest(&other.queue, 1);
    let _third = member(&tags, |_| {});
}

#[test]
fn a_queue_can_be_rebuilt_while_others_use_the_tags() {
    let tags = SharedTags::new(8, 2);
    let mut one = member(&tags, |_| {});
    let mut other = member(&tags, |_| {});
    let mut now = Instant::ZERO;
    for (round, access) in (0..30).zip(accesses().into_iter().cycle()) {
        one.push(now, 9);
        other.push(now, 9);
        let mut plan = one.queue.plan();
        plan.access = access;
        plan.nr_requests = Some(8 + round);
        let mut change = replan(&one.queue, plan).expect("possible");
        while !change.step(now) {
            now += Nanos(1000);
            one.end_all(now);
            other.end_all(now);
        }
        for _ in 0..20 {
            now += Nanos(1000);
            one.end_all(now);
            other.end_all(now);
        }
        assert_eq!(one.queue.stats().completed, 9 * (u64::from(round) + 1), "round {round}");
    }
    assert_at_rest(&one.queue, 1);
    assert_at_rest(&other.queue, 1);
    assert_eq!(tags.in_use(), 0);
}

#[test]
fn hardware_queues_may_share_with_those_of_other_queues() {
    let tags = SharedTags::new(6, 2);
    let shape = DeviceShape { shared_tags: true, ..shape(3, 6) };
    let several = |tags: &SharedTags| {
        let (config, device) = config(shape);
        let queue = Queue::new(Config { tags: Some(tags.clone()), submitters: 3, ..config });
        (queue.expect("valid"), device)
    };
    let (one, other) = (several(&tags), several(&tags));
    let mut submitters: Vec<_> = [&one, &other]
        .into_iter()
        .flat_map(|(queue, _)| (0..3).map(|_| queue.submitter().expect("there are three")))
        .collect();
    let mut now = Instant::ZERO;
    for submitter in &mut submitters {
        (0..20).for_each(|n| submitter.push(now, write(n * 64, 8)).expect("there is credit"));
        submitter.flush(now);
    }
    let mut ended = 0;
    for _ in 0..400 {
        now += Nanos(1000);
        for (_, device) in [&one, &other] {
            assert!(device.with(|c| c.inside) <= 6);
            device.with(|c| c.finish = c.inside);
        }
        assert!(tags.in_use() <= 6);
        for submitter in &mut submitters {
            submitter.poll(now);
            ended += submitter.reap(u32::MAX, |_| {});
        }
    }
    assert_eq!(ended, 120);
    assert_eq!(one.0.tags_in_use(HwQueue(0)), 0);
}

#[test]
fn what_does_not_fit_is_refused() {
    let tags = SharedTags::new(8, 1);
    let refused = |hw_queues, depth| {
        let (config, _) = config(shape(hw_queues, depth));
        let access = Access::Combining;
        Queue::new(Config { tags: Some(tags.clone()), access, ..config })
            .expect_err("it does not fit")
    };
    assert_eq!(refused(1, 16), ConfigError::Tags { depth: 8 });
    assert_eq!(refused(2, 8), ConfigError::Tags { depth: 8 });
    let _one = member(&tags, |_| {});
    assert_eq!(refused(1, 8), ConfigError::TagUsers);
    assert!(refused(1, 8).to_string().contains("as many queues"));
}

const HW_QUEUES: u16 = 4;

/// A queue of four hardware queues with a submitter each, and a policy with these options.
fn rationed(
    options: &str,
    change: impl Fn(&mut Config<u32>),
) -> (Queue<u32>, Vec<Submitter<u32>>, Handle) {
    let (config, device) = config(shape(HW_QUEUES, 8));
    let mut config = Config { submitters: HW_QUEUES, ..config }.scheduler(&rationed::FACTORY);
    config.options = Options::parse(rationed::FACTORY.attributes, options).expect("they exist");
    change(&mut config);
    let queue = Queue::new(config).expect("valid");
    let submitters = (0..HW_QUEUES).map(|_| queue.submitter().expect("so many were asked for"));
    let submitters = submitters.collect();
    (queue, submitters, device)
}

/// Submits `ios` to each hardware queue.
fn submit(submitters: &mut [Submitter<u32>], now: Instant, ios: u64) {
    for (at, submitter) in (0..).zip(submitters) {
        (0..ios).for_each(|n| {
            submitter.push(now, write((at * 1000 + n) * 64, 8)).expect("there is credit");
        });
        submitter.flush(now);
    }
}

fn poll(submitters: &mut [Submitter<u32>], now: Instant) -> u32 {
    let turn = |submitter: &mut Submitter<u32>| {
        submitter.poll(now);
        submitter.reap(u32::MAX, |_| {})
    };
    submitters.iter_mut().map(turn).sum()
}

#[test]
fn all_hardware_queues_together_have_no_more_at_the_device_than_there_are_tokens() {
    for (access, modes) in ways() {
        let (queue, mut submitters, device) = rationed("tokens=3", |c| {
            (c.access, c.modes) = (access, modes);
        });
        let mut now = Instant::ZERO;
        submit(&mut submitters, now, 8);
        let mut ended = 0;
        for _ in 0..200 {
            assert!(device.with(|c| c.inside) <= 3);
            assert_eq!(queue.tokens()[0].0 as usize, device.with(|c| c.inside), "{access:?}");
            now += Nanos(100);
            device.finish(1);
            ended += poll(&mut submitters, now);
        }
        assert_eq!((ended, device.with(|c| c.most_inside)), (32, 3), "{access:?}");
        assert_at_rest(&queue, HW_QUEUES);
        assert_eq!(queue.tokens(), [(0, 3)]);
    }
}

#[test]
fn a_token_comes_back_with_a_request_that_is_put_back_or_tried_again() {
    for (access, modes) in ways() {
        let (queue, mut submitters, device) = rationed("tokens=1", |c| {
            (c.access, c.modes) = (access, modes);
            c.retries = 2;
        });
        device.with(|c| c.result = Some(Err(IoError::IO)));
        let mut now = Instant::ZERO;
        submit(&mut submitters, now, 2);
        let mut ended = 0;
        for round in 0..400 {
            now += Nanos(100);
            device.with(|c| if round % 5 == 0 { c.requeue = 1 } else { c.finish = 1 });
            ended += poll(&mut submitters, now);
            assert!(device.with(|c| c.inside) <= 1);
        }
        assert_eq!((ended, queue.stats().retries), (8, 16), "{access:?}");
        assert!(queue.stats().requeues > 16, "{access:?}");
        assert_eq!(queue.tokens(), [(0, 1)]);
    }
}

#[test]
fn more_tokens_by_attribute_reach_those_who_wait() {
    let (queue, mut submitters, device) = rationed("tokens=0", |_| {});
    let now = Instant::ZERO;
    submit(&mut submitters, now, 1);
    poll(&mut submitters, now);
    assert_eq!(device.with(|c| c.inside), 0);
    let mut change = queue.set_attribute("iosched/tokens", "3").expect("it is one");
    while !change.step(now) {}
    poll(&mut submitters, now);
    assert_eq!((device.with(|c| c.inside), queue.tokens()), (3, vec![(3, 3)]));
    device.finish(4);
    assert_eq!((0..8).map(|_| poll(&mut submitters, now)).sum::<u32>(), 4);
    assert_at_rest(&queue, HW_QUEUES);
}

#[test]
fn the_governor_sees_every_sample_of_every_instance_once() {
    let (queue, mut submitters, device) = rationed("tokens=1,more=2", |_| {});
    device.with(|c| c.inline = true);
    let mut now = Instant::ZERO;
    let mut ended = 0;
    for _ in 0..400 {
        submit(&mut submitters, now, 3);
        now += Nanos::from_micros(50);
        ended += poll(&mut submitters, now);
    }
    // Elevators learn of completions when they run, and the governor reviews a millisecond after that.
    for _ in 0..2 {
        now += Nanos(rationed::REVIEW.0 + 1);
        submit(&mut submitters, now, 0);
        let _ = queue.begin_run(submitters[0].hw()).map(|mut run| run.step(now));
    }
    let mut shown = Vec::new();
    queue.inspect_governor(&mut |name, value| shown.push((name, value)));
    let [("completed", seen)] = shown[..] else { panic!("{shown:?}") };
    assert_eq!(ended, 4 * 3 * 400);
    assert!((4000..=u64::from(ended)).contains(&seen), "{seen} of {ended}");
    assert_eq!(queue.tokens(), [(0, 1 + 2 * (seen / 1000) as u32)]);
}
