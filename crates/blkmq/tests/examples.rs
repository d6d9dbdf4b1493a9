//! The examples run and check their own results. The example scheduler and the example device also pass the conformance
//! suites.

#[path = "../examples/callbacks.rs"]
mod callbacks;
#[path = "../examples/copy.rs"]
#[expect(dead_code, reason = "its `main` takes arguments")]
mod copy;
#[path = "../examples/event_loop.rs"]
#[expect(dead_code, reason = "its `main` takes arguments")]
mod event_loop;
#[path = "../examples/own_device.rs"]
mod own_device;
#[path = "../examples/own_scheduler.rs"]
mod own_scheduler;
#[path = "../examples/tokio.rs"]
mod tokio_tasks;

use blkmq::core::{IoMeta, Op};
use blkmq::sched::{At, Pick};
use blkmq::testkit::{self, scheduler::Driver};
use blkmq::{AlignedBuf, Bytes, Device, Io};
use own_device::Ram;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

/// Copies a file of 3 MiB and one block, in which each word holds its own index.
#[test]
fn copy_copies_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let words = (0..(3 << 20 | 4096) / 8_u64).flat_map(u64::to_le_bytes);
    std::fs::write(path("from"), Vec::from_iter(words)).expect("there is room");
    let open = |text: &str| blkmq::open(&format!("uring:{}", path(text).display()));
    let from = match open("from,readonly=1") {
        Err(error) if error.is_unavailable() => {
            eprintln!("skipped copy_copies_a_file: {error}");
            return;
        }
        opened => opened.expect("it is there"),
    };
    let to = open("to,size=4").expect("it is made");
    assert_eq!(copy::copy(&from, &to).expect("nothing fails"), 3 << 20 | 4096);
    let small = blkmq::open("memory,size=1").expect("memory");
    let refused = copy::copy(&from, &small).expect_err("it does not fit").to_string();
    assert!(refused.contains("do not fit into 1048576"), "{refused}");
    drop(to);
    let written = std::fs::read(path("to")).expect("it is there");
    let original = std::fs::read(path("from")).expect("it is there");
    assert!(written[..original.len()] == original[..]);
}

#[test]
fn copy_runs() {
    let memory = || blkmq::open("memory,size=5").expect("memory");
    assert_eq!(copy::copy(&memory(), &memory()).expect("nothing fails"), 5 << 20);
}

#[test]
fn callbacks_runs() {
    callbacks::main().expect("nothing fails on the null device");
}

#[test]
fn tokio_runs() {
    tokio_tasks::main().expect("nothing fails on the null device");
}

/// The number of pages that [`event_loop_copies_pages`] copies through several connections at once.
const PAGES: u64 = 96;
const PAGE: usize = 4096;

/// Requests every third page, without waiting in between, and waits for the answers.
fn copy_a_third(socket: &Path, first: u64) {
    let mut stream = UnixStream::connect(socket).expect("the server listens");
    let lines: String = (first..PAGES).step_by(3).map(|page| format!("copy {page}\n")).collect();
    stream.write_all(lines.as_bytes()).expect("the server reads");
    let answers = BufReader::new(stream).lines().take(lines.lines().count());
    let mut answers: Vec<String> = answers.map(|line| line.expect("an answer")).collect();
    let mut expected: Vec<String> =
        (first..PAGES).step_by(3).map(|page| format!("page {page}: copied")).collect();
    answers.sort_unstable();
    expected.sort_unstable();
    assert_eq!(answers, expected);
}

