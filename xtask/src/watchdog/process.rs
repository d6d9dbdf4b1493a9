//! A process under watch, busy loops beside it, and the kernel's accounting of the process and of its disk, as in
//! `/proc` and `/sys`; and the verdict on a round: stalls from samples of its process, and faults from stalls and
//! latencies.
//!
//! A text that cannot be parsed is ignored. A process that has ended in the meantime has no text, which is not an error
//! either. The verdict is pure, and tests make their own samples.

use crate::Result;
use crate::shell::{Cmd, timed};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::thread::park_timeout;
use std::time::Duration;

/// Between two samples.
const PERIOD: Duration = Duration::from_millis(20);
/// A process that has not ended by then never will: it abandons its last I/Os five seconds after the load.
const PATIENCE: Duration = Duration::from_secs(30);

/// The life of a process.
pub(super) struct Life {
    pub(super) samples: Vec<Sample>,
    /// The exit status; `None` if the process had to be killed.
    pub(super) status: Option<ExitStatus>,
}

/// Processes that are killed when this is dropped, even after an error.
struct Killed(Vec<Child>);

impl Drop for Killed {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // The process may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs `cmd` beside busy loops, with its output in `log`, and samples it and its disk until it has ended.
///
/// # Errors
/// If a process cannot be started, or the kernel does not report its end.
pub(super) fn watch(cmd: &Cmd, log: &Path, disk: Option<&Disk>, busy_loops: u32) -> Result<Life> {
    let mut loops = Killed(Vec::new());
    for _ in 0..busy_loops {
        // The limit ends the loop if this program is killed and cannot end it.
        let busy = Cmd::new("sh -c").arg("ulimit -t 60; while :; do :; done");
        loops.0.push(busy.start(File::open("/dev/null")?)?);
    }
    let mut process = Killed(vec![cmd.start(File::create(log)?)?]);
    let process = &mut process.0[0];
    let (mut samples, mut now) = (Vec::new(), Duration::ZERO);
    while now < PATIENCE {
        let ((), waited) = timed(|| park_timeout(PERIOD));
        now += waited;
        if let Some(status) = process.try_wait()? {
            return Ok(Life { samples, status: Some(status) });
        }
        let (sample, took) = timed(|| look(process.id(), disk, now, samples.last()));
        samples.extend(sample);
        now += took;
    }
    Ok(Life { samples, status: None })
}

/// A sample at `at`, unless the process is about to end.
fn look(pid: u32, disk: Option<&Disk>, at: Duration, before: Option<&Sample>) -> Option<Sample> {
    let (bytes, count) = (bytes(pid)?, thread_count(pid)?);
    let mut in_flight = disk.and_then(Disk::in_flight);
    let is_still = before.is_some_and(|before| before.bytes == bytes);
    let mut seen = Threads::new();
    if is_still {
        // With a hundred threads this takes two milliseconds, which a working process should not lose.
        seen = threads(pid);
        in_flight = in_flight.map(|requests| requests + busy_workers());
    }
    Some(Sample { at, count, bytes, in_flight, threads: seen })
}

/// Threads of a process, by state and system call: `("S 202", 64)`.
type Threads = BTreeMap<String, u32>;

/// The bytes that block devices have read and written for a process so far. They are counted when the request enters
/// the device's queue in the kernel.
///
/// Returns `None` if it has ended.
fn bytes(pid: u32) -> Option<[u64; 2]> {
    parse_bytes(&fs::read_to_string(format!("/proc/{pid}/io")).ok()?)
}

fn parse_bytes(io: &str) -> Option<[u64; 2]> {
    let number = |name: &str| {
        io.lines().find_map(|line| line.strip_prefix(name))?.strip_prefix(':')?.trim().parse().ok()
    };
    Some([number("read_bytes")?, number("write_bytes")?])
}

/// The number of threads of a process, or `None` if it has ended.
fn thread_count(pid: u32) -> Option<u32> {
    parse_thread_count(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The 18th word after the name, which may contain blanks and parentheses.
fn parse_thread_count(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(17)?.parse().ok()
}

/// The threads of a process. Threads that end while this runs are left out.
fn threads(pid: u32) -> Threads {
    let mut threads = Threads::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let read = |name| fs::read_to_string(task.path().join(name)).ok();
        let thread = || Some(thread(&read("stat")?, &read("syscall")?)?.to_owned());
        if let Some(thread) = thread() {
            *threads.entry(thread).or_default() += 1;
        }
    }
    threads
}

/// State and system call. The name of the thread, in parentheses, may contain blanks and parentheses.
fn thread(stat: &str, syscall: &str) -> Option<String> {
    let state = stat.rsplit_once(')')?.1.split_whitespace().next()?;
    let call = syscall.split_whitespace().next()?;
    Some(format!("{state} {call}"))
}

/// The number of kernel workers that are ready to run without having a CPU, or that wait for a disk.
///
/// A write past the page cache completes only after such a worker has run. Beside busy loops the worker may get no CPU
/// for a while, and then the disk is idle.
fn busy_workers() -> u64 {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats =
        processes.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
    stats.filter(|stat| is_busy_worker(stat)).count() as u64
}

fn is_busy_worker(stat: &str) -> bool {
    let Some((name, rest)) = stat.rsplit_once(')') else { return false };
    name.contains("(kworker/") && matches!(rest.split_whitespace().next(), Some("R" | "D"))
}

/// The disk below a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Disk {
    inflight: PathBuf,
}

impl Disk {
    /// The disk that holds `file`, or that `file` is.
    ///
    /// Returns `None` if the file system is in memory, or hides its devices, as overlayfs and btrfs do.
    pub(super) fn of(file: &Metadata) -> Option<Self> {
        let is_device = file.file_type().is_block_device();
        Self::in_sysfs(Path::new("/sys"), if is_device { file.rdev() } else { file.dev() })
    }

