//! A process under watch, busy loops beside it, and the kernel's accounting of the process and of its disk, as in
//! `/proc` and `/sys`.
//!
//! Takes samples; the verdict is in `judge.rs`. A text that cannot be parsed is ignored. A process that has ended in
//! the meantime has no text, which is not an error either.

use super::judge::Sample;
use crate::Result;
use crate::shell::{Cmd, timed};
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
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
pub(super) type Threads = BTreeMap<String, u32>;

/// The bytes that block devices have read and written for a process so far. They are counted when the request enters
/// the device's queue in the kernel.
///
/// Returns `None` if it has ended.
pub(super) fn bytes(pid: u32) -> Option<[u64; 2]> {
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
pub(super) fn threads(pid: u32) -> Threads {
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
}
