//! The attributes of a queue, read and written as text while I/O is in flight (`spec/framework.md` sections 3
//! and 11).

use crate::common;

use blkmq_core::{HwQueue, Instant, IoFlags, Limits, Op};
use blkmq_engine::attributes::{
    self, Accepted, Attribute, AttributeError, Permission, SetAttributeError, Snapshot, Unit,
};
use blkmq_engine::{
    Busy, Change, ChangeError, Config, DeviceShape, Io, Plan, Queue, Refusal, Submitter, WriteCache,
};
use blkmq_sched::{Factory, Scope, registry};
use common::{
    Handle, assert_at_rest, config, deadline, drain, read, replan, shape, submit_each, write,
};

const T0: Instant = Instant::ZERO;

/// A device with every feature that has a writable attribute.
fn able() -> DeviceShape {
    let limits = Limits {
        logical_block_size: 4096,
        max_sectors: 4096,
        max_discard_sectors: 1024,
        ..Limits::default()
    };
    DeviceShape { limits, cache: WriteCache::Back { fua: true }, ..shape(2, 4) }
}

fn queue(shape: DeviceShape, scheduler: &'static Factory) -> (Queue<u32>, Handle) {
    let (config, device) = config(shape);
    (Queue::new(config.scheduler(scheduler)).expect("valid"), device)
}

fn none() -> &'static Factory {
    registry::find("none").expect("registered")
}

/// The plan of a queue around such a device.
fn plan(shape: DeviceShape, scheduler: &'static Factory) -> Plan {
    queue(shape, scheduler).0.plan()
}

fn shown(plan: &Plan, path: &str) -> String {
    attributes::read(&Snapshot::idle(plan.clone()), path).expect("there is such an attribute")
}

fn refused(plan: &Plan, path: &str, text: &str) -> String {
    attributes::write(plan, path, text).expect_err("not accepted").to_string()
}

/// Sets an attribute, while the device finishes a request after each step.
fn set(queue: &Queue<u32>, device: &Handle, path: &str, text: &str) {
    let change = queue.set_attribute(path, text).expect("accepted");
    finish(change, device, &format!("{path}={text}"));
}

fn finish(mut change: Change<u32>, device: &Handle, what: &str) {
    for _ in 0..1000 {
        if change.step(T0) {
            return;
        }
        device.finish(1);
    }
    panic!("{what} is not done after 1000 steps");
}

/// A value other than `present` that the attribute accepts, as its own errors list them.
fn another(plan: &Plan, attribute: &Attribute, present: &str) -> String {
    if let Some(name) = attribute.path.strip_prefix("iosched/") {
        let mut all = plan.scheduler.attributes.iter();
        let a = all.find(|a| a.name == name).expect("it is the scheduler's");
        let other = if present == a.min.to_string() { a.min + 1 } else { a.min };
        return other.to_string();
    }
    match attributes::write(plan, &attribute.path, "?").expect_err("nothing accepts this") {
        AttributeError::NotANumber { accepted: Accepted { min, step, .. }, .. } => {
            let other = if present == min.to_string() { min + step } else { min };
            other.to_string()
        }
        AttributeError::NotAWord { accepted, .. } => {
            (*accepted.iter().find(|word| **word != present).expect("there are two words"))
                .to_owned()
        }
        e => panic!("{e}"),
    }
}

/// The word in brackets; empty if there is none.
fn chosen(value: &str) -> &str {
    value.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(value, |(word, _)| word)
}

