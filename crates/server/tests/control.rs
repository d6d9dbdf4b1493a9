//! Control of a running server, also while clients read back what they wrote; and recordings of a running server: they
//! contain what happened and end when they should, and only one of each kind runs at a time.

use crate::rig::{Client, NoProgram, Rig, serve, serve_on, until};
use blkmq_nbd::{Command, CommandFlags};
use blkmq_recording::{Options, Reader, Summary, Tenant};
use blkmq_server::control::{
    Answer, Ended, ExportSettings, GoesOn, Program, RecordError, Request, Saved, Why, call, record,
};
use blkmq_server::{Bounds, Counting, Export, Format, Settings};
use blkmq_trace::elevator_log::{Call, Entry, Log};
use blkmq_trace::record::{Act, category, records};
use std::io::{BufRead, BufReader, Cursor, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};

/// A program that reports the calls that it gets.
struct Told(mpsc::Sender<()>);

impl Program for Told {
    fn drain(&self) {
        self.0.send(()).expect("the test waits");
    }

    fn reload(&self, _: GoesOn<'_>) -> Result<Vec<String>, String> {
        Ok(vec!["all".to_owned()])
    }

    fn add(&self, _: &str, _: GoesOn<'_>) -> Result<String, String> {
        Err("only of a program".to_owned())
    }

    fn remove(&self, _: &str) -> Result<String, String> {
        Err("only of a program".to_owned())
    }

    fn diff(&self) -> Result<Vec<String>, String> {
        Err("there is no file".to_owned())
    }

    fn save(&self) -> Result<Option<Saved>, String> {
        Err("there is no file".to_owned())
    }
}

#[test]
fn a_running_server_is_listed_and_changed() {
    let mut rig =
        serve(&[Export { weight: 300, ..Export::new("gold", 0) }, Export::new("rest", 0)]);
    let socket = rig.socket.with_extension("control");
    let (drained, asked) = mpsc::channel();
    rig.server.control(&socket, Arc::new(Told(drained))).expect("the path is free");
    let mode = std::fs::metadata(&socket).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "for its user only");
    let ask = |request: Request| call(&socket, &request).expect("it answers");
    let client = rig.client("gold");
    let Answer::List { devices, exports } = ask(Request::List) else { panic!("no list") };
    assert_eq!((devices[0].bytes, devices[0].scheduler.as_str()), (16 << 20, "mq-deadline"));
    let of = |at: usize| (exports[at].weight, exports[at].connections, exports[at].max.as_str());
    let none = "rbps=max wbps=max riops=max wiops=max";
    assert_eq!([of(0), of(1)], [(300, 1, none), (100, 0, none)]);
    drop(client);
    let path = || "queue/scheduler".to_owned();
    let set = Request::Set { device: 1, path: path(), value: "bfq".to_owned() };
    assert!(matches!(ask(set), Answer::Done(_)));
    let got = ask(Request::Get { device: 1, path: Some(path()) });
    let value = "none mq-deadline kyber [bfq] mclock auto".to_owned();
    assert_eq!(got, Answer::Attributes(vec![(path(), value)]));
    let settings =
        ExportSettings { weight: Some(7), max: Some("wiops=50".to_owned()), promise: None };
    let change = |name: &str, settings| Request::Export { name: name.to_owned(), settings };
    assert!(matches!(ask(change("rest", settings)), Answer::Done(_)));
    let Answer::List { exports, .. } = ask(Request::List) else { panic!("no list") };
    let max = "rbps=max wbps=max riops=max wiops=50";
    assert_eq!((exports[1].weight, exports[1].max.as_str()), (7, max));
    // Floors need a scheduler that keeps them.
    let floor = || {
        let promise = Some("reserve_percent=40".to_owned());
        change("rest", ExportSettings { promise, ..ExportSettings::default() })
    };
    assert!(!matches!(ask(floor()), Answer::Done(_)));
    let set = Request::Set { device: 1, path: path(), value: "mclock".to_owned() };
    assert!(matches!(ask(set), Answer::Done(_)));
    assert!(matches!(ask(floor()), Answer::Done(_)));
    let Answer::List { exports, .. } = ask(Request::List) else { panic!("no list") };
    assert!(exports[1].promise.contains("reserve_percent=40"));
    assert_eq!(ask(Request::Drain), Answer::Draining);
    asked.recv().expect("it was asked to");
}