/// Copies pages between `from` and `to` through the server's socket, and checks them.
fn copy_pages(folder: &Path, from: &Device, to: &Device) {
    let service = from.start("none").expect("it can run");
    let mut blocking = service.blocking().expect("the first one");
    for page in 0..PAGES {
        let bytes = AlignedBuf::copy_of(&[page as u8 + 1; PAGE]);
        let (result, _) = blocking.call(Io::write(Bytes(page * 4096), bytes)).expect("it is taken");
        result.expect("it is written");
    }
    drop((blocking, service));
    let socket = folder.join("socket");
    let listener = UnixListener::bind(&socket).expect("the folder is there");
    thread::scope(|scope| {
        let server = scope.spawn(|| event_loop::serve(&listener, from, to));
        let socket = &socket;
        let clients = (0..3).map(|first| scope.spawn(move || copy_a_third(socket, first)));
        for client in Vec::from_iter(clients) {
            client.join().expect("every page is answered for");
        }
        let mut last = UnixStream::connect(socket).expect("the server listens");
        last.write_all(b"copy all\ncopy 4000000\n").expect("it reads");
        let mut answers = BufReader::new(last.try_clone().expect("a descriptor")).lines();
        let mut answer = || answers.next().expect("an answer").expect("a line");
        assert_eq!(answer(), "copy N, or stop");
        assert!(answer().starts_with("page 4000000: "), "there is no such page");
        last.write_all(b"stop\n").expect("it reads");
        server.join().expect("no panic").expect("nothing fails");
    });
    std::fs::remove_file(&socket).expect("it was there");
    let service = to.start("none").expect("it can run");
    let mut blocking = service.blocking().expect("the first one");
    for page in 0..PAGES {
        let io = Io::read(Bytes(page * 4096), AlignedBuf::new(PAGE));
        let (result, mut bytes) = blocking.call(io).expect("it is taken");
        result.expect("it is read");
        assert!(bytes.as_mut_slice() == [page as u8 + 1; PAGE], "page {page}");
    }
}

#[test]
fn event_loop_copies_pages() {
    let folder = tempfile::tempdir().expect("a folder");
    let memory = || blkmq::open("memory,size=1").expect("memory");
    copy_pages(folder.path(), &memory(), &memory());
    // Then on devices that complete after a time instead of within the call, and on files, because the rings of files
    // have descriptors.
    let slow = || blkmq::open("memory,size=1,irqmode=2,completion_nsec=300000").expect("memory");
    copy_pages(folder.path(), &slow(), &slow());
    let file =
        |name: &str| blkmq::open(&format!("uring:{},size=1", folder.path().join(name).display()));
    match file("from") {
        Err(error) if error.is_unavailable() => {
            eprintln!("skipped files in event_loop_copies_pages: {error}");
        }
        from => copy_pages(folder.path(), &from.expect("it is made"), &file("to").expect("made")),
    }
}

#[test]
fn own_scheduler_runs() {
    own_scheduler::main().expect("nothing fails on the null device");
}

#[test]
fn own_device_runs_and_gives_back_what_was_written() {
    own_device::main().expect("pages come back as written");
}

#[test]
fn own_scheduler_keeps_the_contract() {
    for seed in 0..100 {
        let outcome = testkit::scheduler::conformance(&own_scheduler::FACTORY, seed);
        assert!(outcome.picked > 0, "seed {seed}: nothing was picked");
    }
}

#[test]
fn own_scheduler_caps_writes_and_lets_reads_pass() {
    let mut driver = Driver::of(&own_scheduler::FACTORY, 16, "writes=2");
    let insert = |driver: &mut Driver, op, n: u64| -> Vec<_> {
        let meta = |nth| IoMeta::new(op, nth * 64, 8);
        (0..n).map(|nth| driver.insert_meta(meta(nth), At::Tail).expect("a free slot")).collect()
    };
    let writes = insert(&mut driver, Op::Write, 3);
    let reads = insert(&mut driver, Op::Read, 3);
    // Reads and writes in turns; only reads once two writes are at the device.
    for expected in [reads[0], writes[0], reads[1], writes[1], reads[2]] {
        assert_eq!(driver.pick(), Pick::Issue(expected));
    }
    assert_eq!(driver.pick(), Pick::WaitCompletion);
    driver.complete(writes[0]);
    assert_eq!(driver.pick(), Pick::Issue(writes[2]));
    assert_eq!(driver.pick(), Pick::Empty);
    driver.requeue(writes[1]);
    assert_eq!(driver.pick(), Pick::Issue(writes[1]));
    driver.drain();
}

#[test]
fn own_device_conforms() {
    for seed in 0..20 {
        let outcome =
            testkit::device::conformance(Ram::shape(), vec![Box::new(Ram::zeroed())], seed);
        assert_eq!(outcome.failed, 0, "seed {seed}");
        let held = testkit::device::abandonment(Ram::shape(), vec![Box::new(Ram::zeroed())], seed);
        assert!(held > 0, "seed {seed}: nothing was inside");
    }
}
