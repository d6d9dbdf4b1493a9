//! What is written is read; the bound of the pool, and requests that no thread begins.

use super::request::Request;
use super::*;
use blkmq_buf::{AlignedBuf, BufList};
use blkmq_core::{Instant, IoError, IoResult, Nanos, Op, Sectors};
use blkmq_engine::{Config, Io, Queue, Submitter};
use blkmq_runtime::Service;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

/// A queue around a file of zeroes, and its pool of at most `threads`.
fn queue(timeout: Nanos, threads: u16) -> (Queue<AlignedBuf>, Arc<Pool<Request>>) {
    let file = tempfile::NamedTempFile::new().expect("a folder for files");
    file.as_file().set_len(BLOCKS * BLOCK as u64).expect("a small file");
    let device = FileDevice::open(file.path(), &Options::default()).expect("it opens");
    let shape = DeviceShape { hw_queue_depth: 64, timeout, ..device.shape };
    let pool = Pool::new(threads, Arc::clone(&device.file)).expect("one thread");
    let source = Requests { readonly: false };
    let queue = ThreadQueue::new(Arc::clone(&pool), source, 64).expect("a descriptor");
    (Queue::new(Config::new(shape, vec![Box::new(queue)])).expect("valid"), pool)
}

fn read(submitter: &mut Submitter<AlignedBuf>, now: Instant, n: u64) {
    let io = Io::new(Op::Read, n * 8, 8, n, AlignedBuf::new(BLOCK));
    submitter.push(now, io.with(blkmq_core::IoFlags::NOMERGE)).expect("there is credit");
}

/// Polls at `now` until `count` reads have ended; a real disk takes real time.
fn results(submitter: &mut Submitter<AlignedBuf>, now: Instant, count: usize) -> Vec<IoResult> {
    let mut results = Vec::new();
    for _ in 0..50_000_000_u64 {
        submitter.poll(now);
        submitter.reap(u32::MAX, |done| results.push(done.result));
        if results.len() == count {
            return results;
        }
        std::thread::yield_now();
    }
    panic!("{} of {count} reads have ended", results.len());
}

#[test]
fn there_are_as_many_threads_as_allowed_and_as_needed() {
    for (most, at_once, expected) in [(1, 32, 1..=1), (3, 64, 2..=3), (16, 1, 1..=2)] {
        let (queue, pool) = queue(Nanos(u64::MAX), most);
        let mut submitter = queue.submitter().expect("one was asked for");
        for round in 0..8 {
            let now = Instant::ZERO + Nanos(round);
            (0..at_once).for_each(|n| read(&mut submitter, now, n));
            submitter.flush(now);
            assert!(results(&mut submitter, now, at_once as usize).iter().all(Result::is_ok));
        }
        assert!(expected.contains(&pool.threads()), "{} of {most}", pool.threads());
    }
}

#[test]
fn what_no_thread_begins_is_given_back_when_its_time_is_over() {
    let (queue, pool) = queue(Nanos::from_secs(1), 4);
    pool.close();
    let mut submitter = queue.submitter().expect("one was asked for");
    (0..4).for_each(|n| read(&mut submitter, Instant::ZERO, n * 2));
    submitter.flush(Instant::ZERO);
    submitter.poll(Instant::ZERO + Nanos::from_millis(999));
    assert_eq!(submitter.reap(u32::MAX, |_| {}), 0, "in time");
    let late = Instant::ZERO + Nanos::from_secs(2);
    assert_eq!(results(&mut submitter, late, 4), [Err(IoError::TIMED_OUT); 4]);
}

#[test]
fn what_no_thread_begins_is_given_back_when_the_queue_ends() {
    let leaked = blkmq_engine::leaked_bios();
    let (queue, pool) = queue(Nanos(u64::MAX), 4);
    pool.close();
    let mut submitter = queue.submitter().expect("one was asked for");
    (0..4).for_each(|n| read(&mut submitter, Instant::ZERO, n * 2));
    submitter.flush(Instant::ZERO);
    drop((submitter, queue));
    assert_eq!(blkmq_engine::leaked_bios(), leaked, "every token came back");
}

