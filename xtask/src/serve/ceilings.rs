//! `ceilings`: a client under a ceiling of ours, of QEMU's throttle group, and of Linux' blkio controller.
//!
//! All three have the same file, loads and ceilings, and take turns in each round. Ours and QEMU's are in a server,
//! which fio reaches over NBD; Linux' is in front of a loop device, in a group for fio alone. A ceiling is good if the
//! client gets all of it and no more, and its slowest I/Os wait no longer than the rate requires.

use crate::Result;
use crate::fio::{Figures, Fio, median};
use crate::guard::Guard;
use crate::measurement::Rounds;
use crate::nbd::Server;
use crate::shell::{Cmd, build, is_installed};
use std::fs;
use std::path::{Path, PathBuf};

const HELP: &str = "usage: cargo xtask ceilings [ROUNDS [SECONDS]]

  ROUNDS    medians are over so many rounds (5)
  SECONDS   each run takes so long, and a second before it counts (5)";

/// MiB of the file.
const MIB: u32 = 512;
/// Linux' groups with rules for devices.
const GROUPS: &str = "/sys/fs/cgroup/blkio";
/// The most that a rate may be off, as a part of the ceiling.
const OFF: f64 = 0.01;

/// A load, and its ceiling.
struct Load {
    name: &'static str,
    options: &'static str,
    /// Bytes of an I/O, if the ceiling counts bytes.
    bytes: Option<u32>,
    ceiling: u64,
    /// The ceiling in our syntax, in QEMU's and in Linux'.
    words: [&'static str; 3],
}

const LOADS: [Load; 4] = [
    Load {
        name: "reads of 4 KiB, 32 at a time",
        options: "--rw=randread --bs=4k --iodepth=32",
        bytes: None,
        ceiling: 2000,
        words: ["riops", "iops-read", "read_iops"],
    },
    Load {
        name: "reads of 4 KiB, one at a time",
        options: "--rw=randread --bs=4k --iodepth=1",
        bytes: None,
        ceiling: 2000,
        words: ["riops", "iops-read", "read_iops"],
    },
    Load {
        name: "writes of 4 KiB, 32 at a time",
        options: "--rw=randwrite --bs=4k --iodepth=32",
        bytes: None,
        ceiling: 1000,
        words: ["wiops", "iops-write", "write_iops"],
    },
    Load {
        name: "writes of 64 KiB, 8 at a time",
        options: "--rw=randwrite --bs=64k --iodepth=8",
        bytes: Some(64 << 10),
        ceiling: 50 << 20,
        words: ["wbps", "bps-write", "write_bps"],
    },
];

/// The limiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Ours,
    Qemu,
    Linux,
}

impl Side {
    const ALL: [Self; 3] = [Self::Ours, Self::Qemu, Self::Linux];

    fn name(self) -> &'static str {
        match self {
            Self::Ours => "blkmqd",
            Self::Qemu => "QEMU's throttle group",
            Self::Linux => "Linux' blkio controller",
        }
    }

    /// The reason why it cannot be measured here, if there is one.
    fn lacks(self) -> Option<String> {
        match self {
            Self::Ours => None,
            Self::Qemu => (!is_installed("qemu-storage-daemon"))
                .then(|| "qemu-storage-daemon is not installed".to_owned()),
            Self::Linux => {
                let rule = Path::new(GROUPS).join("blkio.throttle.read_iops_device");
                let writable = fs::metadata(&rule).is_ok()
                    && Cmd::new("id -u").output().is_ok_and(|id| id.trim() == "0");
                (!writable).then(|| format!("no {}, or not root", rule.display()))
            }
        }
    }
}

/// `cargo xtask ceilings`, see [`HELP`].
///
/// # Errors
/// If a program fails. Figures are printed, and no figure is an error.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let Some(size) = Rounds { rounds: 5, seconds: 5 }.or(args, HELP)? else { return Ok(()) };
    build()?;
    println!("{}", measure(&LOADS, size)?);
    Ok(())
}

