//! The program `blkmqd`: serves devices, each under a scheduler, as exports over NBD.
//!
//! `blkmq-server` implements the server. This module creates it from the command line, reports its addresses, and ends
//! it on a signal.

mod access;
pub mod args;
mod check;
mod config;
mod difference;
mod export;
pub mod machine;
mod process;
mod reload;
mod sockets;
pub mod wanted;

use crate::Failure;
use args::Asked;
use blkmq::{AUTO, Device, OpenError, PolicyChoice, UringDevice};
use blkmq_server::control::{GoesOn, Program, Saved};
use blkmq_server::{Disk, Listener, Rights, Server, Settings, Tls};
use blkmq_terminal::output::print;
use blkmq_terminal::{SchedulerChoice, UsageError, program};
use listenfd::ListenFd;
use machine::Machine;
use process::Heard;
use reload::Reloader;
use signal_hook::consts::SIGTERM;
use sockets::patient;
use std::fmt::Write;
use std::io;
use std::path::Path;
use std::sync::Arc;
use wanted::{DiskChoice, Http, Wanted};

/// Runs the command given by the command-line arguments.
///
/// # Errors
/// If the arguments cannot be understood, or as [`run`].
pub fn program(words: &[String]) -> Result<(), Failure> {
    let say = |text: &str| Ok(print(text)?);
    if machine::is_asked(words) {
        let Some(found) = program::understood::<Failure>(&machine::definition, &words[1..])? else {
            return Ok(());
        };
        return match Machine::of(&found)? {
            Machine::Capabilities => say(Machine::capabilities()),
            Machine::Serve(wanted) => serve(*wanted, None, say),
        };
    }
    match program::understood::<Failure>(&args::definition, words)? {
        Some(found) => run(Asked::of(&found)?, say),
        None => Ok(()),
    }
}

/// Serves, or checks a configuration file. See [`serve`].
///
/// # Errors
/// If the file has a fault, the server cannot start, or one of its threads failed.
fn run(asked: Asked, say: impl Fn(&str) -> Result<(), Failure>) -> Result<(), Failure> {
    match asked {
        Asked::Serve(wanted, path) => serve(*wanted, path, say),
        Asked::Check(path) => check(&path, |_| Vec::new(), say),
        Asked::CheckOpen(path) => check(&path, check::faults, say),
        Asked::Simulate(path, model) => {
            let said = config::read(&path)
                .and_then(|wanted| check::commands(&path, &wanted, model.as_deref()));
            said.or_else(|faults| faulty(&path, &faults, &say)).and_then(|text| say(&text))
        }
    }
}

/// Reports the faults of a file.
fn faulty<T>(
    path: &str,
    faults: &[String],
    say: &impl Fn(&str) -> Result<(), Failure>,
) -> Result<T, Failure> {
    for fault in faults {
        say(&format!("{fault}\n"))?;
    }
    Err(UsageError::new(format!("{path}: faults: {}", faults.len())).into())
}