#[test]
fn counts_begin_with_the_first_question() {
    let mut rig = serve(&[Export::new("a", 0), Export::new("b", 0)]);
    let socket = rig.socket.with_extension("control");
    rig.server.control(&socket, Arc::new(Told(mpsc::channel().0))).expect("the path is free");
    let ask = || match call(&socket, &Request::Stat).expect("it answers") {
        Answer::Stat(stat) => stat,
        other => panic!("no counts: {other:?}"),
    };
    assert_eq!(ask().devices[0].figures.ios, [0, 0, 0]);
    let (mut a, mut b) = (rig.client("a"), rig.client("b"));
    for n in 0..10 {
        a.write(n * 8192, &[1; 4096]).expect("it fits");
        b.read(n * 8192, 512).expect("it fits");
    }
    let stat = ask();
    let of = |at: usize| {
        let export = &stat.exports[at];
        (export.name.as_str(), export.figures.ios, export.figures.bytes)
    };
    assert_eq!(of(0), ("a", [0, 10, 0], [0, 40960, 0]));
    assert_eq!(of(1), ("b", [10, 0, 0], [5120, 0, 0]));
    assert_eq!(stat.devices[0].figures.ios, [10, 10, 0]);
}

#[test]
fn an_export_waits_behind_the_export_that_has_the_device() {
    // One request at a time, 2 ms for each.
    let device = "null,irqmode=2,completion_nsec=2000000,submit_queues=1,hw_queue_depth=1";
    let exports = [Export::new("flood", 0), Export::new("victim", 0)];
    let rig = Rig::start(device, &exports, &Settings::default());
    let handle = rig.server.handle();
    let ask = || match handle.ask(Request::Waits) {
        Answer::Waits(waits) => waits,
        other => panic!("no times: {other:?}"),
    };
    let before = ask();
    assert_eq!(before.waits, []);
    std::thread::scope(|threads| {
        for at in 0..5 {
            let mut client = rig.client(if at == 4 { "victim" } else { "flood" });
            threads.spawn(move || {
                (0..20).for_each(|n| drop(client.read((n * 8 + at) << 16, 4096)));
            });
        }
    });
    let after = ask();
    let of = |export: &str| {
        let all = after.waits.iter().filter(|wait| wait.export == export);
        let named = all.map(|wait| (wait.behind.as_deref(), wait.time)).collect::<Vec<_>>();
        let sum: u64 = named.iter().map(|(_, time)| time).sum();
        let longest = named.into_iter().max_by_key(|(_, time)| *time).expect("it waited");
        (longest.0.map(str::to_owned), sum)
    };
    assert!(after.waits.iter().all(|wait| wait.device == 1 && wait.time > 0), "{after:?}");
    for export in ["flood", "victim"] {
        let (behind, sum) = of(export);
        assert_eq!(behind.as_deref(), Some("flood"), "{after:?}");
        assert!(sum <= after.at - before.at, "{after:?}");
    }
}

#[test]
fn what_is_not_understood_is_refused_and_the_next_one_is_served() {
    let mut rig = serve(&[Export::new("a", 0)]);
    let socket = rig.socket.with_extension("control");
    rig.server.control(&socket, Arc::new(Told(mpsc::channel().0))).expect("the path is free");
    let raw = |line: &[u8]| {
        let mut stream = UnixStream::connect(&socket).expect("it listens");
        stream.write_all(line).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    };
    // A line without an end, longer than any request: the connection is closed, with or without a message.
    let mut endless = UnixStream::connect(&socket).expect("it listens");
    let _ = endless.write_all(&[b'x'; 70_000]);
    let _ = endless.read_to_end(&mut Vec::new());
    for line in [&b"\n"[..], b"{}\n", b"{\"command\":\"reboot\"}\n"] {
        let answer = raw(line);
        assert!(answer.starts_with("{\"refused\":\"the request is not understood"), "{answer}");
    }
    let refused = |request| match call(&socket, &request).expect("it answers") {
        Answer::Refused(why) => why,
        other => panic!("done: {other:?}"),
    };
    let settings = || ExportSettings { max: Some("much".to_owned()), ..ExportSettings::default() };
    let change = |name: &str, settings| Request::Export { name: name.to_owned(), settings };
    assert!(refused(Request::Get { device: 2, path: None }).contains("accepted: 1 to 1"));
    assert!(refused(change("b", settings())).contains("accepted: a"));
    assert!(refused(change("a", settings())).contains("accepted: rbps=N"));
    let weight = ExportSettings { weight: Some(0), ..ExportSettings::default() };
    assert!(refused(change("a", weight)).contains("weight"));
    let set = |path: &str, value: &str| Request::Set {
        device: 1,
        path: path.to_owned(),
        value: value.to_owned(),
    };
    assert!(refused(set("queue/scheduler", "cfq")).contains("mq-deadline"));
    assert!(refused(set("queue/schedule", "bfq")).contains("queue/scheduler"));
}