/// One load, for a second.
///
/// # Errors
/// As [`main`].
pub(crate) fn test_size() -> Result<()> {
    measure(&LOADS[..1], Rounds { rounds: 1, seconds: 1 }).map(|table| println!("{table}"))
}

fn measure(loads: &[Load], Rounds { rounds, seconds }: Rounds) -> Result<String> {
    let bench = Bench::new(seconds)?;
    let sides = Side::ALL.into_iter().filter(|side| side.lacks().is_none());
    let sides: Vec<Side> = sides.collect();
    let mut text = String::from(
        "| load, ceiling | by | of the ceiling | p50, p99, longest (ms) | aim |\n| --- | --- | --- | --- | --- |\n",
    );
    for load in loads {
        let mut runs: Vec<(Side, Vec<Figures>)> =
            sides.iter().map(|side| (*side, Vec::new())).collect();
        for _ in 0..rounds {
            for (side, figures) in &mut runs {
                figures.push(bench.run(*side, load)?);
            }
        }
        text.push_str(&rows(load, &runs));
    }
    for side in Side::ALL {
        if let Some(reason) = side.lacks() {
            text.push_str(&format!("\n{}: SKIPPED, {reason}\n", side.name()));
        }
    }
    Ok(text)
}

/// The rows of a load: medians, and for ours the targets.
fn rows(load: &Load, runs: &[(Side, Vec<Figures>)]) -> String {
    let p99 = |figures: &[Figures]| {
        median(figures.iter().map(|run| run.p99).collect()).unwrap_or_default()
    };
    let theirs = runs.iter().filter(|(side, _)| *side != Side::Ours);
    let least = theirs.map(|(_, figures)| p99(figures)).min();
    let mut text = String::new();
    for (side, figures) in runs {
        let of = |value: &dyn Fn(&Figures) -> f64| {
            median(figures.iter().map(value).collect()).unwrap_or_default()
        };
        let ms = |ns: u64| ns as f64 / 1e6;
        let part = of(&|run| load.part(run.iops));
        let aim = match (side, least) {
            (Side::Ours, Some(least)) => {
                if (part - 1.0).abs() <= OFF && p99(figures) <= least {
                    "holds"
                } else {
                    "missed"
                }
            }
            _ => "",
        };
        text.push_str(&format!(
            "| {} | {} | {:.1} % | {:.2}, {:.2}, {:.1} | {aim} |\n",
            load.title(),
            side.name(),
            part * 100.0,
            of(&|run| ms(run.p50)),
            of(&|run| ms(run.p99)),
            of(&|run| ms(run.longest)),
        ));
    }
    text
}

impl Load {
    /// `iops` as a part of the ceiling.
    fn part(&self, iops: f64) -> f64 {
        iops * f64::from(self.bytes.unwrap_or(1)) / self.ceiling as f64
    }

    fn title(&self) -> String {
        match self.bytes {
            None => format!("{}, {} in a second", self.name, self.ceiling),
            Some(_) => format!("{}, {} MiB in a second", self.name, self.ceiling >> 20),
        }
    }
}

/// The file, a loop device on it, and a group for its client.
struct Bench {
    folder: PathBuf,
    time: String,
    /// The loop device, and its number; where Linux limits.
    disk: Option<(String, String)>,
    group: PathBuf,
    _guard: Guard,
}

impl Bench {
    fn new(seconds: u32) -> Result<Self> {
        let name = format!("blkmq-ceilings-{}", std::process::id());
        let folder = std::env::temp_dir().join(&name);
        fs::create_dir_all(&folder)?;
        let mut guard = Guard::new()?;
        guard.note("folder", &folder.display().to_string())?;
        let file = folder.join("file");
        let fill =
            format!("dd if=/dev/urandom of={} bs=1M count={MIB} status=none", file.display());
        Cmd::new(&fill).output()?;
        let group = Path::new(GROUPS).join(&name);
        let disk = match Side::Linux.lacks() {
            Some(_) => None,
            None => {
                let line = format!("losetup --direct-io=on --find --show {}", file.display());
                let disk = Cmd::new(&line).output()?.trim().to_owned();
                guard.note("loop", &disk)?;
                let number = Path::new("/sys/block").join(disk.trim_start_matches("/dev/"));
                let number = fs::read_to_string(number.join("dev"))?.trim().to_owned();
                fs::create_dir(&group)?;
                guard.note("group", &group.display().to_string())?;
                Some((disk, number))
            }
        };
        let time =
            format!("--size={MIB}m --norandommap --time_based --ramp_time=1 --runtime={seconds}");
        Ok(Self { folder, time, disk, group, _guard: guard })
    }