#[test]
fn what_is_written_is_what_is_read_while_io_is_in_flight() {
    let all = attributes::list(&plan(able(), deadline())).collect::<Vec<_>>();
    let writable = all.iter().filter(|a| a.permission == Permission::ReadWrite);
    let mut tried = 0;
    for attribute in writable {
        let path = &*attribute.path;
        let (queue, device) = queue(able(), deadline());
        let mut sub = queue.submitter().expect("one is free");
        // Four are at the device, eight wait in the elevator, one in the plug.
        submit_each(&mut sub, T0, (0..12).map(|i| write(i * 800, 8)));
        sub.push(T0, write(80_000, 8)).expect("there is credit");

        let value = queue.attribute(path).expect("listed");
        let present = chosen(&value).to_string();
        let mut change = queue.set_attribute(path, &present).expect("it is what it is");
        assert!(change.step(T0), "{path}={present} changes nothing, so nothing is in its way");
        assert_eq!(queue.attribute(path).expect("listed"), value);

        let other = another(&queue.plan(), attribute, &present);
        assert_ne!(other, present);
        set(&queue, &device, path, &format!("{other}\n"));
        assert_eq!(chosen(&queue.attribute(path).expect("listed")), other, "{path}");
        sub.flush(T0);
        submit_each(&mut sub, T0, [write(90_000, 8)]);
        device.with(|c| c.inline = true);
        device.finish(1000);
        assert_eq!(drain(&mut sub, &mut { T0 }, 1000).len(), 14, "{path}={other}");
        assert_at_rest(&queue, 2);
        tried += 1;
    }
    assert!(tried >= 8 + deadline().attributes.len(), "{tried} attributes can be written");
}

#[test]
fn a_number_is_accepted_at_its_limit_and_not_beyond() {
    let plan = plan(DeviceShape { hw_queue_depth: 64, ..able() }, deadline());
    let none = plan.clone().scheduler(none());
    let tiny = Plan { nr_requests: Some(4), ..none.clone() };
    for (plan, path, text, result) in [
        (&plan, "queue/nr_requests", "0", Some("4")),
        (&plan, "queue/nr_requests", "3", Some("4")),
        (&plan, "queue/nr_requests", "4", Some("4")),
        (&plan, "queue/nr_requests", "2048", Some("2048")),
        (&plan, "queue/nr_requests", "2049", None),
        (&plan, "queue/nr_requests", "-1", None),
        (&plan, "queue/nr_requests", "99999999999999999999999999999999999999999999", None),
        (&none, "queue/nr_requests", "64", Some("64")),
        (&none, "queue/nr_requests", "65", None),
        (&tiny, "queue/nr_requests", "64", Some("64")),
        (&plan, "queue/async_depth", "0", None),
        (&plan, "queue/async_depth", "1", Some("1")),
        (&plan, "queue/async_depth", "128", Some("128")),
        (&plan, "queue/async_depth", "129", Some("128")),
        (&plan, "queue/nomerges", "2", Some("2")),
        (&plan, "queue/nomerges", "3", None),
        (&plan, "queue/max_sectors_kb", "3", None),
        (&plan, "queue/max_sectors_kb", "4", Some("4")),
        (&plan, "queue/max_sectors_kb", "6", None),
        (&plan, "queue/max_sectors_kb", "2048", Some("2048")),
        (&plan, "queue/max_sectors_kb", "2052", None),
        (&plan, "queue/discard_max_bytes", "0", Some("0")),
        (&plan, "queue/discard_max_bytes", "4096", Some("4096")),
        (&plan, "queue/discard_max_bytes", "4608", None),
        (&plan, "queue/discard_max_bytes", "524288", Some("524288")),
        (&plan, "queue/discard_max_bytes", "528384", None),
        (&plan, "queue/io_timeout", "0", None),
        (&plan, "queue/io_timeout", "1", Some("1")),
        (&plan, "queue/io_timeout", "4294967295", Some("4294967295")),
        (&plan, "queue/io_timeout", "4294967296", None),
        (&plan, "blkmq/device_depth", "1", Some("1")),
        (&plan, "blkmq/device_depth", "10240", Some("10240")),
        (&plan, "blkmq/device_depth", "10241", None),
        (&plan, "blkmq/retries", "255", Some("255")),
        (&plan, "blkmq/retries", "256", None),
        (&plan, "iosched/fifo_batch", "-5", Some("0")),
        (&plan, "iosched/front_merges", "7", Some("1")),
        (&plan, "iosched/async_depth", "4000", Some("128")),
    ] {
        match (attributes::write(plan, path, text), result) {
            (Ok(plan), Some(value)) => assert_eq!(shown(&plan, path), value, "{path}={text}"),
            (Err(AttributeError::OutOfRange { .. }), None) => {}
            (result, _) => panic!("{path}={text}: {result:?}"),
        }
    }
}