#[test]
fn a_server_that_must_not_count_says_how_it_could() {
    let settings = Settings { counting: Counting::Never, ..Settings::default() };
    let rig = Rig::start("memory,size=16", &[Export::new("a", 0)], &settings);
    let refused = |answer| match answer {
        Answer::Refused(why) => why,
        other => panic!("counted: {other:?}"),
    };
    let handle = rig.server.handle();
    assert!(refused(handle.ask(Request::Stat)).contains("queue/iostats 1"));
    assert!(refused(handle.ask(Request::Waits)).contains("queue/iostats 1"));
    assert!(handle.metrics(Format::Prometheus).is_err_and(|why| why.contains("stats=never")));
}

#[test]
fn figures_stages_and_distributions_are_of_the_same_requests() {
    let rig = serve(&[Export::new("a", 0), Export::new("b", 0)]);
    let handle = rig.server.handle();
    let ask = || match handle.ask(Request::Stat) {
        Answer::Stat(stat) => stat,
        other => panic!("no counts: {other:?}"),
    };
    let _ = ask();
    let (mut a, mut b) = (rig.client("a"), rig.client("b"));
    for n in 0..50 {
        a.write(n * 8192, &[1; 4096]).expect("it fits");
        b.read(n * 8192, 512).expect("it fits");
    }
    let stat = ask();
    for export in &stat.exports {
        let of = &export.stages;
        for op in 0..4 {
            let ios = export.figures.ios.get(op).copied().unwrap_or(of.total[op].count);
            for times in [&of.queue[op], &of.device[op], &of.total[op]] {
                assert_eq!(times.buckets.iter().map(|(_, count)| count).sum::<u64>(), ios);
                assert_eq!(times.count, ios);
            }
            let parts = of.slot[op].sum + of.policy[op].sum + of.tag[op].sum;
            assert_eq!(parts, of.queue[op].sum);
            assert_eq!(parts + of.device[op].sum, of.total[op].sum);
        }
    }
    let device = &stat.devices[0];
    let sum = |op: usize| stat.exports.iter().map(|it| it.stages.total[op].count).sum::<u64>();
    assert_eq!([0, 1, 2, 3].map(sum), device.stages.total.each_ref().map(|it| it.count));
    assert_eq!((device.in_flight, device.waiting, device.errors), ([0, 0], 0, [0; 4]));
    assert!(device.busy_time <= stat.at);
    let text = handle.metrics(Format::OpenMetrics).expect("it counts");
    assert!(text.contains("blkmq_export_requests_total{export=\"a\",op=\"write\"} 50\n"), "{text}");
    assert!(text.ends_with("# EOF\n"));
}

/// Serves a device that holds each I/O for so many milliseconds, as device 1 with the export `stuck`, and one that
/// completes immediately, with the export `good`. Control reports the end of the server.
fn beside_a_stuck_device(milliseconds: u64) -> (Rig, PathBuf, mpsc::Receiver<()>) {
    let stuck = format!("null,irqmode=2,completion_nsec={}", milliseconds * 1_000_000);
    let exports = [Export::new("stuck", 0), Export::new("good", 1)];
    let mut rig = Rig::start_on(&[&stuck, "memory,size=16"], &exports, &Settings::default());
    let socket = rig.socket.with_extension("control");
    let (drained, asked) = mpsc::channel();
    rig.server.control(&socket, Arc::new(Told(drained))).expect("the path is free");
    (rig, socket, asked)
}

const HOUR: u64 = 3_600_000;

/// A client with a read at the device.
fn reading(rig: &Rig, export: &str) -> Client {
    let mut client = rig.client(export);
    client.send(Command::Read, CommandFlags::NONE, 0, 4096, &[]);
    let queue = rig.server.disks()[0].service().queue();
    until(|| queue.tags_in_use(blkmq::core::HwQueue(0)) == 1);
    client
}

fn switch_to(scheduler: &str) -> Request {
    let path = "queue/scheduler".to_owned();
    Request::Set { device: 1, path, value: scheduler.to_owned() }
}

/// Sends a request, and returns the client, which waits.
fn asked(socket: &Path, request: &Request) -> UnixStream {
    let mut stream = UnixStream::connect(socket).expect("it listens");
    let line = serde_json::to_string(request).expect("a form in JSON") + "\n";
    stream.write_all(line.as_bytes()).expect("it reads");
    stream
}