    fn in_sysfs(sys: &Path, dev: u64) -> Option<Self> {
        let (major, minor) = numbers(dev);
        let mut folder = sys.join(format!("dev/block/{major}:{minor}"));
        // The folder of a partition is in that of its disk.
        if folder.join("partition").exists() {
            folder.push("..");
        }
        let disk = Self { inflight: folder.join("inflight") };
        disk.in_flight().map(|_| disk)
    }

    /// The current number of requests at the disk, of all programs.
    pub(super) fn in_flight(&self) -> Option<u64> {
        parse_in_flight(&fs::read_to_string(&self.inflight).ok()?)
    }
}

/// The sum of reads and writes.
fn parse_in_flight(text: &str) -> Option<u64> {
    let mut numbers = text.split_whitespace().map(|word| word.parse::<u64>().ok());
    let (reads, writes) = (numbers.next()??, numbers.next()??);
    numbers.next().is_none().then_some(reads + writes)
}

/// Major and minor number, in the layout of `makedev` of the C library.
fn numbers(dev: u64) -> (u64, u64) {
    let major = (dev & 0x0000_0000_000f_ff00) >> 8 | (dev & 0xffff_f000_0000_0000) >> 32;
    let minor = dev & 0xff | (dev & 0x0000_0fff_fff0_0000) >> 12;
    (major, minor)
}

/// The first part of a load is not judged: the last threads still prepare themselves.
const WARM_UP: Duration = Duration::from_millis(200);
/// Time without a new I/O that counts as a stall.
const STALL: Duration = Duration::from_millis(500);
/// The greatest time that counts between two samples. If it is longer, the watchdog had no CPU, and cannot judge that
/// time.
const LONGEST_GAP: Duration = Duration::from_millis(100);
/// After its last answer, a disk is idle until a thread has a CPU and submits the next request. Beside busy loops this
/// takes some ticks.
const WAKE_UP: Duration = Duration::from_millis(100);
/// If the disk has a request for this long, it may be the reason that a run abandons its last I/Os, five seconds after
/// the load.
const GIVES_UP: Duration = Duration::from_secs(4);
/// If many requests queue in front of a slow disk, each of them waits, and an unlucky one for some rounds.
const QUEUE: u32 = 8;

/// The longest completion latency without a reason.
fn patience(scheduler: &str) -> Duration {
    match scheduler {
        // One of bfq's queues may have the disk for its time slice while others wait.
        "bfq" => Duration::from_secs(2),
        _ => Duration::from_millis(500),
    }
}

/// A sample of the process and its disk.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Since the start of the process.
    pub(super) at: Duration,
    /// Threads of the process.
    pub(super) count: u32,
    /// Bytes read and written so far.
    pub(super) bytes: [u64; 2],
    /// Requests at the disk, of all programs, and, if no byte has moved since the previous sample, busy kernel workers;
    /// `None` if the disk cannot be observed.
    pub(super) in_flight: Option<u64>,
    /// Threads by state and system call. Taken only if no byte has moved since the previous sample.
    pub(super) threads: BTreeMap<String, u32>,
}