#[test]
fn errors_say_what_would_be_accepted() {
    let plan = plan(DeviceShape { hw_queue_depth: 64, ..able() }, deadline());
    let none = plan.clone().scheduler(none());
    for (plan, path, text, message) in [
        (
            &plan,
            "queue/nr_requests",
            "2049",
            "queue/nr_requests=2049: accepted: a whole number from 4 to 2048 (count)",
        ),
        (
            &none,
            "queue/nr_requests",
            "0x40",
            "queue/nr_requests=0x40: accepted: a whole number from 4 to 64 (count)",
        ),
        (
            &plan,
            "queue/max_sectors_kb",
            "6",
            "queue/max_sectors_kb=6: accepted: a whole number from 4 to 2048 that is a multiple of 4 (KiB)",
        ),
        (
            &none,
            "queue/async_depth",
            "8",
            "queue/async_depth cannot be set: without a scheduler there is nothing to divide; choose one in \
             queue/scheduler",
        ),
        (&plan, "queue/fua", "1", "queue/fua can only be read"),
        (&plan, "hctx1/active", "1", "hctx1/active can only be read"),
        (
            &plan,
            "queue/write_cache",
            "writeback",
            "queue/write_cache=writeback: accepted: write back, write through",
        ),
        (
            &plan,
            "iosched/fifo_batch",
            "many",
            "iosched/fifo_batch=many: accepted: a whole number from 0 to 2147483647 (count)",
        ),
        (
            &plan,
            "queue/nr_request",
            "1",
            "queue/nr_request: no such attribute; accepted: queue/nr_requests",
        ),
        (
            &plan,
            "async_depth",
            "1",
            "async_depth: no such attribute; accepted: queue/async_depth, iosched/async_depth",
        ),
        (&plan, "hctx2/active", "1", "hctx2/active: no such attribute; accepted: hctxN/active"),
    ] {
        assert_eq!(refused(plan, path, text), message);
    }
    let scheduler = refused(&plan, "queue/scheduler", "cfq");
    assert!(scheduler.starts_with("queue/scheduler=cfq: accepted: none, mq-deadline"));
    let all = refused(&plan, "zzz", "1");
    for known in ["size", "queue/scheduler", "iosched/read_expire", "mq/N/nr_tags", "blkmq/pump"] {
        assert!(all.contains(known), "{all}");
    }
}

#[test]
fn s16_03_defaults_of_nr_requests_are_read_through_the_tree() {
    for (depth, default) in [(64, "128"), (1024, "256"), (32, "64")] {
        let plan = plan(shape(1, depth), deadline());
        assert_eq!(shown(&plan, "queue/nr_requests"), default);
        assert_eq!(shown(&plan, "queue/async_depth"), default);
        assert_eq!(shown(&plan, "mq/0/nr_tags"), depth.to_string());
        let none = attributes::write(&plan, "queue/scheduler", "none").expect("registered");
        assert_eq!(shown(&none, "queue/nr_requests"), depth.to_string());
    }
}