fn weight_of(export: &str, weight: u32) -> Request {
    let settings = ExportSettings { weight: Some(weight), ..ExportSettings::default() };
    Request::Export { name: export.to_owned(), settings }
}

/// Regression test: control had only one thread. Switching the scheduler of a stuck device blocked it, and all further
/// requests waited: lists, weights of other devices, and the end of the server.
#[test]
fn a_change_of_a_stuck_device_keeps_no_other_request_waiting() {
    let (rig, socket, drained) = beside_a_stuck_device(HOUR);
    let _reader = reading(&rig, "stuck");
    let switch = asked(&socket, &switch_to("kyber"));
    let queue = rig.server.disks()[0].service().queue().clone();
    let changes = || queue.edit(|_| Err(())).is_err_and(|e| e != blkmq::EditError::Edit(()));
    until(changes);
    let ask = |request| call(&socket, &request).expect("it answers");
    assert!(matches!(ask(Request::List), Answer::List { .. }));
    assert!(matches!(ask(weight_of("good", 50)), Answer::Done(_)));
    assert!(matches!(ask(Request::Stat), Answer::Stat(_)), "counting begins with it");
    assert!(matches!(ask(Request::Get { device: 1, path: None }), Answer::Attributes(_)));
    assert_eq!(ask(Request::Reload), Answer::Reloaded(vec!["all".to_owned()]));
    assert_eq!(ask(Request::Drain), Answer::Draining);
    drained.recv().expect("it was asked to");
    assert!(changes(), "the switch waited meanwhile");
    // The end of the server gives the change up.
    drop(rig);
    let mut answer = String::new();
    (&switch).read_to_string(&mut answer).expect("it answers");
    assert!(answer.contains("is as before"), "{answer}");
}

/// Regression test: a switch whose client had disconnected took place once the device continued.
#[test]
fn a_change_is_given_up_with_its_client() {
    // Long enough for the steps before the device answers, on a busy machine too.
    let (rig, socket, _) = beside_a_stuck_device(5000);
    let mut reader = reading(&rig, "stuck");
    let queue = rig.server.disks()[0].service().queue();
    let changes = || queue.edit(|_| Err(())).is_err_and(|e| e != blkmq::EditError::Edit(()));
    let switch = asked(&socket, &switch_to("kyber"));
    until(changes);
    // A change of weight waits for the switch, and its client disconnects first.
    drop(asked(&socket, &weight_of("stuck", 7)));
    drop(switch);
    until(|| !changes());
    assert_eq!(queue.tags_in_use(blkmq::core::HwQueue(0)), 1, "the device has not answered");
    assert_eq!(queue.plan().scheduler.name, "mq-deadline");
    // A client that waits gets its change.
    let waits = asked(&socket, &switch_to("bfq"));
    assert!(reader.answer().1.is_ok());
    let mut answer = String::new();
    (&waits).read_to_string(&mut answer).expect("it answers");
    assert!(answer.contains("done"), "{answer}");
    let plan = queue.plan();
    let weights = Vec::from_iter(plan.groups.iter().map(|group| group.weight));
    assert!(plan.scheduler.name == "bfq" && !weights.contains(&7), "{weights:?}");
}

/// Regression test: the end of the last connection of a removed export removed its group, which waited for a change of
/// the device in a worker, and so did each client of that worker.
#[test]
fn an_export_that_goes_during_a_change_keeps_no_worker_waiting() {
    let stuck = format!("null,irqmode=2,completion_nsec={}", HOUR * 1_000_000);
    let exports = [Export::new("stuck", 0), Export::new("idle", 0), Export::new("good", 1)];
    let mut rig = Rig::start_on(&[&stuck, "memory,size=16"], &exports, &Settings::default());
    let socket = rig.socket.with_extension("control");
    rig.server.control(&socket, Arc::new(Told(mpsc::channel().0))).expect("the path is free");
    let mut good: Vec<Client> = (0..8).map(|_| rig.client("good")).collect();
    let idle: Vec<Client> = (0..8).map(|_| rig.client("idle")).collect();
    let _reader = reading(&rig, "stuck");
    let switch = asked(&socket, &switch_to("kyber"));
    let queue = rig.server.disks()[0].service().queue();
    let changes = || queue.edit(|_| Err(())).is_err_and(|e| e != blkmq::EditError::Edit(()));
    until(changes);
    let handle = rig.server.handle();
    assert!(handle.remove_export("idle"));
    drop(idle);
    until(|| rig.server.connections() == 9);
    for client in &mut good {
        assert!(client.read(0, 4096).is_ok());
    }
    assert!(changes(), "the change waited meanwhile");
    // Adding an export gives up with its caller, and leaves its name free.
    let again = Export::new("idle", 0);
    assert!(handle.add_export_while(&again, &|| false).is_err());
    drop(switch);
    until(|| !changes());
    until(|| handle.add_export(&again).is_ok());
}

