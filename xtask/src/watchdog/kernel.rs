//! The kernel's accounting of a process and of a disk, as in `/proc` and `/sys`.
//!
//! A text that cannot be parsed is ignored. A process that has ended in the meantime has no text, which is not an
//! error either.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

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
pub(super) fn thread_count(pid: u32) -> Option<u32> {
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
pub(super) fn busy_workers() -> u64 {
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