#[test]
fn a_scheduler_begins_with_its_defaults() {
    let (queue, device) = queue(shape(1, 32), deadline());
    let shown = |path| queue.attribute(path).expect("there is such an attribute");
    assert!(shown("queue/scheduler").starts_with("none [mq-deadline]"));
    set(&queue, &device, "iosched/fifo_batch", "7");
    set(&queue, &device, "queue/nr_requests", "200");
    set(&queue, &device, "queue/async_depth", "20");
    // The current scheduler: no switch, so settings stay.
    set(&queue, &device, "queue/scheduler", "mq-deadline\n");
    assert_eq!(shown("queue/nr_requests"), "200");
    set(&queue, &device, "queue/scheduler", "none");
    assert!(shown("queue/scheduler").starts_with("[none] mq-deadline"));
    assert_eq!(shown("queue/nr_requests"), "32");
    assert!(queue.attribute("iosched/fifo_batch").is_err(), "none has no options");
    set(&queue, &device, "queue/scheduler", "mq-deadline");
    let defaults = ["queue/nr_requests", "queue/async_depth", "iosched/fifo_batch"].map(shown);
    assert_eq!(defaults, ["64", "64", "16"]);
}

#[test]
fn auto_follows_the_groups_until_a_scheduler_is_named() {
    let (queue, device) = queue(shape(1, 32), deadline());
    let shown = |path| queue.attribute(path).expect("there is such an attribute");
    assert_eq!(shown("blkmq/auto"), "off");
    set(&queue, &device, "queue/scheduler", "auto");
    assert!(shown("blkmq/auto").starts_with("mq-deadline, since no groups compete"));
    set(&queue, &device, "iosched/fifo_batch", "7");
    let add = |name: &str| {
        let change = queue.edit(|plan| plan.groups.add(name, "/").map(drop));
        finish(change.expect("possible"), &device, name);
    };
    add("a");
    assert_eq!(shown("iosched/fifo_batch"), "7", "the same scheduler as before");
    add("b");
    assert_eq!(shown("blkmq/auto"), "mclock, since 2 groups compete");
    assert_eq!(shown("queue/scheduler"), "none mq-deadline kyber bfq [mclock] auto");
    set(&queue, &device, "iosched/merge_kib", "64");
    // The name of the current scheduler: nothing else changes.
    set(&queue, &device, "queue/scheduler", "mclock");
    assert_eq!((shown("blkmq/auto"), shown("iosched/merge_kib")), ("off".into(), "64".into()));
    set(&queue, &device, "queue/scheduler", "none");
    add("c");
    assert!(shown("queue/scheduler").starts_with("[none]"), "a scheduler that was named stays");
}

#[test]
fn a_scheduler_of_ones_own_is_shown_behind_the_others() {
    let plan = plan(shape(1, 32), &FIFO);
    let text = shown(&plan, "queue/scheduler");
    assert!(text.starts_with("none mq-deadline") && text.ends_with(" [fifo] auto"), "{text}");
    assert_eq!(shown(&plan, "queue/nr_requests"), "64");
    let same = attributes::write(&plan, "queue/scheduler", "fifo").expect("it is there");
    assert_eq!(shown(&same, "queue/scheduler"), text);
}

/// Regression test: it was shown, but refused once another scheduler had been chosen.
#[test]
fn a_scheduler_of_ones_own_can_be_chosen_by_name_again() {
    let (own, registered) = (plan(shape(1, 32), &FIFO), "mq-deadline");
    let away = attributes::write(&own, "queue/scheduler", registered).expect("registered");
    assert!(shown(&away, "queue/scheduler").ends_with(" fifo auto"));
    let back = attributes::write(&away, "queue/scheduler", "fifo").expect("it was there before");
    assert_eq!(back.scheduler.name, "fifo");

    // A scheduler that was only named, and one that an edit has brought.
    let (config, _device) = config(shape(1, 32));
    let config = Config { schedulers: vec![&FIFO], ..config };
    let named = config.plan();
    assert!(shown(&named, "queue/scheduler").ends_with(" fifo auto"));
    let chosen = attributes::write(&named, "queue/scheduler", "fifo").expect("it was named");
    assert_eq!(chosen.scheduler.name, "fifo");
    let edited = plan(shape(1, 32), none()).scheduler(&FIFO).scheduler(none());
    assert!(attributes::write(&edited, "queue/scheduler", "fifo").is_ok());
    let twice = Config { schedulers: vec![&FIFO, &FIFO, none()], ..config };
    assert_eq!(twice.plan().schedulers.len(), 1, "each name once, and no registered one");
}

