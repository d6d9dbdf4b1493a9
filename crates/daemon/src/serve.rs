//! The program `blkmqd`: serves devices, each under a scheduler, as exports over NBD.
//!
//! `blkmq-server` implements the server. This module creates it from the command line, reports its addresses, and ends
//! it on a signal.
//!
//! It also checks a configuration beyond its text: the faults that only opening its devices reveals (`blkmqd --check
//! FILE --open`), and commands that try its promises in virtual time (`blkmqd --check FILE --simulate`). The check
//! changes nothing: files are opened read-only and without a lock, so that a server may use them at the same time, and
//! no file is laid out. So a device claimed by another program is not a fault here, only at start. The server does not
//! contain the laboratory, so it prints commands for `blkmq`, to be run or edited: a configuration does not describe
//! the tenants' loads.

mod access;
pub mod args;
mod config;
mod export;
mod process;
mod reload;
pub mod wanted;

use crate::Failure;
use access::{is_in_use, patient};
use args::Asked;
use blkmq::{AUTO, Device, OpenError, PolicyChoice, UringDevice, uring};
use blkmq_server::control::Program;
use blkmq_server::{Disk, Listener, Rights, Server, Settings, Tls, Ublk};
use blkmq_terminal::output::print;
use blkmq_terminal::{SchedulerChoice, UsageError, program};
use listenfd::ListenFd;
use nix::unistd::{AccessFlags, access};
use process::Heard;
use reload::Reloader;
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
    if args::is_asked(words) {
        let Some(found) = program::understood::<Failure>(&args::machine_definition, &words[1..])?
        else {
            return Ok(());
        };
        return match args::machine(&found)? {
            None => say(args::CAPABILITIES),
            Some(wanted) => serve(wanted, None, say),
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
        Asked::CheckOpen(path) => check(&path, opening_faults, say),
        Asked::Simulate(path, model) => {
            let said =
                config::read(&path).and_then(|wanted| commands(&path, &wanted, model.as_deref()));
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
    access::check_sockets(&wanted, &handed_over).map_err(failed)?;
    let disks = disks(&wanted, &heard).map_err(failed)?;
    // Listens last, so that a client that can connect is answered.
    let listeners = access::listeners(&wanted, handed_over).map_err(failed)?;
    // Set first: clients may get answers from now on, and after that a signal must drain the server.
    heard.serves();
    let mut server = start(&wanted, disks, listeners).map_err(failed)?;
    let control = wanted.control.path(server.listening());
    let page = start_http(&wanted, &mut server).map_err(failed)?;
    let text = welcome(&wanted, &server, control.as_deref(), page.as_deref());
    let reloader = Arc::new(Reloader::new(wanted, path, server.handle(), set_level));
    if let Some(path) = &control {
        let listens = patient(|| server.control(path, Arc::clone(&reloader) as _), is_in_use);
        listens.map_err(|e| failed(format!("control: {}: {e}", path.display())))?;
    }
    say(&text)?;
    let watchdog = process::Watchdog::start(server.handle());
    let (devices, exports) = (server.disks().len(), server.exports().len());
    process::ready(&format!("serves {exports} exports of {devices} devices"));
    while heard.wait() == process::Asked::Reload {
        // The result is ignored, since reloading logs its lines.
        let _ = reloader.reload(&|| heard.is_serving());
    }
    process::stopping();
    let drained = if is_followed { server.hand_over() } else { server.drain() };
    drop(watchdog);
    drained.map_err(|e: io::Error| failed(e.to_string()))
}

/// Opens a device, retrying while it is in use. A file that must be laid out is created first, so that a signal can
/// interrupt that.
fn open(description: &str, heard: &Heard) -> Result<Device, OpenError> {
    if let Some(Ok((path, options))) = uring::Options::described(description)
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
    let listener = patient(bind, is_in_use);
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
        let _ = writeln!(text, "control: blkmqctl --control={} list", path.display());
    }
    if let Some(page) = page {
        let _ = writeln!(text, "page: {page}");
    }
    text.push_str("SIGTERM or Ctrl-C ends it, once the requests in flight are answered.\n");
    text
}

/// The number of workers, which only matters for queues; these are made to check exports.
const WORKERS: u16 = 1;

/// Returns one line for each fault found by opening the devices of `wanted`.
fn opening_faults(wanted: &Wanted) -> Vec<String> {
    let mut faults = Vec::new();
    faults.extend(access::check_sockets(wanted, &ListenFd::empty()).err());
    if let Some(folder) = &wanted.tls {
        match Tls::load(folder) {
            Ok(tls) => faults.extend(access::check_certificates(wanted, &tls).err()),
            Err(error) => faults.push(format!("tls-certificates: {error}")),
        }
    }
    let on_ublk = wanted.exports.iter().find(|export| export.ublk.is_some());
    if let Some((export, error)) = on_ublk.zip(Ublk::check_driver().err()) {
        faults.push(format!("export '{}': ublk: {error}", export.name));
    }
    // The indexes of the devices that were opened: exports of other devices cannot be checked.
    let (mut disks, mut places) = (Vec::new(), Vec::new());
    for (at, disk) in wanted.disks.iter().enumerate() {
        match open_read_only(&disk.device).and_then(|device| started(disk, device, WORKERS)) {
            Ok(started) => {
                disks.push(started);
                places.push(at);
            }
            Err(error) => faults.push(named(disk, &error)),
        }
    }
    let mut exports = Vec::new();
    for export in &wanted.exports {
        let Some(disk) = places.iter().position(|at| *at == export.disk) else { continue };
        let mut export = export.clone();
        export.disk = disk;
        exports.push(export);
    }
    for (at, error) in Server::check(&disks, &exports) {
        faults.push(format!("export '{}': {error}", exports[at].name));
    }
    faults
}

/// Prefixes a fault of a device with its name, unless it has it already.
fn named(disk: &DiskChoice, error: &str) -> String {
    let error = error.strip_prefix(&format!("{}: ", disk.name)).unwrap_or(error);
    format!("device '{}': {error}", disk.name)
}

/// Opens a device for inspection. A file that the server would lay out is replaced by an empty device of its size.
fn open_read_only(description: &str) -> Result<Device, String> {
    let opened = |text: &str| blkmq::open(text).map_err(|e| e.to_string());
    let (around, inside) = inside(description);
    let Some(file) = uring::Options::described(inside) else { return opened(description) };
    let (path, options) = file.map_err(|e| e.to_string())?;
    let found = std::fs::metadata(&path).ok();
    let refused = |what: &str| Err(format!("{}: {what}", path.display()));
    if let Some(bytes) = options.size_bytes.filter(|_| !options.readonly)
        && found.as_ref().is_none_or(|found| found.is_file() && found.len() < bytes)
    {
        let folder = path.parent().filter(|it| *it != Path::new("")).unwrap_or(Path::new("."));
        let changed = if found.is_some() { path.as_path() } else { folder };
        return match access(changed, AccessFlags::W_OK) {
            Err(error) if found.is_some() => refused(&format!("cannot be extended: {error}")),
            Err(error) => refused(&format!("cannot be made in {}: {error}", folder.display())),
            Ok(()) => opened(&format!("{around}null,size={bytes}b")),
        };
    }
    if found.is_some() && !options.readonly && access(&path, AccessFlags::W_OK).is_err() {
        return refused("cannot be written; accepted: readonly=1");
    }
    // If a parameter is repeated, the last value counts.
    opened(&format!("{description},readonly=1,locking=0"))
}

/// Splits a description into the layers above a file and the description of the file. For another device, the second
/// part is the whole description.
fn inside(description: &str) -> (&str, &str) {
    let names = ["uring:", "threads:"];
    if names.iter().any(|name| description.starts_with(name)) {
        return ("", description);
    }
    let at = names.iter().filter_map(|name| description.find(&format!(":{name}"))).min();
    description.split_at(at.map_or(0, |at| at + 1))
}

/// The default load of each tenant, which always has I/Os waiting, so that promises and weights take effect.
const LOAD: &str = "--rw=randread --bs=4k --iodepth=32";
/// The MiB of each tenant's region on the model.
const SIZE: usize = 64;
/// Returns whether the device called `name` is a model with service times. On others, virtual time would not advance for
/// a tenant that always has I/Os waiting.
fn takes_time(name: &str) -> bool {
    blkmq::device(name).is_ok_and(|device| device.is_model())
}

/// Parses the model given to `--simulate`; empty if none is given. `blkmq sim` checks its parameters.
///
/// # Errors
/// If `text` is not a model, or is a model without service times.
fn model(text: &str) -> Result<String, UsageError> {
    if text.is_empty() || takes_time(kind(text)) {
        return Ok(text.to_owned());
    }
    let models = blkmq::device_names().filter(|name| takes_time(name));
    Err(UsageError::new(format!(
        "'{text}' is no model that takes time; accepted: {}, with parameters behind commas",
        Vec::from_iter(models).join(", ")
    )))
}

/// The name at the beginning of the description of a device.
fn kind(device: &str) -> &str {
    device.split(',').next().unwrap_or_default()
}

/// A command for each device of the file at `path`. A device that is not a model is replaced by `model`.
///
/// # Errors
/// For each device that is not a model, if `model` is `None`.
fn commands(path: &str, wanted: &Wanted, model: Option<&str>) -> Result<String, Vec<String>> {
    let (mut text, mut faults) = (String::new(), Vec::new());
    for (at, disk) in wanted.disks.iter().enumerate() {
        let own = takes_time(kind(&disk.device)).then_some(disk.device.as_str());
        let Some(device) = own.or(model) else {
            faults.push(format!(
                "device '{}' is no model that takes time; accepted: --simulate=MODEL, such as flash,preset=nvme-client, or cloud",
                disk.name
            ));
            continue;
        };
        let file =
            if wanted.disks.len() == 1 { path.to_owned() } else { format!("{path}:{}", disk.name) };
        let fixed = format!(
            "blkmq sim --tenants={} --device={} --scheduler={} --runtime=20 --time_based --size={SIZE}m",
            quoted(&file),
            quoted(device),
            quoted(&disk.scheduler.text)
        );
        text += &fixed;
        let exports = wanted.exports.iter().filter(|export| export.disk == at);
        for (place, export) in exports.enumerate() {
            let name = quoted(&export.name);
            let offset = place * SIZE;
            // Writing to a String does not fail.
            let _ =
                write!(text, " \\\n    --name={name} --cgroup={name} --offset={offset}m {LOAD}");
        }
        text.push('\n');
    }
    if faults.is_empty() { Ok(text) } else { Err(faults) }
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_behind_other_devices() {
        assert_eq!(inside("uring:a,size=4"), ("", "uring:a,size=4"));
        assert_eq!(inside("faults,error=0.1:uring:a"), ("faults,error=0.1:", "uring:a"));
        assert_eq!(inside("faults:threads:a,size=4"), ("faults:", "threads:a,size=4"));
        assert_eq!(inside("memory,size=4"), ("", "memory,size=4"));
        assert_eq!(inside("uring:b:uring:c"), ("", "uring:b:uring:c"));
        assert_eq!(inside("threads:b:uring:c"), ("", "threads:b:uring:c"));
    }

    fn of(text: &str, model: Option<&str>) -> Result<String, Vec<String>> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("serve.toml");
        std::fs::write(&path, text).expect("written");
        let wanted = config::read(path.to_str().expect("UTF-8"));
        let wanted = wanted.unwrap_or_else(|faults| panic!("{faults:?}"));
        commands("serve.toml", &wanted, model)
    }

    #[test]
    fn a_model_takes_time() {
        for text in ["", "cloud", "flash,preset=sata"] {
            assert_eq!(model(text).as_deref(), Ok(text));
        }
        for (text, why) in [
            ("memory", "'memory' is no model that takes time; accepted: disk, flash, cloud"),
            ("clod", "'clod' is no model"),
        ] {
            let error = model(text).expect_err(text).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn each_device_has_a_command_with_its_tenants() {
        let two = "[[device]]\nname = \"ssd\"\ndevice = \"uring:/dev/nvme0n1\"\nscheduler = \"mclock\"\n\
                   [[device]]\nname = \"slow\"\ndevice = \"cloud\"\n\
                   [[export]]\nname = \"gold\"\ndevice = \"ssd\"\nsize = \"1g\"\n\
                   [[export]]\nname = \"it's\"\ndevice = \"ssd\"\noffset = \"1g\"\n\
                   [[export]]\nname = \"rest\"\ndevice = \"slow\"\n";
        let faults = of(two, None).expect_err("no model");
        assert!(
            faults[0].contains("'ssd'") && faults[0].contains("--simulate=MODEL"),
            "{faults:?}"
        );
        let text = of(two, Some("flash,preset=sata")).expect("commands");
        assert_eq!(
            text,
            "blkmq sim --tenants=serve.toml:ssd --device=flash,preset=sata --scheduler=mclock --runtime=20 --time_based \
             --size=64m \\\n    --name=gold --cgroup=gold --offset=0m --rw=randread --bs=4k --iodepth=32 \\\n    \
             --name='it'\\''s' --cgroup='it'\\''s' --offset=64m --rw=randread --bs=4k --iodepth=32\n\
             blkmq sim --tenants=serve.toml:slow --device=cloud --scheduler=auto --runtime=20 --time_based --size=64m \
             \\\n    --name=rest --cgroup=rest --offset=0m --rw=randread --bs=4k --iodepth=32\n"
        );
    }
}
