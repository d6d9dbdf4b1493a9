//! A Linux kernel as a client: it mounts a virtual disk of `blkmqd`, and an export by its own NBD driver. The scripts
//! are in `tests/guest`.

use super::{Folder, Outcome};
use crate::Result;
use crate::measurement::pause;
use crate::serve::Server;
use crate::shell::{BLKMQ, BLKMQCTL, BLKMQD, Cmd, is_installed, root};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

/// The device that the guest's file systems are on.
pub(super) const DEVICE: &str = "memory,size=64,discard=1";
/// One request at a time, a millisecond each, so that all waiting is in the scheduler.
const SLOW: &str =
    "memory,size=64,irqmode=2,completion_nsec=1000000,submit_queues=1,hw_queue_depth=1";

/// Kills of a server while its guest writes files, and the bytes that are written before each.
const KILLS: u32 = 10;
const WRITTEN: u64 = 256 << 10;

/// A kernel that scripts run in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    /// User-mode Linux, a process.
    Uml,
    /// Debian's kernel for virtual machines, in an emulated one.
    Cloud,
    /// The newest kernel that Debian has backported, in the same machine.
    Next,
}

impl Kernel {
    /// Its name in `tests/guest`.
    fn name(self) -> &'static str {
        match self {
            Self::Uml => "uml",
            Self::Cloud => "cloud",
            Self::Next => "next",
        }
    }

    /// Its name for people.
    fn title(self) -> &'static str {
        match self {
            Self::Uml => "user-mode Linux",
            Self::Cloud => "Debian's kernel under QEMU",
            Self::Next => "Debian's newest kernel under QEMU",
        }
    }

    /// The command that runs a script in it.
    pub(super) fn script(self, name: &str) -> Cmd {
        Cmd::new(&format!("tests/guest/run.sh tests/guest/{name}.sh")).env("KERNEL", self.name())
    }
}

/// A file system on a virtual disk.
pub(super) fn vhost(kernel: Kernel) -> Result<Outcome> {
    if let Some(lack) = lack(kernel)? {
        return Ok(Outcome::Skipped(lack));
    }
    let server = machine("guest-vhost", DEVICE, "mq-deadline", "off")?;
    run(kernel, "vhost", &server.path("socket"))?;
    Ok(Outcome::Passed)
}

/// A file system on a virtual disk whose server is killed while files are written. Then the disk grows, which the guest
/// waits for.
pub(super) fn killed() -> Result<Outcome> {
    if let Some(lack) = lack(Kernel::Cloud)? {
        return Ok(Outcome::Skipped(lack));
    }
    let folder = Folder::new("guest-killed")?;
    let [disk, log] = ["disk", "log"].map(|name| folder.path().join(name));
    File::create(&disk)?.set_len(128 << 20)?;
    let device = format!("uring:{}", disk.display());
    let start = || machine("guest-killed", &device, "mq-deadline", "off");
    let mut server = start()?;
    let script = Kernel::Cloud.script("vhost_killed");
    let mut guest =
        script.arg(server.path("socket").display().to_string()).start(File::create(&log)?)?;
    let stored = |disk: &Path| Ok::<_, std::io::Error>(disk.metadata()?.blocks() * 512);
    let mut kills = 0;
    while kills < KILLS && guest.try_wait()?.is_none() {
        let before = stored(&disk)?;
        while stored(&disk)? < before + WRITTEN && guest.try_wait()?.is_none() {
            pause(0.05)?;
        }
        pause(f64::from(kills * 7 % 10) / 20.0)?;
        // Which kills it.
        drop(server);
        server = start()?;
        kills += 1;
    }
    File::options().write(true).open(&disk)?.set_len(192 << 20)?;
    let ended = guest.wait()?;
    println!("{}", fs::read_to_string(&log)?.trim());
    println!("killed {kills} times while the guest wrote");
    match ended.success() && kills == KILLS {
        true => Ok(Outcome::Passed),
        false => Err("vhost_killed failed in the guest".into()),
    }
}

/// A file system on an export of a server in the guest, by the kernel's client.
pub(super) fn nbd(kernel: Kernel) -> Result<Outcome> {
    if let Some(lack) = lack(kernel)? {
        return Ok(Outcome::Skipped(lack));
    }
    kernel.script("nbd").env("PROGRAMS", BLKMQD).run()?;
    Ok(Outcome::Passed)
}

/// Our devices compared with the kernel's null_blk with the same parameters: equal attributes.
pub(super) fn null_blk() -> Result<Outcome> {
    if let Some(lack) = lack(Kernel::Cloud)? {
        return Ok(Outcome::Skipped(lack));
    }
    Kernel::Cloud.script("null_blk").env("PROGRAMS", format!("{BLKMQD} {BLKMQCTL}")).run()?;
    Ok(Outcome::Passed)
}

/// Polled completions at a device, the kernel's null_blk.
pub(super) fn iopoll() -> Result<Outcome> {
    if let Some(lack) = lack(Kernel::Cloud)? {
        return Ok(Outcome::Skipped(lack));
    }
    Kernel::Cloud.script("iopoll").env("PROGRAMS", BLKMQ).run()?;
    Ok(Outcome::Passed)
}