/// The side that has the requests during a stall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// The disk has requests throughout, except at the end of the stall.
    Disk,
    /// The disk is idle: requests are stuck in the queue.
    Ours,
    /// The disk cannot be seen.
    Unknown,
}

/// A time without a new I/O.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stall {
    pub(super) begin: Duration,
    pub(super) length: Duration,
    pub(super) side: Side,
    /// Samples with an idle disk, and all samples.
    pub(super) idle: [usize; 2],
    /// The threads in the middle one of the samples with an idle disk, or of all.
    pub(super) threads: BTreeMap<String, u32>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) scheduler: &'static str,
    /// Threads that do I/O; the process has at least one more.
    pub(super) threads: u32,
}

impl Load {
    /// The time from the beginning of the load, when all threads exist and a byte moves, until a thread ends. Preparing
    /// memory before takes seconds if the process has no CPU. The last part is the wait for the last I/Os, which may be
    /// stuck as well.
    fn window(&self, samples: &[Sample]) -> Range<Duration> {
        let runs =
            |sample: &Sample| sample.count > self.threads && sample.bytes != samples[0].bytes;
        let Some(begun) = samples.iter().position(runs) else {
            return Duration::ZERO..Duration::ZERO;
        };
        // Signals and pumps have threads, too, which end after the load. Kernel threads may come later, and hide the
        // end of as many others.
        let has_ended = |sample: &&Sample| sample.count < samples[begun].count;
        let end = samples[begun..].iter().find(has_ended);
        samples[begun].at + WARM_UP..end.map_or(Duration::MAX, |sample| sample.at)
    }
}

/// Samples of a time, which may be empty.
fn within(samples: &[Sample], window: Range<Duration>) -> Vec<&Sample> {
    samples.iter().filter(|sample| window.contains(&sample.at)).collect()
}

/// Samples with an idle disk.
fn idle<'a>(samples: &[&'a Sample]) -> impl Iterator<Item = &'a Sample> {
    samples.iter().copied().filter(|sample| sample.in_flight == Some(0))
}

/// The stalls among samples of a load.
fn stalls(load: &[&Sample]) -> Vec<Stall> {
    let still = load.chunk_by(|a, b| a.bytes == b.bytes);
    still.filter(|still| length(still) >= STALL).map(stall).collect()
}

fn stall(still: &[&Sample]) -> Stall {
    // The first sample is that of the last I/O, in which workers of the kernel were not looked for.
    let idle: Vec<&Sample> = idle(&still[1..]).collect();
    let end = still[still.len() - 1].at;
    let side = if idle.iter().any(|sample| sample.at + WAKE_UP <= end) {
        Side::Ours
    } else if still.iter().any(|sample| sample.in_flight.is_none()) {
        Side::Unknown
    } else {
        Side::Disk
    };
    let middle = idle.get(idle.len() / 2).copied().unwrap_or(still[still.len() / 2]);
    Stall {
        begin: still[0].at,
        length: length(still),
        side,
        idle: [idle.len(), still.len()],
        threads: middle.threads.clone(),
    }
}

