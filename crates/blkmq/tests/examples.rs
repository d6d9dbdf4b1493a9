//! The examples run and check their own results. The example scheduler and the example device also pass the conformance
//! suites. (The NBD server has tests of its own, in `nbd_server.rs`.)
//!
//! The example store keeps what it has acknowledged: under power cuts on a device with a volatile cache, and when its
//! process is killed. The same power cuts detect devices that acknowledge data before it is durable.

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
#[path = "../examples/storage_engine/main.rs"]
mod storage_engine;
#[path = "../examples/tokio.rs"]
mod tokio_tasks;

use blkmq::core::{IoMeta, Op};
use blkmq::prelude::*;
use blkmq::sched::{At, Pick};
use blkmq::testkit::{self, scheduler::Driver};
use blkmq::{
    AlignedBuf, BioTable, Bytes, Device, DeviceQueue, Enqueued, Finished, Inflight, Instant, Io,
    WriteCache,
};
use own_device::Ram;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use storage_engine::store::Store;
use storage_engine::{Counts, Failure, check, compare, load};

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

/// Cuts the power once `puts` records of the first `writers` writers have been acknowledged. Compares the acknowledged
/// records with the recovered ones.
fn cut(
    disk: &blkmq::device::Device,
    config: Config<AlignedBuf>,
    seed: u64,
    (writers, puts): (u64, u64),
) -> Result<(), Failure> {
    let memory = disk.memory().expect("it is a memory device");
    let acknowledged = AtomicU64::new(0);
    let goes_on = |writer, _| {
        if writer >= writers {
            return false;
        }
        let nth = acknowledged.fetch_add(1, Ordering::SeqCst) + 1;
        if nth == puts {
            memory.cut_power(seed);
        }
        nth < puts
    };
    let service = Service::start(config)?;
    let (told, _) = load(&Store::open(&service)?, Counts::default(), goes_on);
    let service = Service::start(disk.config())?;
    let store = Store::open(&service)?;
    let found = check(&mut store.reader(&service)?)?;
    store.close()?;
    compare(told, found)
}

#[test]
fn storage_engine_runs() {
    storage_engine::main().expect("nothing is lost");
}

#[test]
fn storage_engine_survives_power_cuts() {
    let schedulers = ["none", "mq-deadline", "bfq", "mclock"];
    for seed in 0..24 {
        let text = format!("memory,size=64,cache_size=8,fua={}", seed / 4 % 2);
        let disk = blkmq::device(&text).expect("a memory device");
        let scheduler = blkmq::scheduler(schedulers[seed as usize % 4]).expect("built in");
        // The groups of a single writer have one block each, so only the flush of the manifest makes a run durable.
        let writers = [1, 2, 4][seed as usize / 8];
        let config = disk.config().scheduler(scheduler);
        let outcome = cut(&disk, config, seed, (writers, 50 + seed % 8 * 67));
        assert!(outcome.is_ok(), "seed {seed}, {text}, {}: {outcome:?}", scheduler.name);
    }
}

/// A disk that completes flushes without flushing.
struct Deaf<P>(Box<dyn DeviceQueue<P>>);

impl<P> DeviceQueue<P> for Deaf<P> {
    fn enqueue(&mut self, now: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        if rq.op() == Op::Flush {
            Enqueued::Done(rq, Ok(()))
        } else {
            self.0.enqueue(now, bios, rq)
        }
    }

    fn commit(&mut self, now: Instant) {
        self.0.commit(now);
    }

    fn reap(&mut self, now: Instant, bios: &BioTable<P>, out: &mut Vec<Finished>) {
        self.0.reap(now, bios, out);
    }

    fn next_event(&self) -> Option<Instant> {
        self.0.next_event()
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        self.0.abandon(out);
    }
}

/// The power cuts of the test above detect disks that acknowledge FUA writes, flushes, or both, before the data is
/// durable.
#[test]
fn a_disk_that_acknowledges_too_early_is_found() {
    let disk = |fua| blkmq::device(&format!("memory,size=64,cache_size=8,fua={fua}"));
    let deaf = |queue| Box::new(Deaf(queue)) as _;
    for twin in ["FUA", "flushes", "both"] {
        let found = (0..10).filter(|seed| {
            let disk = disk(u8::from(twin == "flushes")).expect("a memory device");
            let mut config = disk.config();
            match twin {
                "FUA" => config.device.cache = WriteCache::Back { fua: true },
                "flushes" => config.queues = config.queues.into_iter().map(deaf).collect(),
                _ => config.device.cache = WriteCache::Through,
            }
            // Lost FUA writes show in the log; lost flushes show only in a sorted run, which takes 60 puts.
            let puts = if twin == "FUA" { 20 } else { 60 };
            cut(&disk, config, *seed, (1, puts)).is_err()
        });
        // One cut in five loses nothing.
        assert!(found.count() >= 6, "{twin}: not found");
    }
}

/// Puts records into the store at `path`, and reports each to the parent, until it is killed.
fn put_until_killed(device: &str) {
    let service = open_when_free(device);
    let store = Store::open(&service).expect("what is there is a store");
    let begin = check(&mut store.reader(&service).expect("a client")).expect("it is whole");
    // One system call for each line, so that a kill leaves no partial line.
    let tell = |text: String| std::io::stderr().write_all(text.as_bytes()).is_ok();
    let told = (0..).zip(begin).all(|(writer, puts)| tell(format!("{writer} {puts}\n")));
    assert!(told, "the parent reads");
    load(&store, begin, |writer, nth| tell(format!("{writer} {}\n", nth + 1))).1.expect("no error");
}

#[test]
fn storage_engine_survives_kills() {
    if let Ok(device) = std::env::var("BLKMQ_TEST_STORE") {
        return put_until_killed(&device);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let device = format!("uring:{},size=16", folder.path().join("store").display());
    let program = std::env::current_exe().expect("a test is a program");
    let mut before = Counts::default();
    for lines in [200, 500, 900] {
        let mut child = Command::new(&program)
            .args(["--exact", "--nocapture", "examples::storage_engine_survives_kills"])
            .env("BLKMQ_TEST_STORE", &device)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut told = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut counts = Counts::default();
        let mut note = |line: String| {
            let (writer, puts) = line.split_once(' ').expect("two words");
            counts[writer.parse::<usize>().expect(&line)] = puts.parse().expect(&line);
        };
        told.by_ref().take(lines).for_each(|line| note(line.expect("a line")));
        child.kill().expect("it runs");
        told.for_each(|line| note(line.expect("a line")));
        child.wait().expect("it has ended");
        let service = open_when_free(&device);
        let store = Store::open(&service).expect("what is there is a store");
        let found = check(&mut store.reader(&service).expect("a client")).expect("it is whole");
        compare(counts, found).expect("all that was told is there");
        assert!(before < found, "the child puts");
        before = found;
        store.close().expect("no error");
    }
}

/// The kernel takes a moment to unlock the file of a killed process, or of a service that has ended.
fn open_when_free(device: &str) -> Service<AlignedBuf> {
    loop {
        match blkmq::open(device) {
            Err(error) if error.is_busy() => thread::yield_now(),
            opened => return opened.expect("it is there").start("mq-deadline").expect("it starts"),
        }
    }
}