/// Two clients change different limits of one export: neither change is lost, and a refused one changes nothing.
#[test]
fn words_of_two_clients_are_both_in_force_and_a_refused_one_changes_nothing() {
    let mut rig = serve(&[Export::new("a", 0)]);
    let socket = rig.socket.with_extension("control");
    rig.server.control(&socket, Arc::new(Told(mpsc::channel().0))).expect("the path is free");
    let max = |text: String| Request::Export {
        name: "a".to_owned(),
        settings: ExportSettings { max: Some(text), ..ExportSettings::default() },
    };
    for n in 1..=50 {
        std::thread::scope(|threads| {
            for word in ["riops", "wiops", "rbps", "wbps"] {
                let request = max(format!("{word}={}", n * 4096));
                let socket = &socket;
                threads.spawn(move || {
                    assert!(matches!(call(socket, &request), Ok(Answer::Done(_))));
                });
            }
        });
        let Ok(Answer::List { exports, .. }) = call(&socket, &Request::List) else { panic!() };
        let all = exports[0].max.split(' ').all(|word| word.ends_with(&format!("={}", n * 4096)));
        assert!(all, "round {n}: {}", exports[0].max);
    }
    // mq-deadline keeps no floors.
    let settings = ExportSettings {
        weight: Some(7),
        promise: Some("reserve_iops=100".to_owned()),
        ..ExportSettings::default()
    };
    let both = Request::Export { name: "a".to_owned(), settings };
    assert!(matches!(call(&socket, &both), Ok(Answer::Refused(_))));
    let Ok(Answer::List { exports, .. }) = call(&socket, &Request::List) else { panic!() };
    assert_eq!(exports[0].weight, 100);
}

/// Regression test: silent clients made other clients wait for ten seconds each.
#[test]
fn clients_without_a_request_make_room_for_those_with_one() {
    let mut rig = serve(&[Export::new("a", 0)]);
    let socket = rig.socket.with_extension("control");
    rig.server.control(&socket, Arc::new(Told(mpsc::channel().0))).expect("the path is free");
    let mut silent = Vec::new();
    for n in 0..200 {
        silent.push(UnixStream::connect(&socket).expect("it listens"));
        if n % 50 == 49 {
            assert!(matches!(call(&socket, &Request::List), Ok(Answer::List { .. })));
        }
    }
    // The request of a half-closed client, as with nc, is answered.
    let half = asked(&socket, &Request::List);
    half.shutdown(std::net::Shutdown::Write).expect("it is open");
    let mut answer = String::new();
    (&half).read_to_string(&mut answer).expect("it answers");
    assert!(answer.starts_with("{\"list\""), "{answer}");
    assert_eq!(silent.len(), 200);
}

/// The request of a client that disconnected before it was read is not handled, even if it would end the server.
#[test]
fn the_request_of_a_client_that_has_left_is_not_carried_out() {
    let (rig, socket, drained) = beside_a_stuck_device(HOUR);
    for _ in 0..20 {
        let mut half = UnixStream::connect(&socket).expect("it listens");
        half.write_all(b"{\"command\":\"dra").expect("it reads");
        drop(half);
    }
    assert!(matches!(call(&socket, &Request::List), Ok(Answer::List { .. })));
    assert_eq!(drained.try_recv().ok(), None);
    drop(rig);
}

const CHANGES: usize = 200;
const EXPORTS: [&str; 2] = ["one", "two"];

#[test]
fn no_io_notices_200_changes() {
    let exports = (0..).zip(EXPORTS).map(|(at, name)| {
        let region = blkmq_server::Region { offset: at * (8 << 20), size: Some(8 << 20) };
        Export { region: Some(region), ..Export::new(name, 0) }
    });
    let mut rig = serve(&exports.collect::<Vec<_>>());
    let socket = rig.socket.with_extension("control");
    rig.server.control(&socket, Arc::new(NoProgram)).expect("the path is free");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients = EXPORTS.map(|name| {
            let (mut client, is_over) = (rig.client(name), &is_over);
            scope.spawn(move || {
                let mut rounds = 0;
                while !is_over.load(Relaxed) {
                    round(&mut client, rounds);
                    rounds += 1;
                }
                rounds
            })
        });
        {
            // If a change fails, the clients end, too.
            let _over = Over(&is_over);
            for n in 0..CHANGES {
                change(&socket, n);
            }
        }
        for client in clients {
            assert!(client.join().expect("every read was right") > 0);
        }
    });
    rig.check_at_rest();
}