#[test]
fn every_attribute_of_every_scheduler_is_under_iosched() {
    for factory in registry::ALL {
        let plan = plan(shape(1, 32), factory);
        let listed = attributes::list(&plan).filter(|a| a.path.starts_with("iosched/"));
        let listed: Vec<_> = listed.map(|a| (a.path.into_owned(), a.unit, a.help)).collect();
        let own = factory.attributes.iter();
        let own = own.map(|a| (format!("iosched/{}", a.name), Unit::Number(a.unit), a.help));
        assert_eq!(listed, own.collect::<Vec<_>>());
        for attribute in factory.attributes {
            let value: i64 = shown(&plan, &format!("iosched/{}", attribute.name))
                .parse()
                .expect("they are numbers");
            let depth = i64::from(plan.effective_nr_requests());
            let default = attribute.default;
            assert!([default, default.min(depth)].contains(&value), "{}", attribute.name);
        }
    }
}

/// `none` under another name: it has no limit.
static FIFO: Factory = Factory {
    name: "fifo",
    summary: "none by another name",
    scope: Scope::Queue,
    attributes: &[],
    common: None,
    build: |shape, options| (none().build)(shape, options),
};

/// How many of 20 writes are admitted, and how many of 20 sync reads after them.
fn admitted(queue: &Queue<u32>, sub: &mut Submitter<u32>, reader: &mut Submitter<u32>) -> [u64; 2] {
    let before = queue.stats().inserted;
    submit_each(sub, T0, (0..20).map(|i| write(i * 100, 8)));
    let writes = queue.stats().inserted - before;
    submit_each(reader, T0, (0..20).map(|i| read(i * 100 + 50, 8)));
    [writes, queue.stats().inserted - before - writes]
}

#[test]
fn async_depth_holds_for_any_scheduler_and_the_smaller_one_counts() {
    for (factory, own, expected) in
        [(&FIFO, None, [6, 10]), (deadline(), None, [6, 10]), (deadline(), Some("3"), [3, 13])]
    {
        let (config, device) = config(shape(1, 1));
        let config = Config { submitters: 2, nr_requests: Some(16), ..config.scheduler(factory) };
        let queue = Queue::new(config).expect("valid");
        let mut sub = queue.submitter().expect("two were asked for");
        let mut reader = queue.submitter().expect("two were asked for");
        // The device has one request and keeps it: the attributes below are set while I/O is in flight, without a
        // freeze.
        submit_each(&mut sub, T0, [write(1 << 20, 8)]);
        let set_now = |path, text| {
            let mut change = queue.set_attribute(path, text).expect("accepted");
            assert!(change.step(T0), "nothing is in its way");
        };
        set_now("queue/async_depth", "7");
        if let Some(depth) = own {
            // The write at the device counts as one.
            set_now(
                "iosched/async_depth",
                &(depth.parse::<u32>().expect("a number") + 1).to_string(),
            );
        }
        assert_eq!(queue.attribute("queue/async_depth").as_deref(), Ok("7"));
        let [writes, reads] = admitted(&queue, &mut sub, &mut reader);
        assert_eq!([writes, reads - (expected[1] - 1)], [expected[0], 0], "{}", factory.name);
        device.with(|c| c.inline = true);
        device.finish(1000);
        drain(&mut reader, &mut { T0 }, 1000);
        drain(&mut sub, &mut { T0 }, 1000);
        assert_at_rest(&queue, 1);
    }
}

