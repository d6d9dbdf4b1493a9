//! Checks a configuration beyond its text: the faults that only opening its devices reveals (`blkmqd --check FILE
//! --open`), and commands that try its promises in virtual time (`blkmqd --check FILE --simulate`).
//!
//! The check changes nothing: files are opened read-only and without a lock, so that a server may use them at the same
//! time, and no file is laid out. So a device claimed by another program is not a fault here, only at start.
//!
//! The server does not contain the laboratory, so it prints commands for `blkmq`, to be run or edited: a configuration
//! does not describe the tenants' loads.

use super::wanted::{DiskChoice, Wanted};
use super::{access, sockets, started};
use blkmq::{Device, uring};
use blkmq_server::{Server, Tls, Ublk};
use blkmq_terminal::UsageError;
use listenfd::ListenFd;
use nix::unistd::{AccessFlags, access};
use std::fmt::Write;
use std::path::Path;

/// The number of workers, which only matters for queues; these are made to check exports.
const WORKERS: u16 = 1;

/// Returns one line for each fault found by opening the devices of `wanted`.
pub fn faults(wanted: &Wanted) -> Vec<String> {
    let mut faults = Vec::new();
    faults.extend(sockets::check(wanted, &ListenFd::empty()).err());
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
        match open(&disk.device).and_then(|device| started(disk, device, WORKERS)) {
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
fn open(description: &str) -> Result<Device, String> {
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
/// The models with service times. On other models, virtual time would not advance for a tenant that always has I/Os
/// waiting.
const MODELS: [&str; 3] = ["disk", "flash", "cloud"];

/// Parses the model given to `--simulate`; empty if none is given. `blkmq sim` checks its parameters.
///
/// # Errors
/// If `text` is not a model, or is a model without service times.
pub fn model(text: &str) -> Result<String, UsageError> {
    if text.is_empty() || MODELS.contains(&kind(text)) {
        return Ok(text.to_owned());
    }
    Err(UsageError::new(format!(
        "'{text}' is no model that takes time; accepted: {}, with parameters behind commas",
        MODELS.join(", ")
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
pub fn commands(path: &str, wanted: &Wanted, model: Option<&str>) -> Result<String, Vec<String>> {
    let (mut text, mut faults) = (String::new(), Vec::new());
    for (at, disk) in wanted.disks.iter().enumerate() {
        let own = MODELS.contains(&kind(&disk.device)).then_some(disk.device.as_str());
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
    use crate::serve::config;

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