/// Tells the clients to end, on drop.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// 16 writes at a time, then 16 reads of the same blocks.
fn round(client: &mut Client, round: u64) {
    let none = CommandFlags::NONE;
    let at = |n: u64| (round * 16 + n) % 2048 * 4096;
    let data = |n: u64| vec![(round * 16 + n) as u8; 4096];
    for n in 0..16 {
        client.send(Command::Write, none, at(n), 4096, &data(n));
    }
    for _ in 0..16 {
        assert_eq!(client.answer().1, Ok(vec![]));
    }
    let reads: Vec<_> =
        (0..16).map(|n| (client.send(Command::Read, none, at(n), 4096, &[]), data(n))).collect();
    for _ in 0..16 {
        let (cookie, answer) = client.answer();
        let (_, data) = reads.iter().find(|(read, _)| *read == cookie).expect("it was asked for");
        assert!(answer.as_ref() == Ok(data), "in round {round}");
    }
}

/// Performs change number `n`. Every second change is one of scheduler.
fn change(socket: &Path, n: usize) {
    let set = |path: &str, value: String| Request::Set { device: 1, path: path.to_owned(), value };
    let export = |settings| Request::Export { name: EXPORTS[n / 8 % 2].to_owned(), settings };
    let max = |max: &str| ExportSettings { max: Some(max.to_owned()), ..ExportSettings::default() };
    let schedulers = ["bfq", "none", "kyber", "auto"];
    let request = match n % 8 {
        1 => export(ExportSettings { weight: Some(1 + n as u32), ..ExportSettings::default() }),
        3 => export(max("wiops=20000 rbps=100000000")),
        5 => set("queue/nr_requests", (16 + n).to_string()),
        7 => export(max("wiops=max rbps=max")),
        _ => set("queue/scheduler", schedulers[n / 2 % 4].to_owned()),
    };
    let answer = call(socket, &request).expect("it answers");
    assert!(matches!(answer, Answer::Done(_)), "{request:?}: {answer:?}");
}

const TRACE: Request = Request::Trace { device: 1, seconds: None, buffer_kib: 1024, bytes: None };
const LOG: Request = Request::ElevatorLog { device: 1, seconds: None, bytes: 1 << 20 };

fn controlled(mut rig: Rig) -> (Rig, PathBuf) {
    let socket = rig.socket.with_extension("control");
    rig.server.control(&socket, Arc::new(NoProgram)).expect("the path is free");
    (rig, socket)
}

/// Requests a recording, and waits until it has begun.
fn begun(socket: &Path, request: &Request) -> BufReader<UnixStream> {
    let mut stream = UnixStream::connect(socket).expect("it listens");
    let line = serde_json::to_string(request).expect("a form in JSON") + "\n";
    stream.write_all(line.as_bytes()).expect("it reads");
    let mut from = BufReader::new(stream);
    let mut answer = String::new();
    from.read_line(&mut answer).expect("it answers");
    assert_eq!(answer, "\"recording\"\n");
    from
}

/// The rest of a recording.
fn rest(mut from: BufReader<UnixStream>) -> (Vec<u8>, Ended) {
    let mut all = Vec::new();
    loop {
        let mut length = [0; 4];
        from.read_exact(&mut length).expect("a frame");
        let length = u32::from_be_bytes(length) as usize;
        if length == 0 {
            break;
        }
        let begin = all.len();
        all.resize(begin + length, 0);
        from.read_exact(&mut all[begin..]).expect("all of it");
    }
    let mut line = String::new();
    from.read_line(&mut line).expect("the end");
    (all, serde_json::from_str(&line).expect("an end"))
}

fn asks_for_end(from: &BufReader<UnixStream>) {
    from.get_ref().shutdown(std::net::Shutdown::Write).expect("it is open");
}

fn switch(socket: &Path, scheduler: &str) {
    let path = "queue/scheduler".to_owned();
    let set = Request::Set { device: 1, path, value: scheduler.to_owned() };
    assert!(matches!(call(socket, &set), Ok(Answer::Done(_))), "{scheduler}");
}

