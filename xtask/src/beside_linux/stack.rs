//! A model as a block device of Linux: `blkmqd`, nbdfuse on top of it, and a loop device on that; and a run of one side
//! on it: fio on a scheduler of Linux, or `blkmq bench` with the same scheduler of ours above `none`.
//!
//! Each device is created once and kept for all of its runs; [`Stack::kernel`] and [`Stack::ours`] set it up for one
//! side before each run.

use super::report::Sample;
use super::{Device, Job, Load, Side, Time};
use crate::Result;
use crate::measurement::pause;
use crate::shell::{Cmd, Guard, parse_json, timed};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;

/// Scheduler tags, on both sides.
const TAGS: u32 = 256;
/// Groups of Linux' first kind, where bfq's weights are.
const GROUPS: &str = "/sys/fs/cgroup/blkio";
/// Tries, 20 ms apart.
const TRIES: u32 = 500;
/// Server and nbdfuse are part of the device: they run before all other programs.
const FIRST: &str = "chrt --rr 20";

/// The reason why no device can be made here.
pub(super) fn missing() -> Option<String> {
    let tools = ["fio", "nbdfuse", "losetup", "chrt", "nice"];
    if let Some(tool) = tools.into_iter().find(|tool| !crate::shell::is_installed(tool)) {
        return Some(format!("{tool} is not installed"));
    }
    if Cmd::new("id -u").output().is_ok_and(|id| id.trim() != "0") {
        return Some("it needs root".into());
    }
    let nodes = ["/dev/fuse", "/dev/loop-control"];
    nodes.into_iter().find(|it| !Path::new(it).exists()).map(|it| format!("there is no {it}"))
}

/// A device that exists.
pub(super) struct Stack {
    /// `loop0`
    disk: String,
    depth: u32,
    folder: PathBuf,
    children: Vec<Child>,
    guard: Guard,
    groups: u32,
}