/// A script about block devices that a server in the guest serves by ublk.
pub(super) fn ublk(kernel: Kernel, script: &str) -> Result<Outcome> {
    if let Some(lack) = lack(kernel)? {
        return Ok(Outcome::Skipped(lack));
    }
    kernel.script(script).env("PROGRAMS", format!("{BLKMQD} {BLKMQCTL}")).run()?;
    Ok(Outcome::Passed)
}

/// Verified load on file systems on such devices, and shares between them.
pub(super) fn ublk_load(kernel: Kernel) -> Result<Outcome> {
    if !has("mkfs.xfs") {
        return Ok(Outcome::Skipped("mkfs.xfs is not installed".to_owned()));
    }
    if let Some(lack) = lack(kernel)? {
        return Ok(Outcome::Skipped(lack));
    }
    let programs = format!("{BLKMQD} {BLKMQCTL} fio mkfs.xfs xfs_repair");
    kernel.script("ublk_load").env("MODULES", "xfs").env("PROGRAMS", programs).run()?;
    Ok(Outcome::Passed)
}

/// The priorities of the guest's processes, which the server's scheduler sees if configured: only then does a reader of
/// class idle wait for those of class realtime.
///
/// Not in an emulated machine: its readers are too slow to keep the others waiting.
pub(super) fn priorities() -> Result<Outcome> {
    if let Some(lack) = lack(Kernel::Uml)? {
        return Ok(Outcome::Skipped(lack));
    }
    for (of_guest, is_seen) in [("off", false), ("clamp", true), ("trust", true)] {
        let server = machine("guest-priorities", SLOW, "mq-deadline", of_guest)?;
        let output = run(Kernel::Uml, "priorities", &server.path("socket"))?;
        let time = |class: &str| -> Result<f64> {
            let line = output.lines().find_map(|line| line.strip_prefix(class));
            let number = line.and_then(|rest| rest.trim().strip_suffix(" ms")?.parse().ok());
            number.ok_or_else(|| format!("no time of {class} in {output}").into())
        };
        let (realtime, idle) = (time("class 1:")?, time("class 3:")?);
        println!("guest-ioprio={of_guest}: 100 reads realtime {realtime} ms, idle {idle} ms");
        // An idle reader that is abandoned has run for at least six seconds.
        let differ = idle > 5.0 * realtime;
        if differ != is_seen || !is_seen && idle > 2.0 * realtime {
            let text = format!("guest-ioprio={of_guest}: realtime {realtime} ms, idle {idle} ms");
            return Err(text.into());
        }
    }
    Ok(Outcome::Passed)
}

/// A server with one virtual disk.
fn machine(name: &str, device: &str, scheduler: &str, ioprio: &str) -> Result<Server> {
    let disk = format!("--blk-file={device} --scheduler={scheduler} --guest-ioprio={ioprio}");
    let line = format!("{BLKMQD} vhost-user-blk --socket-path=SOCKET --num-queues=2 {disk}");
    Server::start_unasked(name, &line)
}

/// Runs a script in a guest with the disk behind `socket`. Returns the guest's output lines.
pub(super) fn run(kernel: Kernel, script: &str, socket: &Path) -> Result<String> {
    let (passed, output) = kernel.script(script).arg(socket.display().to_string()).attempt()?;
    println!("{}", output.trim());
    if passed { Ok(output) } else { Err(format!("{script} failed in the guest").into()) }
}

/// The reason why no guest with this kernel can run here, if there is one. Fetches the kernel if it is missing.
pub(super) fn lack(kernel: Kernel) -> Result<Option<String>> {
    let of_modules = ["/sbin/modprobe", "xz"].into_iter().filter(|_| kernel != Kernel::Uml);
    let mut programs = ["cpio", "nbd-client", "busybox"].into_iter().chain(of_modules);
    if let Some(missing) = programs.find(|it| !has(it)) {
        return Ok(Some(format!("{missing} is not installed")));
    }
    if !root().join("target/guest").join(kernel.name()).exists() {
        let (fetched, said) = Cmd::new("tests/guest/fetch.sh").arg(kernel.name()).attempt()?;
        if !fetched {
            return Ok(Some(format!("the kernel cannot be fetched: {}", said.trim())));
        }
    }
    // Each kernel is started once with an empty script: a machine may forbid something that the kernel needs.
    static STARTS: [OnceLock<Option<String>>; 3] = [const { OnceLock::new() }; 3];
    let starts = &STARTS[kernel as usize];
    if starts.get().is_none() {
        let run = Cmd::new("tests/guest/run.sh /dev/null").env("KERNEL", kernel.name());
        let (started, said) = run.attempt()?;
        let why = said.lines().find(|line| line.contains("Kernel panic")).or(said.lines().last());
        let (name, why) = (kernel.title(), why.unwrap_or("no output"));
        let _ = starts.set((!started).then(|| format!("{name} does not start here: {why}")));
    }
    Ok(starts.get().cloned().flatten())
}

/// Returns whether a program is there; busybox has no --version.
fn has(program: &str) -> bool {
    is_installed(program)
        || Cmd::new(&format!("which {program}")).quiet_code().is_ok_and(|it| it == Some(0))
}
