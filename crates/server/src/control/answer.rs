//! The answers to requests, from the state that workers share.

use super::Program;
use super::counts::{begin, counts};
use super::message::{Answer, DeviceState, ExportSettings, ExportState, Request};
use super::waits::waits;
use crate::disk::Disk;
use crate::export::{Cache, Served};
use crate::worker::Shared;
use blkmq::core::Class;

/// Does what `request` asks for. Without a program its part of the requests is refused.
pub(crate) fn to(request: Request, shared: &Shared, program: Option<&dyn Program>) -> Answer {
    let program = || program.ok_or_else(|| "only a program can do that".to_owned());
    let done = match request {
        Request::List => Ok(list(shared)),
        Request::Get { device, path } => get(shared, device, path.as_deref()),
        Request::Set { device, path, value } => disk(shared, device).and_then(|disk| {
            let took = disk.service().set_attribute(&path, &value);
            took.map(|took| Answer::Done(took.0)).map_err(|error| error.to_string())
        }),
        Request::Export { name, settings } => change(shared, &name, &settings),
        Request::Stat => begin(shared).map(|()| Answer::Stat(counts(shared))),
        Request::Waits => begin(shared).map(|()| Answer::Waits(waits(shared))),
        Request::Trace { .. } | Request::ElevatorLog { .. } => {
            Err("a recording takes a connection of its own to the socket of control".to_owned())
        }
        Request::Reload => program().and_then(Program::reload).map(Answer::Reloaded),
        Request::Drain => program().map(|program| {
            program.drain();
            Answer::Draining
        }),
    };
    done.unwrap_or_else(Answer::Refused)
}

fn disk(shared: &Shared, number: usize) -> Result<&Disk, String> {
    let disk = number.checked_sub(1).and_then(|at| shared.disks.get(at));
    let most = shared.disks.len();
    disk.ok_or_else(|| format!("there is no device {number}; accepted: 1 to {most}"))
}

fn list(shared: &Shared) -> Answer {
    let device = |disk: &Disk| DeviceState {
        name: disk.name().to_owned(),
        bytes: disk.device().bytes(),
        scheduler: disk.service().queue().plan().scheduler.name.to_owned(),
    };
    let export = |export: &Served| {
        let plan = shared.disks[export.disk].service().queue().plan();
        let group = plan.groups.get(export.group.id());
        ExportState {
            name: export.info.name.clone(),
            device: export.disk + 1,
            offset: export.start,
            bytes: export.info.size,
            read_only: export.is_read_only(),
            weight: group.map_or(0, |group| group.weight),
            max: group.map(|group| group.max.to_string()).unwrap_or_default(),
            promise: group.map(|group| group.promise.to_string()).unwrap_or_default(),
            connections: export.connections(),
            class: class(export.ioprio.class()).to_owned(),
            cache: match export.cache {
                Cache::Writeback => "writeback",
                Cache::Writethrough => "writethrough",
            }
            .to_owned(),
        }
    };
    Answer::List {
        devices: shared.disks.iter().map(device).collect(),
        exports: shared.exports.now().all().map(export).collect(),
    }
}

/// As Linux and cgroup v2 spell it.
fn class(class: Class) -> &'static str {
    match class {
        Class::Realtime => "rt",
        Class::None | Class::BestEffort => "be",
        Class::Idle => "idle",
    }
}

fn get(shared: &Shared, device: usize, path: Option<&str>) -> Result<Answer, String> {
    let service = disk(shared, device)?.service();
    let Some(path) = path else {
        let all = service.attributes().into_iter();
        let all = all.map(|(attribute, value)| (attribute.path.into_owned(), value));
        return Ok(Answer::Attributes(all.collect()));
    };
    let value = service.attribute(path).map_err(|error| error.to_string())?;
    Ok(Answer::Attributes(vec![(path.to_owned(), value)]))
}

fn change(shared: &Shared, name: &str, settings: &ExportSettings) -> Result<Answer, String> {
    let exports = shared.exports.now();
    let export = exports.get(name).ok_or_else(|| {
        let names: Vec<&str> = exports.names().collect();
        format!("there is no export '{name}'; accepted: {}", names.join(", "))
    })?;
    let plan = shared.disks[export.disk].service().queue().plan();
    let group = plan.groups.get(export.group.id());
    let present = group.map(|group| group.max).unwrap_or_default();
    let promised = group.map(|group| group.promise).unwrap_or_default();
    // Read first, so that nothing is changed if one of them is impossible. Limits that are not named stay.
    let max = match &settings.max {
        Some(text) => Some(present.set(text).map_err(|error| error.to_string())?),
        None => None,
    };
    let promise = match &settings.promise {
        Some(text) => Some(promised.set(text).map_err(|error| error.to_string())?),
        None => None,
    };
    let clock = shared.disks[export.disk].service().clock();
    let begun = clock.now();
    if let Some(weight) = settings.weight {
        export.group.set_weight(weight).map_err(|error| error.to_string())?;
    }
    if let Some(max) = max {
        export.group.set_max(max).map_err(|error| error.to_string())?;
    }
    if let Some(promise) = promise {
        export.group.set_promise(promise).map_err(|error| error.to_string())?;
    }
    Ok(Answer::Done((clock.now() - begun).0))
}