#[test]
fn async_depth_keeps_its_share_of_nr_requests() {
    let mut plan = plan(shape(1, 64), deadline());
    let mut steps = vec![];
    for (path, text) in [
        ("queue/nr_requests", "100"),
        ("queue/async_depth", "75"),
        ("queue/nr_requests", "200"),
        ("queue/nr_requests", "33"),
        ("queue/async_depth", "1"),
        ("queue/nr_requests", "4"),
        ("queue/nr_requests", "2048"),
    ] {
        plan = attributes::write(&plan, path, text).expect("accepted");
        steps.push(shown(&plan, "queue/async_depth"));
    }
    assert_eq!(steps, ["100", "75", "150", "24", "1", "1", "512"]);
}

#[test]
fn impossible_async_depths_are_refused_however_they_are_asked_for() {
    let (queue, _) = queue(shape(1, 8), deadline());
    for plan in [
        Plan { async_depth: Some(0), ..queue.plan() },
        Plan { async_depth: Some(1), scheduler: none(), ..queue.plan() },
    ] {
        let error = replan(&queue, plan).expect_err("impossible").to_string();
        assert!(error.contains("async_depth"), "{error}");
    }
}

fn flush(cookie: u64) -> Io<u32> {
    Io { cookie, payload: cookie as u32, ..Io::new(Op::Flush, 0, 0, cookie, cookie as u32) }
}

/// A flush that was submitted to a cached device is done even if the queue then stops treating the device as cached:
/// it was in the plug, or staged, when the attribute was written.
#[test]
fn flushes_submitted_before_write_through_are_still_done() {
    for is_plugged in [false, true] {
        for fua in [false, true] {
            let cache = WriteCache::Back { fua };
            let (queue, device) = queue(DeviceShape { cache, ..shape(1, 4) }, deadline());
            let mut sub = queue.submitter().expect("one is free");
            let durable = Io { flags: IoFlags::SYNC | IoFlags::FUA, ..write(800, 8) };
            let freeze = (!is_plugged).then(|| queue.freeze());
            for io in [flush(1), durable] {
                sub.push(T0, io).expect("there is credit");
            }
            if !is_plugged {
                sub.flush(T0);
            }
            let change = queue.set_attribute("queue/write_cache", "write through");
            let mut change = change.expect("accepted");
            drop(freeze);
            assert!(change.step(T0) || change.step(T0), "nothing is in flight");
            assert_eq!(queue.attribute("queue/write_cache").as_deref(), Ok("write through"));
            assert_eq!(queue.attribute("queue/fua"), Ok(u32::from(fua).to_string()));
            sub.flush(T0);
            device.with(|c| c.inline = true);
            device.finish(1000);
            assert_eq!(drain(&mut sub, &mut { T0 }, 100).len(), 2);
            let arrived =
                || device.with(|c| Vec::from_iter(c.arrivals.iter().map(|a| (a.op, a.flags))));
            let (_, flags) =
                arrived().into_iter().find(|(op, _)| *op == Op::Write).expect("it is there");
            assert_eq!(flags.contains(IoFlags::FUA), fua, "plugged: {is_plugged}");
            // If the device cannot do FUA, the requested flush serves the write as well.
            let flushes = || arrived().iter().filter(|(op, _)| *op == Op::Flush).count();
            assert_eq!(flushes(), 1);
            assert!(fua || arrived().last().is_some_and(|(op, _)| *op == Op::Flush));

            // I/Os submitted later cause no flush.
            for io in [flush(2), durable] {
                sub.push(T0, io).expect("there is credit");
            }
            sub.flush(T0);
            drain(&mut sub, &mut { T0 }, 100);
            assert_eq!(flushes(), 1);
            assert_eq!(arrived().last(), Some(&(Op::Write, IoFlags::SYNC)));
            assert_at_rest(&queue, 1);

            set(&queue, &device, "queue/write_cache", "write back");
            assert_eq!(queue.plan().device.cache, cache, "FUA is back, if there was any");
        }
    }
}