    fn run(&self, side: Side, load: &Load) -> Result<Figures> {
        let [ours, qemus, _] = load.words;
        let file = self.folder.join("file").display().to_string();
        let server = match side {
            Side::Linux => return self.under_linux(load),
            Side::Ours => {
                let export = format!("--export=e,{ours}={} --log=warn", load.ceiling);
                Server::blkmq("ceilings", &format!("uring:{file}"), "none", &export)?
            }
            // A ring that was just killed may hold the lock of the file for a moment, so locking is off.
            Side::Qemu => Server::start(
                "ceilings",
                &format!(
                    "qemu-storage-daemon --object throttle-group,id=limit,x-{qemus}={} \
                     --blockdev driver=file,node-name=file,filename={file},locking=off,cache.direct=on,aio=io_uring \
                     --blockdev driver=throttle,node-name=slow,throttle-group=limit,file=file \
                     --nbd-server addr.type=unix,addr.path=SOCKET \
                     --export type=nbd,id=e,node-name=slow,name=e,writable=on",
                    load.ceiling
                ),
            )?,
        };
        let options = format!("{} {}", load.options, self.time);
        Fio::start(&server.uri("e"), &self.folder.join("client"), &options)?.wait()
    }

    /// fio in its own group, on the loop device.
    fn under_linux(&self, load: &Load) -> Result<Figures> {
        let (disk, number) = self.disk.as_ref().ok_or("no loop device")?;
        let rule = self.group.join(format!("blkio.throttle.{}_device", load.words[2]));
        fs::write(&rule, format!("{number} {}", load.ceiling))?;
        let procs = self.group.join("cgroup.procs").display().to_string();
        let line = format!(
            "fio --name=linux --ioengine=io_uring --direct=1 --filename={disk} {} {}",
            load.options, self.time
        );
        // The arguments that follow are those of the shell's "$@".
        let enter = format!("echo $$ > {procs} && exec \"$@\"");
        let client =
            line.split_whitespace().fold(Cmd::new("sh -c").arg(enter).arg("fio"), Cmd::arg);
        let figures = Fio::of(client, &self.folder.join("client"))?.wait();
        fs::write(&rule, format!("{number} 0"))?;
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(iops: f64, p99: u64) -> Figures {
        Figures { iops, p50: p99 / 2, p99, longest: 2 * p99, ..Figures::default() }
    }

    #[test]
    fn ours_holds_within_a_hundredth_and_with_the_least_p99() {
        let verdict = |iops: f64, ours: u64| {
            let runs = [
                (Side::Ours, vec![figures(iops, ours)]),
                (Side::Qemu, vec![figures(1990.0, 5_000_000)]),
                (Side::Linux, vec![figures(1200.0, 90_000_000)]),
            ];
            rows(&LOADS[0], &runs).lines().next().map(str::to_owned).unwrap_or_default()
        };
        assert_eq!(
            verdict(1985.0, 5_000_000),
            "| reads of 4 KiB, 32 at a time, 2000 in a second | blkmqd | 99.2 % | 2.50, 5.00, 10.0 | holds |"
        );
        assert!(verdict(1975.0, 5_000_000).contains("missed"), "too few");
        assert!(verdict(2025.0, 5_000_000).contains("missed"), "too many");
        assert!(verdict(1985.0, 5_000_001).contains("missed"), "too late");
    }

    #[test]
    fn bytes_are_counted_where_the_ceiling_counts_them() {
        assert!((LOADS[3].part(800.0) - 1.0).abs() < 1e-9);
        assert!((LOADS[0].part(1000.0) - 0.5).abs() < 1e-9);
    }
}
