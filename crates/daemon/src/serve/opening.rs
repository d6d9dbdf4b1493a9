//! Finds the faults of a configuration that only opening its devices reveals: `blkmqd --check FILE --open`.
//!
//! The check changes nothing: files are opened read-only and without a lock, so that a server may use them at the same
//! time, and no file is laid out. So a device claimed by another program is not a fault here, only at start.

use super::wanted::{DiskChoice, Wanted};
use super::{access, sockets, started};
use blkmq::{Device, uring};
use blkmq_server::{Server, Tls, Ublk};
use listenfd::ListenFd;
use nix::unistd::{AccessFlags, access};
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
}