/// Regression test: a submitter that had pushed nothing since the change answered a flush itself, and wrote without
/// FUA.
#[test]
fn flushes_pushed_after_write_back_reach_the_device() {
    for is_flush in [true, false] {
        let cache = WriteCache::Back { fua: true };
        let (queue, device) = queue(DeviceShape { cache, ..shape(1, 4) }, deadline());
        let mut sub = queue.submitter().expect("one is free");
        device.with(|c| c.inline = true);
        set(&queue, &device, "queue/write_cache", "write through");
        sub.push(T0, write(0, 8)).expect("there is credit");
        sub.flush(T0);
        assert_eq!(drain(&mut sub, &mut { T0 }, 100).len(), 1);
        set(&queue, &device, "queue/write_cache", "write back");
        let io = Io { flags: IoFlags::SYNC | IoFlags::FUA, ..write(800, 8) };
        sub.push(T0, if is_flush { flush(1) } else { io }).expect("there is credit");
        sub.flush(T0);
        assert_eq!(drain(&mut sub, &mut { T0 }, 100).len(), 1);
        let is_durable = |op, flags: IoFlags| op == Op::Flush || flags.contains(IoFlags::FUA);
        assert!(device.with(|c| c.arrivals.iter().any(|a| is_durable(a.op, a.flags))));
        assert_at_rest(&queue, 1);
    }
}

/// Regression test: a submitter that had pushed nothing since the change refused an I/O by the old limits.
#[test]
fn an_io_is_held_against_the_limits_in_force() {
    let able = able();
    let limits = Limits { capacity: 1 << 20, ..able.limits };
    let (queue, device) = queue(DeviceShape { limits, ..able }, none());
    let mut sub = queue.submitter().expect("one is free");
    device.with(|c| c.inline = true);
    let trim = Io { op: Op::Discard, flags: IoFlags::NONE, ..write(8, 8) };
    set(&queue, &device, "queue/discard_max_bytes", "0");
    sub.push(T0, write(0, 8)).expect("there is credit");
    sub.flush(T0);
    let refused = sub.push(T0, trim).expect_err("there are none");
    assert_eq!(refused.why, Refusal::Unsupported(Op::Discard));
    set(&queue, &device, "queue/discard_max_bytes", "4096");
    sub.push(T0, trim).expect("there are some");
    let end = queue.plan().device.limits.capacity;
    sub.push(T0, write(end, 8)).expect_err("behind the end");
    let mut plan = queue.plan();
    plan.device.limits.capacity = end + 8;
    finish(replan(&queue, plan).expect("accepted"), &device, "a device that has grown");
    sub.push(T0, write(end, 8)).expect("there are blocks");
    sub.flush(T0);
    assert_eq!(drain(&mut sub, &mut { T0 }, 100).len(), 3);
    assert_at_rest(&queue, 1);
}

#[test]
fn nothing_is_set_beyond_what_the_device_can() {
    let (queue, _) = queue(shape(1, 4), deadline());
    let text = refused(&queue.plan(), "queue/write_cache", "write back");
    assert_eq!(text, "queue/write_cache=write back: accepted: write through");
    let asked = |change: fn(&mut DeviceShape)| {
        let mut plan = queue.plan();
        change(&mut plan.device);
        replan(&queue, plan).expect_err("impossible").to_string()
    };
    assert!(asked(|d| d.cache = WriteCache::Back { fua: false }).contains("no volatile"));
    assert_eq!(
        asked(|d| d.limits.max_sectors = 8193),
        "max_sectors is 8193; the device takes at most 8192"
    );
    assert!(asked(|d| d.limits.max_segments = 129).starts_with("max_segments is 129"));
    let other = plan(shape(1, 8), deadline());
    assert_eq!(replan(&queue, other).err(), Some(ChangeError::Device));
}