fn refused(socket: &Path, request: &Request) -> String {
    match record(socket, request, &|| false, |_| Ok(())) {
        Err(RecordError::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

/// Does 60 writes and 40 reads of 4 KiB, with a live change of scheduler in between.
fn work(rig: &Rig, socket: &Path) {
    let (mut gold, mut rest) = (rig.client("gold"), rig.client("rest"));
    for n in 0..50 {
        let write = if n % 5 == 0 { &mut rest } else { &mut gold };
        write.write(n * 8192, &[1; 4096]).expect("it fits");
        if n == 25 {
            switch(socket, "bfq");
        }
        if n < 40 {
            rest.read(n * 8192, 4096).expect("it fits");
        } else {
            gold.write(n * 16384, &[2; 4096]).expect("it fits");
        }
    }
}

#[test]
fn a_trace_has_every_request_that_the_counts_have_over_a_live_switch() {
    let (rig, socket) = controlled(serve(&[Export::new("gold", 0), Export::new("rest", 0)]));
    let Ok(Answer::Stat(_)) = call(&socket, &Request::Stat) else { panic!("it counts now") };
    let from = begun(&socket, &TRACE);
    work(&rig, &socket);
    asks_for_end(&from);
    let (bytes, ended) = rest(from);
    let all: Vec<_> = records(&bytes).map(|it| it.expect("whole records")).collect();
    assert_eq!((ended.why, ended.dropped), (Why::Asked, 0));
    let Ok(Answer::Stat(stat)) = call(&socket, &Request::Stat) else { panic!("no counts") };
    assert_eq!(stat.devices[0].figures.ios, [40, 60, 0]);
    for act in [Act::Queue, Act::Issue, Act::Complete] {
        let of = |way| all.iter().filter(move |it| it.act() == Some(act) && it.has(way));
        assert_eq!((of(category::READ).count(), of(category::WRITE).count()), (40, 60), "{act:?}");
        let bytes: u64 = of(category::READ).map(|it| u64::from(it.bytes)).sum();
        assert_eq!(bytes, stat.devices[0].figures.bytes[0], "{act:?}");
    }
    let named = all.iter().filter(|it| it.has(category::NOTIFY));
    let names: Vec<&[u8]> = named.map(|it| &it.payload[..4]).collect();
    assert!(names.len() == 2 && names.contains(&&b"gold"[..]) && names.contains(&&b"rest"[..]));
    assert_eq!(ended.recorded as usize, all.len() - names.len());
    assert_eq!(tenants(bytes), [("gold".into(), 50, 0), ("rest".into(), 50, 40)]);
    rig.check_at_rest();
}

/// The tenants that `blkmq replay` finds in a trace, with their I/Os, of which reads.
fn tenants(trace: Vec<u8>) -> Vec<(String, u64, u64)> {
    let mut reader = Reader::new(Cursor::new(trace), &Options::default()).expect("a trace");
    let mut summary = Summary::default();
    while let Some(record) = reader.next_record().expect("whole records") {
        summary.add(&record);
    }
    let of = |(id, tenant): (u32, &Tenant)| {
        (reader.tenants().name(id).to_owned(), tenant.ios, tenant.reads)
    };
    let mut tenants = Vec::from_iter((0..).zip(&summary.tenants).map(of));
    tenants.sort();
    tenants
}

#[test]
fn a_log_has_every_decision_over_a_live_switch() {
    let (rig, socket) = controlled(serve(&[Export::new("gold", 0), Export::new("rest", 0)]));
    let from = begun(&socket, &LOG);
    work(&rig, &socket);
    asks_for_end(&from);
    let (bytes, ended) = rest(from);
    assert_eq!((ended.why, ended.dropped), (Why::Asked, 0));
    let log = Log::parse(&bytes).expect("a log");
    let policies: Vec<&str> = log.instances.iter().map(|it| it.policy).collect();
    assert_eq!(policies, ["mq-deadline", "bfq"]);
    let calls: Vec<Call<'_>> = log
        .instances
        .iter()
        .flat_map(blkmq_trace::elevator_log::Instance::calls)
        .collect::<Result<_, _>>()
        .expect("whole calls");
    assert_eq!(calls.len() as u64, ended.recorded);
    let inserted = calls.iter().filter(|it| matches!(it.entry, Entry::Insert { .. }));
    assert_eq!(inserted.count(), 100);
    // The observer has been removed, and the scheduler has stayed.
    work(&rig, &socket);
    rig.check_at_rest();
}

#[test]
fn one_of_a_kind_at_a_time_and_one_that_vanishes_ends_its_own() {
    let (_rig, socket) = controlled(serve(&[Export::new("a", 0)]));
    for request in [TRACE, LOG] {
        let first = begun(&socket, &request);
        assert!(refused(&socket, &request).starts_with("busy: another "));
        drop(first);
        until(|| {
            let again = record(&socket, &request, &|| true, |_| Ok(()));
            matches!(again, Ok(Ended { why: Why::Asked, .. }))
        });
    }
    let (trace, log) = (begun(&socket, &TRACE), begun(&socket, &LOG));
    asks_for_end(&trace);
    asks_for_end(&log);
    assert_eq!((rest(trace).1.why, rest(log).1.why), (Why::Asked, Why::Asked), "one of each kind");
}

#[test]
fn what_cannot_be_recorded_is_refused_with_what_can() {
    let (rig, socket) = controlled(serve(&[Export::new("a", 0)]));
    let Request::Trace { seconds, bytes, .. } = TRACE else { unreachable!() };
    let trace = |device, buffer_kib| Request::Trace { device, seconds, buffer_kib, bytes };
    assert!(refused(&socket, &trace(2, 8)).ends_with("accepted: 1 to 1"));
    assert!(refused(&socket, &trace(0, 8)).ends_with("accepted: 1 to 1"));
    for kib in [0, 200 << 10] {
        assert!(refused(&socket, &trace(1, kib)).ends_with("accepted: 1 to 163840"));
    }
    let log = Request::ElevatorLog { device: 1, seconds, bytes: 1 };
    assert!(refused(&socket, &log).ends_with("accepted: 4096 to 268435456"));
    let by_page = rig.server.handle().ask(TRACE);
    assert!(matches!(by_page, Answer::Refused(why) if why.contains("connection of its own")));
}

#[test]
fn a_size_ends_a_trace_with_whole_records_and_a_full_log() {
    let (rig, socket) = controlled(serve(&[Export::new("gold", 0), Export::new("rest", 0)]));
    let Request::Trace { device, seconds, buffer_kib, .. } = TRACE else { unreachable!() };
    let from = begun(&socket, &Request::Trace { device, seconds, buffer_kib, bytes: Some(1000) });
    work(&rig, &socket);
    let (bytes, ended) = rest(from);
    assert_eq!(ended.why, Why::Size);
    assert!((900..=1000).contains(&bytes.len()), "{}", bytes.len());
    assert!(records(&bytes).all(|it| it.is_ok()));
    let from = begun(&socket, &Request::ElevatorLog { device, seconds, bytes: 4096 });
    work(&rig, &socket);
    let (bytes, ended) = rest(from);
    assert!(ended.why == Why::Size && ended.dropped > 0, "{ended:?}");
    let log = Log::parse(&bytes).expect("a log");
    assert!(log.instances.iter().map(|it| it.missed).sum::<u64>() > 0);
    // Room for the names of policies and options.
    assert!(bytes.len() < 2 * 4096 + 1024, "{}", bytes.len());
}

#[test]
fn a_reader_that_takes_nothing_loses_events_and_no_io_waits_for_it() {
    let (rig, socket) = controlled(serve(&[Export::new("gold", 0), Export::new("rest", 0)]));
    let Request::Trace { device, seconds, bytes, .. } = TRACE else { unreachable!() };
    let from = begun(&socket, &Request::Trace { device, seconds, buffer_kib: 1, bytes });
    // 25 notes at a time, between two polls of the recording.
    (0..20).for_each(|_| work(&rig, &socket));
    asks_for_end(&from);
    let (bytes, ended) = rest(from);
    let all = records(&bytes).filter(|it| it.is_ok_and(|it| !it.has(category::NOTIFY))).count();
    assert_eq!(ended.recorded, all as u64);
    assert!(ended.dropped > 0, "{ended:?}");
}

#[test]
fn a_recording_ends_with_its_server_and_with_a_taker_that_fails() {
    let (rig, socket) =
        controlled(serve_on("memory,size=16", &[Export::new("a", 0)], Bounds::default()));
    let failed = record(&socket, &LOG, &|| true, |_| Err(ErrorKind::StorageFull.into()));
    assert!(matches!(failed, Err(RecordError::Taker(e)) if e.kind() == ErrorKind::StorageFull));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let from = begun(&socket, &TRACE);
        let reader = scope.spawn(|| {
            let (_, ended) = rest(from);
            is_over.store(true, Relaxed);
            ended
        });
        assert!(!is_over.load(Relaxed));
        drop(rig);
        assert_eq!(reader.join().expect("no panic").why, Why::Server);
    });
}