#[test]
fn what_is_written_is_read_in_one_buffer_or_several_and_is_in_the_file() {
    let folder = tempfile::tempdir().expect("a folder for files");
    let path = folder.path().join("a");
    let device = FileDevice::described(&format!("threads:{},size=1,threads=3", path.display()));
    let device = device.expect("of this kind").expect("it is made");
    let service = Service::<BufList>::start(device.config().expect("a thread")).expect("it starts");
    let mut disk = service.blocking().expect("a client");
    let block = |byte: u8| AlignedBuf::copy_of(&[byte; 1024]);
    for at in 0..16 {
        let list = BufList::new(vec![block(at), block(at + 100)]).expect("a few");
        let io = Io::write(Sectors(u64::from(at) * 4), list).with(blkmq_core::IoFlags::FUA);
        assert_eq!(disk.call(io).expect("it is taken").0, Ok(()));
    }
    let bytes = std::fs::read(&path).expect("it is there");
    assert_eq!((bytes.len(), bytes[15 * 2048], bytes[15 * 2048 + 1024]), (1 << 20, 15, 115));
    let list = BufList::new(vec![block(0), block(0), block(0)]).expect("a few");
    let (result, mut list) = disk.call(Io::read(Sectors(2), list)).expect("it is taken");
    assert_eq!(result, Ok(()));
    assert!(list.slices_mut().map(|bytes| bytes[9]).eq([100, 1, 101]));
    disk.flush().expect("it is done");
}

#[test]
fn a_short_file_and_a_device_for_reading_answer_with_errors() {
    let file = tempfile::NamedTempFile::new().expect("a folder for files");
    let open =
        |text: &str| FileDevice::described(&format!("threads:{}{text}", file.path().display()));
    let refused = open("").expect("of this kind").expect_err("it is empty");
    assert!(refused.to_string().ends_with("size=16m makes it larger"));
    file.as_file().set_len(1 << 20).expect("a small file");
    let device = open(",readonly=1").expect("of this kind").expect("it opens");
    let service = Service::start(device.config().expect("a thread")).expect("it starts");
    let mut disk = service.blocking().expect("a client");
    let buf = || AlignedBuf::new(BLOCK);
    assert_eq!(disk.write(Sectors(0), buf()).expect("it is taken").0, Err(request::READ_ONLY));
    assert_eq!(disk.read(Sectors(8), buf()).expect("it is taken").0, Ok(()));
    file.as_file().set_len(8192).expect("it is cut short");
    assert_eq!(disk.read(Sectors(8), buf()).expect("it is taken").0, Ok(()));
    assert_eq!(disk.read(Sectors(16), buf()).expect("it is taken").0, Err(IoError::IO));
    assert_eq!((device.bytes(), device.is_read_only()), (8192, true));
    let folder = tempfile::tempdir().expect("a folder");
    let refused = FileDevice::open(folder.path(), &Options::default()).expect_err("a folder");
    assert!(!refused.to_string().is_empty());
}

#[test]
fn every_parameter_is_read_and_has_its_default() {
    let text = "/a, threads=3,hw_queues=2,hw_queue_depth=8,size=7,readonly=y";
    let (path, options) = Options::parse(text).expect("valid");
    let expected = Options {
        threads: 3,
        hw_queues: 2,
        hw_queue_depth: 8,
        size_bytes: Some(7 << 20),
        readonly: true,
    };
    assert_eq!((path, options), (PathBuf::from("/a"), expected));
    let given = FILE.parameters.iter().filter(|parameter| !parameter.default.is_empty());
    let words = Vec::from_iter(given.map(|p| format!("{}={}", p.name, p.default)));
    let (_, options) = Options::parse(&format!("x,{}", words.join(","))).expect("valid");
    assert_eq!(options, Options::default());
    assert_eq!(FILE.undocumented(include_str!("../../doc/file.md")), None);
}

#[test]
fn refusals_list_what_is_accepted() {
    let refusal = |text| Options::parse(text).expect_err("refused").to_string();
    assert!(refusal("").ends_with("accepted: PATH[,KEY=VALUE]..."));
    assert!(refusal("a,fast").starts_with("'fast' is not understood"));
    assert!(refusal("a,direct=1").contains("accepted: threads, hw_queues, hw_queue_depth"));
    assert!(refusal("a,threads=0").contains("a whole number from 1 to 1024"));
}