impl Stack {
    /// Creates it; `program` is blkmq, in whose folder its server and the server's client are.
    ///
    /// # Errors
    /// If a part cannot be started.
    pub(super) fn new(device: &Device, program: &str) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!(
            "blkmq-beside-{}-{}",
            device.name,
            std::process::id()
        ));
        fs::create_dir_all(folder.join("fuse"))?;
        let mut guard = Guard::new()?;
        guard.note("folder", &folder.display().to_string())?;
        let (disk, depth) = (String::new(), device.depth);
        let mut stack = Self { disk, depth, folder, children: Vec::new(), guard, groups: 0 };
        stack.serve(device, program)?;
        stack.mount()?;
        let file = stack.path("fuse/nbd");
        let line = format!("losetup --direct-io=on --find --show {}", file.display());
        let made = Cmd::new(&line).output()?;
        stack.guard.note("loop", made.trim())?;
        stack.disk = made.trim().trim_start_matches("/dev/").to_owned();
        if stack.read("loop/dio")? != "1" {
            return Err("the loop device does no direct I/O".into());
        }
        stack.set("queue/rotational", if device.rotational { "1" } else { "0" })?;
        // No model loses a write that it has answered; and schedulers are compared, not throttling above them.
        stack.set("queue/write_cache", "write through")?;
        stack.set("queue/wbt_lat_usec", "0")?;
        Ok(stack)
    }

    /// Starts the server: one thread, one connection, no merging of its own.
    fn serve(&mut self, device: &Device, program: &str) -> Result<()> {
        let socket = self.path("socket");
        let line = format!(
            "{FIRST} {program}d --listen=unix:{} --device={} --scheduler=none --export= --log=warn --workers=1",
            socket.display(),
            device.model
        );
        self.start(&line, "server")?;
        let control = self.path("socket.control");
        self.wait_for(&control, "server")?;
        Cmd::new(&format!("{program}ctl --control={} set queue/nomerges 2", control.display()))
            .output()?;
        Ok(())
    }

    fn mount(&mut self) -> Result<()> {
        let (at, socket) = (self.path("fuse"), self.path("socket"));
        self.guard.note("mount", &at.display().to_string())?;
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        self.start(&format!("{FIRST} nbdfuse -C 1 {} {uri}", at.display()), "nbdfuse")?;
        self.wait_for(&self.path("fuse/nbd"), "nbdfuse")
    }

    fn start(&mut self, line: &str, name: &str) -> Result<()> {
        let child = Cmd::new(line).start(File::create(self.path(&format!("{name}.log")))?)?;
        self.guard.note("process", &child.id().to_string())?;
        self.children.push(child);
        Ok(())
    }

    /// Waits until `path` exists, which the last started child creates.
    fn wait_for(&mut self, path: &Path, name: &str) -> Result<()> {
        for _ in 0..TRIES {
            if path.exists() {
                return Ok(());
            }
            if let Some(child) = self.children.last_mut()
                && child.try_wait()?.is_some()
            {
                break;
            }
            pause(0.02)?;
        }
        let log = fs::read_to_string(self.path(&format!("{name}.log")))?;
        Err(format!("{name} does not start: {}", log.trim()).into())
    }

    /// Sets up Linux' scheduler, with the device's number of driver tags.
    ///
    /// # Errors
    /// If the kernel refuses a setting.
    pub(super) fn kernel(&self, scheduler: &str) -> Result<()> {
        self.ours()?;
        if scheduler == "none" {
            return Ok(());
        }
        self.set("queue/scheduler", scheduler)?;
        self.set("queue/nr_requests", &TAGS.to_string())
    }

    /// Sets up Linux to pass everything through: no scheduler, no merging, the device's number of driver tags.
    ///
    /// # Errors
    /// As [`kernel`](Self::kernel).
    pub(super) fn ours(&self) -> Result<()> {
        self.set("queue/nomerges", "2")?;
        // Without a scheduler the number is that of driver tags, and it stays when a scheduler is set; with one it is
        // the number of scheduler tags. Removing the scheduler restores the device's own number, so that setting ours
        // is a change.
        self.set("queue/scheduler", "mq-deadline")?;
        self.set("queue/scheduler", "none")?;
        self.set("queue/nr_requests", &self.depth.to_string())
    }

    /// Allows merging, for the runs of the kernel.
    ///
    /// # Errors
    /// As [`kernel`](Self::kernel).
    fn merging(&self) -> Result<()> {
        self.set("queue/nomerges", "0")
    }

    /// Limits the page cache for this device, so that the rate of buffered writes is that of the device.
    ///
    /// # Errors
    /// As [`kernel`](Self::kernel).
    fn bound_cache(&self) -> Result<()> {
        let number = self.read("dev")?;
        let at = Path::new("/sys/class/bdi").join(number);
        fs::write(at.join("strict_limit"), "1")?;
        Ok(fs::write(at.join("max_bytes"), (32 << 20).to_string())?)
    }

    /// Creates a group with that weight under Linux' bfq. Returns the file into which a process writes its number to
    /// join it.
    ///
    /// # Errors
    /// If the kernel has no such groups.
    pub(super) fn group(&mut self, weight: u32) -> Result<PathBuf> {
        self.groups += 1;
        let name = format!("blkmq-{}-{}", std::process::id(), self.groups);
        let group = Path::new(GROUPS).join(name);
        fs::create_dir(&group).map_err(|error| format!("no group in {GROUPS}: {error}"))?;
        self.guard.note("group", &group.display().to_string())?;
        fs::write(group.join("blkio.bfq.weight"), weight.to_string())?;
        Ok(group.join("cgroup.procs"))
    }

    /// Bytes read and written so far, from the kernel's counters of the device.
    ///
    /// # Errors
    /// If the kernel does not report them.
    pub(super) fn moved(&self) -> Result<[u64; 2]> {
        let stat = self.read("stat")?;
        let fields: Vec<&str> = stat.split_whitespace().collect();
        let sectors = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok());
        let both = sectors(2).zip(sectors(6)).ok_or("the count of the device is not understood")?;
        Ok([both.0 * 512, both.1 * 512])
    }

    /// `/dev/loop0`
    pub(super) fn node(&self) -> String {
        format!("/dev/{}", self.disk)
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// A path in its folder.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn sys(&self, name: &str) -> PathBuf {
        Path::new("/sys/block").join(&self.disk).join(name)
    }

    fn read(&self, name: &str) -> Result<String> {
        let text = fs::read_to_string(self.sys(name));
        Ok(text.map_err(|error| format!("{name}: {error}"))?.trim().to_owned())
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        let written = fs::write(self.sys(name), value);
        Ok(written.map_err(|error| format!("{name} = {value}: {error}"))?)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // The guard ends them; here they are only waited for, so that none becomes a zombie.
        if let Ok(guard) = Guard::new() {
            drop(std::mem::replace(&mut self.guard, guard));
        }
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

/// Clients run before all other programs of the machine; their I/O priority is set explicitly, so that it does not
/// follow from that.
const SOON: &str = "nice -n -20";
/// Seconds that a client may exceed its time. fio under Linux' bfq has taken minutes: a thread whose I/O is never
/// served does not notice that its time is over.
const PATIENCE: u32 = 30;

/// The facts of a run that both sides need.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) load: &'a Load,
    /// Possibly with attributes of ours, as in `bfq:slice_idle=0`.
    pub(super) scheduler: &'a str,
    pub(super) time: Time,
    /// The command line of blkmq.
    pub(super) program: &'a str,
    /// More options of `blkmq bench`.
    pub(super) more: &'a str,
}