/// Reports the faults of a file, or, if it has none, those that `look` finds.
fn check(
    path: &str,
    look: fn(&Wanted) -> Vec<String>,
    say: impl Fn(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let looked = |wanted| {
        let faults = look(&wanted);
        let at = |fault| format!("{path}: {fault}");
        if faults.is_empty() { Ok(wanted) } else { Err(faults.into_iter().map(at).collect()) }
    };
    match config::read(path).and_then(looked) {
        Ok(wanted) => {
            let (devices, exports) = (wanted.disks.len(), wanted.exports.len());
            say(&format!("{path}: devices: {devices}, exports: {exports}, no faults\n"))
        }
        Err(faults) => faulty(path, &faults, &say),
    }
}

/// Serves until SIGTERM or SIGINT, then answers the requests in flight and returns. A second signal ends the program.
/// SIGHUP reloads the file at `path`.
fn serve(
    wanted: Wanted,
    path: Option<String>,
    say: impl Fn(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let failed = |what: String| Failure::Server(what);
    // Called while there is only one thread: it changes the environment.
    let handed_over = ListenFd::from_env();
    let is_followed = handed_over.len() > 0;
    let set_level = process::start_log(wanted.log, wanted.log_format);
    let heard = Heard::start().map_err(|e| failed(e.to_string()))?;
    sockets::check(&wanted, &handed_over).map_err(failed)?;
    let disks = disks(&wanted, &heard).map_err(failed)?;
    // Listens last, so that a client that can connect is answered.
    let listeners = sockets::listeners(&wanted, handed_over).map_err(failed)?;
    // Set first: clients may get answers from now on, and after that a signal must drain the server.
    heard.serves();
    let mut server = start(&wanted, disks, listeners).map_err(failed)?;
    let control = wanted.control.path(server.listening());
    let page = start_http(&wanted, &mut server).map_err(failed)?;
    let text = welcome(&wanted, &server, control.as_deref(), page.as_deref());
    let reloader = Arc::new(Reloader::new(wanted, path, server.handle(), set_level));
    if let Some(path) = &control {
        let program = || Box::new(Running(Arc::clone(&reloader)));
        let listens = patient(
            || server.control(path, program()),
            |error| error.kind() == io::ErrorKind::AddrInUse,
        );
        listens.map_err(|e| failed(format!("control: {}: {e}", path.display())))?;
    }
    say(&text)?;
    let watchdog = process::Watchdog::start(server.handle());
    let (devices, exports) = (server.disks().len(), server.exports().len());
    process::ready(&format!("serves {exports} exports of {devices} devices"));
    while heard.wait() == process::Asked::Reload {
        // The result is ignored, since reloading logs its lines.
        let _ = Running(Arc::clone(&reloader)).reload(&|| heard.is_serving());
    }
    process::stopping();
    let drained = if is_followed { server.hand_over() } else { server.drain() };
    drop(watchdog);
    drained.map_err(|e: io::Error| failed(e.to_string()))
}

/// The interface of this program to clients of the control socket.
struct Running(Arc<Reloader>);

impl Program for Running {
    fn drain(&self) {
        // Sent to this process, which handles it.
        let _ = signal_hook::low_level::raise(SIGTERM);
    }

    fn reload(&self, goes_on: GoesOn<'_>) -> Result<Vec<String>, String> {
        let done = process::reloading(|| self.0.reload(goes_on));
        match &done {
            Ok(lines) if lines.is_empty() => tracing::info!("reload: nothing has changed"),
            Ok(lines) => lines.iter().for_each(|line| match line.contains(": not ") {
                true => tracing::error!("reload: {line}"),
                false => tracing::info!("reload: {line}"),
            }),
            Err(faults) => tracing::error!("nothing is reloaded: {faults}"),
        }
        done
    }

    fn add(&self, export: &str, goes_on: GoesOn<'_>) -> Result<String, String> {
        self.0.add(export, goes_on)
    }

    fn remove(&self, name: &str) -> Result<String, String> {
        self.0.remove(name)
    }

    fn diff(&self) -> Result<Vec<String>, String> {
        self.0.diff()
    }

    fn save(&self) -> Result<Option<Saved>, String> {
        self.0.save()
    }
}

/// Opens a device, retrying while it is in use. A file that must be laid out is created first, so that a signal can
/// interrupt that.
fn open(description: &str, heard: &Heard) -> Result<Device, OpenError> {
    if let Some(Ok((path, options))) = blkmq::uring::Options::described(description)
        && let Some(bytes) = options.size_bytes.filter(|_| !options.readonly)
        && std::fs::metadata(&path).map_or(0, |found| found.len()) < bytes
    {
        let name = path.display();
        tracing::info!(path = %name, bytes, "a file is laid out first: some seconds for each GiB");
        let lay_out = || {
            let laid_out = heard.laying_out(|stop| UringDevice::lay_out(&path, &options, stop));
            laid_out.map_err(OpenError::File)
        };
        patient(lay_out, OpenError::is_busy)?;
    }
    patient(|| blkmq::open(description), OpenError::is_busy)
}

/// Opens the devices, each under its scheduler.
fn disks(wanted: &Wanted, heard: &Heard) -> Result<Vec<Disk>, String> {
    let start = |(at, disk): (usize, &DiskChoice)| {
        let device = open(&disk.device, heard).map_err(|e| e.to_string())?;
        let threads = Server::threads_of(at, &wanted.exports, wanted.workers);
        started(disk, device, threads.saturating_add(wanted.bounds.devices))
    };
    wanted.disks.iter().enumerate().map(start).collect()
}

/// Starts the scheduler of an open device, for `threads` threads.
fn started(disk: &DiskChoice, device: Device, threads: u16) -> Result<Disk, String> {
    let SchedulerChoice { factory, options, choice, .. } = &disk.scheduler;
    let started = match choice {
        PolicyChoice::Named => Disk::start_with(&disk.name, device, factory, options, threads),
        PolicyChoice::Auto => Disk::start(&disk.name, device, AUTO, threads),
    };
    let started = started.map_err(|e| format!("{}: {e}", disk.name))?;
    let depth = disk.device_depth.to_string();
    let set = started.service().set_attribute("blkmq/device_depth", &depth);
    set.map_err(|e| format!("{}: {e}", disk.name))?;
    Ok(started)
}

fn start(wanted: &Wanted, disks: Vec<Disk>, listeners: Vec<Listener>) -> Result<Server, String> {
    let tls = wanted.tls.as_ref().map(|folder| Tls::load(folder)).transpose();
    let tls = tls.map_err(|e| e.to_string())?;
    tls.iter().try_for_each(|tls| access::check_certificates(wanted, tls))?;
    let settings = Settings {
        tls,
        allow: wanted.allow.clone(),
        bounds: wanted.bounds,
        counting: wanted.counting,
        slow: wanted.slow,
        rights: wanted.rights,
        ..Settings::default()
    };
    Server::start(disks, &wanted.exports, listeners, wanted.workers, &settings)
        .map_err(|e| e.to_string())
}

/// Starts HTTP if it is configured. Returns the address of the page, with its key.
fn start_http(wanted: &Wanted, server: &mut Server) -> Result<Option<String>, String> {
    let Some(http) = &wanted.http else { return Ok(None) };
    // The socket is restricted to the user of the server, like the control socket.
    let bind = || Listener::bind(&http.address, &Rights::default());
    let listener = patient(bind, |error| error.kind() == io::ErrorKind::AddrInUse);
    let listener = listener.map_err(|e| format!("cannot listen on {}: {e}", http.address))?;
    let at = listener.address().clone();
    let key = server.http(listener, http.names.clone()).map_err(|e| format!("HTTP: {e}"))?;
    Ok(Some(Http::page(&at, &key)))
}

/// The devices and exports of the server, and addresses for clients.
fn welcome(wanted: &Wanted, server: &Server, control: Option<&Path>, page: Option<&str>) -> String {
    let mut text = String::new();
    for (number, disk) in (1..).zip(server.disks()) {
        let (bytes, scheduler) =
            (disk.device().bytes(), disk.service().attribute("queue/scheduler"));
        let scheduler = scheduler.unwrap_or_default();
        let _ = writeln!(text, "device {number}: {}, {bytes} bytes, {scheduler}", disk.name());
        if let Some(chosen) = disk.service().queue().plan().auto() {
            let _ = writeln!(text, "  {AUTO}: {chosen}");
        }
        for note in disk.device().notes() {
            let _ = writeln!(text, "  {note}");
        }
    }
    for export in &wanted.exports {
        let is_read_only = server.is_read_only(&export.name);
        let access = if is_read_only { "read-only" } else { "read and write" };
        let _ = writeln!(
            text,
            "export '{}': device {}, {access}, weight {}",
            export.name,
            export.disk + 1,
            export.weight
        );
        for uri in server.uris(&export.name) {
            let _ = writeln!(text, "  {uri}");
        }
        if let Some(machine) = &export.vhost_user {
            let _ = writeln!(text, "  vhost-user-blk: {}", machine.path.display());
        }
        if let Some(device) = &export.ublk {
            let _ = writeln!(text, "  ublk: /dev/ublkb{}", device.number);
        }
    }
    let is_open = wanted.tls.is_none();
    let open = server.listening().iter().filter(|address| is_open && address.is_remote());
    for address in open {
        let _ = writeln!(
            text,
            "warning: {address} can be reached by other machines, without encryption or passwords"
        );
    }
    if let Some(path) = control {
        let _ = writeln!(text, "control: blkmqctl --socket={} list", path.display());
    }
    if let Some(page) = page {
        let _ = writeln!(text, "page: {page}");
    }
    text.push_str("SIGTERM or Ctrl-C ends it, once the requests in flight are answered.\n");
    text
}