/// The device's own limit need not be a number of KiB. It is shown rounded down, and setting the rounded value
/// restores it exactly.
#[test]
fn the_whole_limit_of_the_device_can_be_had_back() {
    let limits = Limits { max_sectors: 255, ..Limits::default() };
    let plan = plan(DeviceShape { limits, ..shape(1, 4) }, deadline());
    assert_eq!(shown(&plan, "queue/max_hw_sectors_kb"), "127");
    let less = attributes::write(&plan, "queue/max_sectors_kb", "64").expect("less");
    assert_eq!(less.device.limits.max_sectors, 128);
    let back = attributes::write(&less, "queue/max_sectors_kb", "127").expect("all");
    assert_eq!(back.device.limits.max_sectors, 255);
}

#[test]
fn what_is_larger_than_max_sectors_kb_is_refused_from_then_on() {
    let (queue, device) = queue(shape(1, 4), deadline());
    let mut sub = queue.submitter().expect("one is free");
    submit_each(&mut sub, T0, [write(0, 64)]);
    set(&queue, &device, "queue/max_sectors_kb", "16");
    sub.poll(T0);
    // Adjacent I/Os, which would have become one request before the change.
    for at in 0..4 {
        sub.push(T0, write(1000 + at * 16, 16)).expect("it fits");
    }
    sub.flush(T0);
    device.with(|c| c.inline = true);
    device.finish(1000);
    drain(&mut sub, &mut { T0 }, 100);
    assert_eq!(
        device.with(|c| c.arrivals.iter().map(|a| a.sectors).collect::<Vec<_>>()),
        [64, 32, 32]
    );
}

#[test]
fn hardware_queues_say_how_they_are() {
    let (config, device) = config(shape(2, 4));
    let config = Config { submitters: 2, ..config };
    let queue = Queue::new(config).expect("valid");
    let mut sub = queue.submitter().expect("two were asked for");
    assert_eq!(sub.hw(), HwQueue(0));
    submit_each(&mut sub, T0, (0..3).map(|i| write(i * 100, 8)));
    device.with(|c| c.script.push_back(Some(Busy::Resource)));
    submit_each(&mut sub, T0, [write(1000, 8)]);
    let shown = |path| queue.attribute(path).expect("there is such an attribute");
    let paths = ["hctx0/active", "hctx0/dispatch_busy", "hctx1/active", "hctx1/dispatch_busy"];
    assert_eq!(paths.map(shown), ["4", "2", "0", "0"]);
    assert_eq!(["mq/1/nr_tags", "mq/1/nr_reserved_tags"].map(shown), ["4", "0"]);
    let listed = attributes::read_all(&queue.snapshot());
    assert_eq!(listed.len(), attributes::list(&queue.plan()).count());
    assert!(listed.iter().all(|(a, value)| *value == shown(&a.path) && !a.help.is_empty()));
}

#[test]
fn changes_take_turns_and_none_undoes_another() {
    let (queue, device) = queue(shape(1, 4), deadline());
    let mut sub = queue.submitter().expect("one is free");
    submit_each(&mut sub, T0, [write(0, 8)]);
    let mut first = queue.set_attribute("queue/nomerges", "2").expect("accepted");
    assert!(!first.step(T0), "one is in flight");
    let second = queue.set_attribute("queue/nr_requests", "16");
    assert_eq!(second.err(), Some(SetAttributeError::Change(ChangeError::Busy)));
    device.finish(1);
    assert!(first.step(T0) || first.step(T0));
    set(&queue, &device, "queue/nr_requests", "16");
    let shown = ["queue/nomerges", "queue/nr_requests"].map(|path| queue.attribute(path));
    assert_eq!(shown.map(Result::unwrap), ["2", "16"]);
    drain(&mut sub, &mut { T0 }, 10);
}

#[test]
fn the_page_for_users_shows_the_table() {
    let page = include_str!("../../../docs/attributes.md");
    let table = attributes::table();
    assert!(page.contains(&table), "docs/attributes.md is to contain\n\n{table}");
}
