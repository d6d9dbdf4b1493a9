//! The example store keeps what it has acknowledged: under power cuts on a device with a volatile cache, and when its
//! process is killed. The same power cuts detect devices that acknowledge data before it is durable.

#[path = "../examples/storage_engine/main.rs"]
mod example;

use blkmq::device::Device;
use blkmq::prelude::*;
use blkmq::{BioTable, DeviceQueue, Enqueued, Finished, Inflight, Instant, WriteCache};
use example::store::Store;
use example::{Counts, Failure, check, compare, load};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

/// Cuts the power once `puts` records of the first `writers` writers have been acknowledged. Compares the acknowledged
/// records with the recovered ones.
fn cut(
    disk: &Device,
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
    example::main().expect("nothing is lost");
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
            .args(["--exact", "--nocapture", "storage_engine::storage_engine_survives_kills"])
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
            Err(error) if error.is_busy() => std::thread::yield_now(),
            opened => return opened.expect("it is there").start("mq-deadline").expect("it starts"),
        }
    }
}