/// The time that samples surely saw.
fn length<S: Borrow<Sample>>(samples: &[S]) -> Duration {
    let at = |sample: &S| sample.borrow().at;
    samples.windows(2).map(|pair| (at(&pair[1]) - at(&pair[0])).min(LONGEST_GAP)).sum()
}

/// The longest time without a new I/O in which every sample shows requests at the disk, in the whole life of the
/// process: the last requests may end after the load. A disk that cannot be observed is assumed to have some.
fn longest_wait_for_disk(samples: &[Sample]) -> Duration {
    let is_busy = |sample: &Sample| sample.in_flight != Some(0);
    let still = samples.chunk_by(|a, b| a.bytes == b.bytes && is_busy(a) && is_busy(b));
    still.map(length).max().unwrap_or_default()
}

/// The longest time between samples, above which a gap does not count. The machine, or the CPUs that busy loops share
/// with the process, had other work then.
fn longest_blackout(samples: &[Sample]) -> Duration {
    let gaps = samples.windows(2).map(|pair| pair[1].at - pair[0].at);
    gaps.filter(|gap| *gap > LONGEST_GAP).max().unwrap_or_default()
}

/// The figures of a run that ended well.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Results {
    /// I/Os a second.
    pub(super) reads: f64,
    /// The longest completion latency, of reads and writes.
    pub(super) longest: Duration,
    /// The median latency, of the direction in which it is longer. Unlike the mean, it is not affected by a few stuck
    /// I/Os.
    pub(super) median: Duration,
}

/// The judgement of a round.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Verdict {
    pub(super) stalls: Vec<Stall>,
    /// See [`longest_wait_for_disk`].
    pub(super) disk: Duration,
    /// See [`longest_blackout`].
    pub(super) blackout: Duration,
    /// (samples of the load, those with an idle disk).
    pub(super) idle: [usize; 2],
    /// Descriptions; a round without any has passed.
    pub(super) faults: Vec<String>,
}

impl Verdict {
    /// Stalls of a side.
    pub(super) fn count(&self, side: Side) -> usize {
        self.stalls.iter().filter(|stall| stall.side == side).count()
    }
}