impl Run<'_> {
    /// Runs it; `None` if a client failed or did not end in time. If only one job has a direction, its rate is the
    /// device's own count: fio's is wrong for threads that waited through the ramp.
    ///
    /// # Errors
    /// If a program cannot be run, or an I/O failed.
    pub(super) fn measure(&self, side: Side, stack: &mut Stack) -> Result<Option<Sample>> {
        let started = match side {
            Side::Linux => self.linux(stack)?,
            Side::Ours => vec![self.ours(stack)?],
        };
        let moved = self.moved(stack)?;
        let ended = started.into_iter().map(Client::wait).collect::<Result<Vec<_>>>()?;
        let Some(ended) = ended.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
        let reports = ended.concat();
        if reports.len() != self.load.jobs.len() {
            return Err(format!("{} jobs in the reports", reports.len()).into());
        }
        Sample::of(self.load, &reports, moved).map(Some)
    }

    fn limit(&self) -> String {
        format!("timeout --foreground -k 5 {}", self.time.ramp + self.time.counted + PATIENCE)
    }

    /// Each job is a process, since a group consists of processes.
    fn linux(&self, stack: &mut Stack) -> Result<Vec<Client>> {
        let name = self.scheduler.split(':').next().unwrap_or_default();
        stack.kernel(name)?;
        stack.merging()?;
        if self.load.jobs.iter().any(|job| job.is_async) {
            stack.bound_cache()?;
        }
        self.load.jobs.iter().map(|job| self.fio(job, stack)).collect()
    }

    fn fio(&self, job: &Job, stack: &mut Stack) -> Result<Client> {
        let report = stack.path(&format!("{}.json", job.name));
        let line = format!(
            "{} {SOON} fio --filename={} --thread --allow_mounted_write=1 --lat_percentiles=1 --clat_percentiles=0 \
             --output-format=json --output={} {}",
            self.limit(),
            stack.node(),
            report.display(),
            job.of_fio(self.time)
        );
        let log = File::create(report.with_extension("log"))?;
        let cmd = match job.weight {
            None => Cmd::new(&line),
            Some(weight) => {
                let procs = stack.group(weight)?;
                Cmd::new("sh -c").arg(format!("echo $$ > {} && exec {line}", procs.display()))
            }
        };
        Ok(Client { child: cmd.start(log)?, report })
    }

    /// Bytes a second, read and written, in the middle of the run.
    fn moved(&self, stack: &Stack) -> Result<[f64; 2]> {
        // Clients need a moment to begin, and none may have ended.
        let counted = f64::from(self.time.counted) - 0.5;
        pause(f64::from(self.time.ramp))?;
        let before = stack.moved()?;
        let (paused, took) = timed(|| pause(counted));
        paused?;
        let after = stack.moved()?;
        Ok([0, 1].map(|way| (after[way] - before[way]) as f64 / took.as_secs_f64()))
    }

    fn ours(&self, stack: &Stack) -> Result<Client> {
        stack.ours()?;
        let jobs = self.load.jobs;
        let groups = jobs.iter().filter_map(|job| Some((job.name, job.weight?)));
        let groups: String =
            groups.map(|(name, weight)| format!(" --group={name}:weight={weight}")).collect();
        let lines: Vec<String> =
            (0..).zip(jobs).map(|(at, job)| job.of_bench(self.time, at == 0)).collect();
        let report = stack.path("bench.json");
        let line = format!(
            "{} {SOON} {} bench --device=uring:{},hw_queue_depth={} --scheduler={} --nr_requests={TAGS} {}{groups} \
             --output-format=json --output={} {}",
            self.limit(),
            self.program,
            stack.node(),
            stack.depth(),
            self.scheduler,
            self.more,
            report.display(),
            lines.join(" ")
        );
        let log = File::create(report.with_extension("log"))?;
        Ok(Client { child: Cmd::new(&line).start(log)?, report })
    }
}

struct Client {
    child: Child,
    report: PathBuf,
}

impl Client {
    /// The reports of its jobs, when it has ended; `None` if it failed or had to be ended.
    fn wait(mut self) -> Result<Option<Vec<Value>>> {
        let status = self.child.wait()?;
        if !status.success() {
            let log = fs::read_to_string(self.report.with_extension("log")).unwrap_or_default();
            eprintln!("{}: {status} {}", self.report.display(), log.trim());
            return Ok(None);
        }
        let text = fs::read_to_string(&self.report)?;
        let mut report = parse_json(&text)?;
        Ok(Some(report["jobs"].as_array_mut().map(std::mem::take).unwrap_or_default()))
    }
}
