//! Recordings of a running server: they contain what happened and end when they should, and only one of each kind runs
//! at a time.

use crate::rig::{NoProgram, Rig, serve, serve_on, until};
use blkmq_recording::{Options, Reader, Summary, Tenant};
use blkmq_server::control::{Answer, Ended, RecordError, Request, Why, call, record};
use blkmq_server::{Bounds, Export};
use blkmq_trace::elevator_log::{Call, Entry, Log};
use blkmq_trace::record::{Act, category, records};
use std::io::{BufRead, BufReader, Cursor, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

const TRACE: Request = Request::Trace { device: 1, seconds: None, buffer_kib: 1024, bytes: None };
const LOG: Request = Request::ElevatorLog { device: 1, seconds: None, bytes: 1 << 20 };

fn controlled(mut rig: Rig) -> (Rig, PathBuf) {
    let socket = rig.socket.with_extension("control");
    rig.server.control(&socket, Box::new(NoProgram)).expect("the path is free");
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