/// The verdict on a round, from its samples and the end of its process: results, or the reason why there are none.
pub(super) fn verdict(
    load: &Load,
    samples: &[Sample],
    end: &std::result::Result<Results, String>,
) -> Verdict {
    let within = within(samples, load.window(samples));
    let stalls = stalls(&within);
    let (disk, blackout) = (longest_wait_for_disk(samples), longest_blackout(samples));
    let mut faults = Vec::new();
    if stalls.iter().any(|stall| stall.side == Side::Ours) {
        faults.push("requests lay in the queue while the disk was idle".to_owned());
    }
    match end {
        Err(_) if disk >= GIVES_UP => {}
        Err(reason) => faults.push(reason.clone()),
        Ok(results) => {
            let most = patience(load.scheduler) + disk + blackout + QUEUE * results.median;
            if results.longest > most {
                faults.push(format!(
                    "a completion after {:.3} s, {:.3} s at most",
                    results.longest.as_secs_f64(),
                    most.as_secs_f64()
                ));
            }
        }
    }
    Verdict { stalls, disk, blackout, idle: [idle(&within).count(), within.len()], faults }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(name: &str) -> PathBuf {
        let log = format!("blkmq-watchdog-{name}-{}.log", std::process::id());
        std::env::temp_dir().join(log)
    }

    #[test]
    fn a_process_is_seen_until_it_ends() {
        let path = log("life");
        let cmd = Cmd::new("sh -c").arg("echo words; sleep 0.3; exit 3");
        let life = watch(&cmd, &path, None, 1).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(text, "words\n");
        assert_eq!(life.status.and_then(|status| status.code()), Some(3));
        assert!(life.samples.len() > 1, "{:?}", life.samples);
        assert!(life.samples.is_sorted_by(|a, b| a.at < b.at), "{:?}", life.samples);
        assert!(life.samples.iter().any(|sample| !sample.threads.is_empty()));
        assert!(life.samples.iter().all(|sample| sample.in_flight.is_none()));
    }

    #[test]
    fn bytes_are_those_of_the_disk() {
        let io = "rchar: 323934931\nwchar: 323929600\nsyscr: 632687\nsyscw: 632675\nread_bytes: 4096\n\
                  write_bytes: 323932160\ncancelled_write_bytes: 7\n";
        assert_eq!(parse_bytes(io), Some([4096, 323_932_160]));
        assert_eq!(parse_bytes("rchar: 1\nread_bytes: 2\n"), None);
        assert_eq!(parse_bytes("read_bytes: 2\nwrite_bytes: many\n"), None);
    }

    #[test]
    fn a_worker_without_a_cpu_is_busy() {
        let is =
            |name: &str, state: &str| is_busy_worker(&format!("78 ({name}) {state} 2 0 0 0 -1"));
        assert!(is("kworker/1:1-dio/vda", "R") && is("kworker/u8:0", "D"));
        assert!(!is("kworker/1:1", "I") && !is("sh", "R") && !is_busy_worker("78 (kworker/1:1"));
    }

    #[test]
    fn a_thread_has_a_state_and_a_call() {
        let stat = "4711 (a (b) c) S 1 4711 4711 0 -1 4194304";
        assert_eq!(thread(stat, "202 0x7f 0x80 0x0\n").as_deref(), Some("S 202"));
        assert_eq!(thread("5 (blkmq) R 1 5", "running\n").as_deref(), Some("R running"));
        assert_eq!(thread("5 (blkmq", "running\n"), None);
        assert_eq!(thread("5 (blkmq) R 1 5", ""), None, "it ended in between");
    }

    #[test]
    fn threads_are_counted() {
        let stat = "4711 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 105 18 19";
        assert_eq!(parse_thread_count(stat), Some(105));
        assert_eq!(parse_thread_count("4711 (a) S 1 2"), None);
    }

    #[test]
    fn this_process_is_seen() {
        let pid = std::process::id();
        assert!(bytes(pid).is_some());
        assert!(threads(pid).values().sum::<u32>() > 0);
        assert!(thread_count(pid).is_some_and(|count| count > 0));
        assert!(threads(0).is_empty() && bytes(0).is_none(), "no process has number 0");
    }

    #[test]
    fn reads_and_writes_are_in_flight() {
        assert_eq!(parse_in_flight("       3       14\n"), Some(17));
        for bad in ["", "3", "3 x", "1 2 3"] {
            assert_eq!(parse_in_flight(bad), None, "{bad}");
        }
    }

    #[test]
    fn numbers_of_devices_are_divided_as_by_the_c_library() {
        assert_eq!(numbers(0xfe00), (254, 0));
        assert_eq!(numbers(0x0801), (8, 1));
        assert_eq!(numbers(0x0010_3501), (0x35, 0x101));
        assert_eq!(numbers(0x0000_1000_0000_0000), (0x1000, 0));
    }

    #[test]
    fn a_partition_is_seen_through_its_disk() {
        let sys = std::env::temp_dir().join(format!("blkmq-watchdog-{}", std::process::id()));
        let (disk, part) = (sys.join("devices/sda"), sys.join("devices/sda/sda1"));
        fs::create_dir_all(&part).unwrap();
        fs::create_dir_all(sys.join("dev/block")).unwrap();
        fs::write(disk.join("inflight"), "  5  1\n").unwrap();
        fs::write(part.join("inflight"), "  0  0\n").unwrap();
        fs::write(part.join("partition"), "1\n").unwrap();
        for (name, to) in [("8:0", &disk), ("8:1", &part)] {
            std::os::unix::fs::symlink(to, sys.join("dev/block").join(name)).unwrap();
        }
        let seen = |dev| Disk::in_sysfs(&sys, dev).and_then(|disk| disk.in_flight());
        let all = [0x800, 0x801, 0x802].map(seen);
        fs::remove_dir_all(&sys).unwrap();
        assert_eq!(all, [Some(6), Some(6), None]);
    }

    const LOAD: Load = Load { scheduler: "none", threads: 4 };
    const GOOD: Results = Results {
        reads: 5e3,
        longest: Duration::from_millis(90),
        median: Duration::from_millis(9),
    };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A sample every 20 ms, with all threads, in which no byte moves before the second one. A part is (milliseconds of
    /// its end, whether bytes move, requests at the disk).
    fn life(parts: &[(u64, bool, Option<u64>)]) -> Vec<Sample> {
        let (mut samples, mut at, mut bytes) = (Vec::new(), 0, 0);
        for &(end, moves, in_flight) in parts {
            while at < end {
                at += 20;
                bytes += u64::from(moves && at > 20);
                let threads = [(format!("S {at}"), 4)].into();
                samples.push(Sample {
                    at: ms(at),
                    count: LOAD.threads + 1,
                    bytes: [bytes, 0],
                    in_flight,
                    threads,
                });
            }
        }
        samples
    }

    fn judged(
        samples: &[Sample],
        end: std::result::Result<Results, &str>,
    ) -> (Vec<(Side, u128)>, usize) {
        let verdict = verdict(&LOAD, samples, &end.map_err(str::to_owned));
        let stalls = verdict.stalls.iter().map(|it| (it.side, it.length.as_millis())).collect();
        (stalls, verdict.faults.len())
    }

    #[test]
    fn a_load_that_moves_or_pauses_for_a_short_time_has_no_stall() {
        let moving = life(&[(3_000, true, Some(0))]);
        assert_eq!(judged(&moving, Ok(GOOD)), (vec![], 0));
        let short =
            life(&[(1_500, true, Some(3)), (1_980, false, Some(0)), (3_000, true, Some(3))]);
        assert_eq!(judged(&short, Ok(GOOD)), (vec![], 0));
        assert_eq!(judged(&[], Ok(GOOD)), (vec![], 0));
    }

    #[test]
    fn a_busy_disk_is_waited_for_and_an_idle_one_is_a_fault() {
        let stall = |in_flight| {
            life(&[(1_500, true, Some(3)), (2_100, false, in_flight), (3_000, true, Some(3))])
        };
        assert_eq!(judged(&stall(Some(1)), Ok(GOOD)), (vec![(Side::Disk, 600)], 0));
        assert_eq!(judged(&stall(Some(0)), Ok(GOOD)), (vec![(Side::Ours, 600)], 1));
        assert_eq!(judged(&stall(None), Ok(GOOD)), (vec![(Side::Unknown, 600)], 0));
    }

    #[test]
    fn a_worker_of_the_kernel_that_was_not_looked_for_is_no_idle_disk() {
        let mut samples =
            life(&[(1_500, true, Some(3)), (2_100, false, Some(1)), (3_000, true, Some(3))]);
        let last_io = samples.iter().rposition(|sample| sample.at <= ms(1_500)).unwrap();
        assert_eq!(samples[last_io].bytes, samples[last_io + 1].bytes);
        samples[last_io].in_flight = Some(0);
        assert_eq!(judged(&samples, Ok(GOOD)), (vec![(Side::Disk, 600)], 0));
    }

    #[test]
    fn threads_have_a_moment_to_wake_up() {
        let ends_idle = |idle: u64| {
            let busy = [(1_500, true, Some(3)), (2_100, false, Some(1))];
            let end = [(2_100 + idle, false, Some(0)), (3_000, true, Some(3))];
            judged(&life(&[busy, end].concat()), Ok(GOOD))
        };
        assert_eq!(ends_idle(100), (vec![(Side::Disk, 700)], 0));
        assert_eq!(ends_idle(120), (vec![(Side::Ours, 720)], 1));
    }

    #[test]
    fn a_stall_tells_its_looks_and_the_threads_in_the_middle_of_the_idle_ones() {
        let parts = [(1_500, true, Some(3)), (1_800, false, Some(1)), (2_200, false, Some(0))];
        let samples = life(&[&parts[..], &[(3_000, true, Some(1))]].concat());
        let found = stalls(&within(&samples, LOAD.window(&samples)));
        let [stall] = &found[..] else { panic!("{found:?}") };
        assert_eq!((stall.side, stall.begin, stall.idle), (Side::Ours, ms(1_500), [20, 36]));
        assert_eq!(stall.threads, [("S 2020".to_owned(), 4)].into());
    }

    #[test]
    fn the_begin_and_the_end_of_a_run_are_not_the_load() {
        // Memory is prepared for 1.4 s, and results for 4 s.
        let mut samples =
            life(&[(1_400, false, Some(0)), (4_400, true, Some(3)), (8_400, false, Some(0))]);
        samples[220..].iter_mut().for_each(|sample| sample.count = 2);
        assert_eq!(LOAD.window(&samples), ms(1_620)..ms(4_420));
        assert_eq!(judged(&samples, Ok(GOOD)), (vec![], 0));
        samples[..100].iter_mut().for_each(|sample| sample.count = LOAD.threads);
        assert_eq!(LOAD.window(&samples), ms(2_220)..ms(4_420), "threads start");
        samples.truncate(90);
        assert!(LOAD.window(&samples).is_empty(), "it never began");
    }

    #[test]
    fn the_last_requests_of_a_load_may_lie_as_well() {
        let samples = life(&[(3_000, true, Some(3)), (7_000, false, Some(0))]);
        assert_eq!(judged(&samples, Ok(GOOD)), (vec![(Side::Ours, 4_000)], 1));
    }

    #[test]
    fn looks_at_an_idle_disk_are_counted() {
        let samples = life(&[(1_000, true, Some(3)), (1_200, true, Some(0)), (2_000, true, None)]);
        assert_eq!(verdict(&LOAD, &samples, &Ok(GOOD)).idle, [10, 89]);
    }

    #[test]
    fn a_time_without_a_look_is_no_stall_and_lengthens_latencies() {
        let mut samples = life(&[(1_500, true, Some(3)), (1_600, false, Some(0))]);
        samples.extend(life(&[(3_000, true, Some(3))]).split_off(120));
        samples[80].bytes = samples[79].bytes;
        assert_eq!(samples[80].at - samples[79].at, ms(820));
        let late = |longest| Ok(Results { longest: ms(longest), ..GOOD });
        assert_eq!(judged(&samples, late(1_300)), (vec![], 0));
        assert_eq!(judged(&samples, late(1_500)), (vec![], 1));
    }

    #[test]
    fn the_longest_latency_has_a_reason() {
        let samples =
            life(&[(1_500, true, Some(3)), (1_900, false, Some(1)), (3_000, true, Some(0))]);
        let faults = |scheduler, longest, median| {
            let results = Results { longest: ms(longest), median: ms(median), ..GOOD };
            verdict(&Load { scheduler, ..LOAD }, &samples, &Ok(results)).faults.len()
        };
        assert_eq!(faults("none", 900, 0), 0, "the disk had a request for 400 ms");
        assert_eq!(faults("none", 901, 0), 1);
        assert_eq!(faults("none", 1_700, 100), 0, "many requests waited");
        assert_eq!(faults("none", 1_701, 100), 1);
        assert_eq!(faults("bfq", 2_400, 0), 0);
        assert_eq!(faults("bfq", 2_401, 0), 1);
    }

    #[test]
    fn a_run_that_fails_is_a_fault_unless_the_disk_has_a_request_for_seconds() {
        let samples = |end, in_flight| {
            let mut samples = life(&[(2_900, true, Some(3)), (end, false, in_flight)]);
            samples[145..].iter_mut().for_each(|sample| sample.count = 2);
            samples
        };
        let faults = |samples: &[Sample]| judged(samples, Err("gave up")).1;
        assert_eq!(faults(&samples(8_000, Some(1))), 0);
        assert_eq!(faults(&samples(6_800, Some(1))), 1, "3.9 s");
        assert_eq!(faults(&samples(8_000, Some(0))), 1);
        let mut once_idle = samples(8_000, Some(1));
        let idle = once_idle.len() - 100;
        once_idle[idle].in_flight = Some(0);
        assert_eq!(faults(&once_idle), 1, "no four seconds without a break");
    }
}
