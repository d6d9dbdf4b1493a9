//! Answers requests from the state shared by the workers; each change of a running server is logged with a line.

use super::counts::{begin, counts, floor, waits};
use super::{Answer, DeviceState, ExportSettings, ExportState, GoesOn, Program, Request};
use crate::clients::Which;
use crate::disk::Disk;
use crate::export::{Cache, Served};
use crate::figures::goals;
use crate::worker::Shared;
use blkmq::core::Class;
use blkmq::engine::attributes::SetAttributeError;
use blkmq::{ChangeError, Clock, EditError, Group, Instant, Nanos, Plan};
use std::convert::Infallible;

/// How long a change waits for I/Os in flight, or for another change of its device. A device that holds an I/O for
/// longer is reported as stuck.
const PATIENCE: Nanos = Nanos::from_secs(10);

/// Handles `request`, giving up once `goes_on` returns false. `program` handles requests that need the program; without
/// it they are refused.
pub(crate) fn to(
    request: Request,
    shared: &Shared,
    program: Option<&dyn Program>,
    goes_on: GoesOn<'_>,
) -> Answer {
    let program = || program.ok_or_else(|| "only a program can do that".to_owned());
    let is_wanted = patient(goes_on);
    let done = match request {
        Request::List => Ok(list(shared)),
        Request::Clients => Ok(Answer::Clients(shared.clients.states())),
        Request::Disconnect { number, export, identity } => {
            disconnect(shared, number, export.as_deref(), identity.as_deref())
        }
        Request::Get { device, path } => get(shared, device, path.as_deref()),
        Request::Set { device, path, value } => {
            disk(shared, device).and_then(|disk| set(disk, &path, &value, &is_wanted))
        }
        Request::Export { name, settings } => change(shared, &name, &settings, &is_wanted),
        Request::Add { export } => program()
            .and_then(|it| it.add(&export, goes_on))
            .map(|line| Answer::Reloaded(vec![line])),
        Request::Remove { name } => {
            program().and_then(|it| it.remove(&name)).map(|line| Answer::Reloaded(vec![line]))
        }
        Request::Stat => begin(shared).map(|()| Answer::Stat(counts(shared))),
        Request::Waits => begin(shared).map(|()| Answer::Waits(waits(shared))),
        Request::Trace { .. } | Request::ElevatorLog { .. } => {
            Err("a recording takes a connection of its own to the socket of control".to_owned())
        }
        Request::Reload => program().and_then(|it| it.reload(goes_on)).map(Answer::Reloaded),
        Request::Diff => program().and_then(Program::diff).map(Answer::Differences),
        Request::Save => program().and_then(Program::save).map(Answer::Saved),
        Request::Drain => program().map(|program| {
            program.drain();
            Answer::Draining
        }),
    };
    done.unwrap_or_else(Answer::Refused)
}

/// Like `goes_on`, but for at most [`PATIENCE`].
pub(crate) fn patient(goes_on: GoesOn<'_>) -> impl Fn() -> bool {
    let clock = Clock::start();
    move || goes_on() && clock.now() - Instant::ZERO < PATIENCE
}

fn disk(shared: &Shared, number: usize) -> Result<&Disk, String> {
    let disk = number.checked_sub(1).and_then(|at| shared.disks.get(at));
    let most = shared.disks.len();
    disk.ok_or_else(|| format!("there is no device {number}; accepted: 1 to {most}"))
}

/// The present group of an export.
fn group(shared: &Shared, export: &Served) -> Option<Group> {
    let plan = shared.disks[export.disk].service().queue().plan();
    plan.groups.get(export.group.id()).cloned()
}

fn list(shared: &Shared) -> Answer {
    let device = |disk: &Disk| DeviceState {
        name: disk.name().to_owned(),
        bytes: disk.seen().bytes(),
        scheduler: disk.service().queue().plan().scheduler.name.to_owned(),
    };
    let queue = |disk: &Disk| (disk.service().queue().times(), disk.service().queue().goals());
    let queues = Vec::from_iter(shared.disks.iter().map(queue));
    let export = |export: &Served| {
        let group = group(shared, export);
        let ((times, status), id) = (&queues[export.disk], export.group.id());
        ExportState {
            name: export.info.name.clone(),
            device: export.disk + 1,
            offset: export.start,
            bytes: export.bytes(),
            read_only: export.is_read_only(),
            weight: group.as_ref().map_or(0, |group| group.weight),
            max: group.as_ref().map(|group| group.max.to_string()).unwrap_or_default(),
            promise: group.as_ref().map(|group| group.promise.to_string()).unwrap_or_default(),
            goals: goals(status.as_ref(), id.index()),
            floor: floor(group.as_ref(), times.floor(id)),
            connections: export.connections(),
            ublk: export.ublk.map(|ublk| ublk.number),
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

fn disconnect(
    shared: &Shared,
    number: Option<u64>,
    export: Option<&str>,
    identity: Option<&str>,
) -> Result<Answer, String> {
    let which = match (number, export, identity) {
        (Some(number), None, None) => Which::Number(number),
        (None, Some(export), None) => Which::Export(export),
        (None, None, Some(identity)) => Which::Identity(identity),
        _ => return Err("accepted: a number, an export or an identity".to_owned()),
    };
    let numbers = shared.clients.end(which);
    match (which, &numbers[..]) {
        (Which::Number(number), []) if shared.clients.stays(number) => Err(format!(
            "client {number} is a block device; accepted: a reload without its export, which ends it"
        )),
        (Which::Number(number), []) => {
            Err(format!("there is no client {number}; accepted: a number of blkmqctl clients"))
        }
        (Which::Export(name), []) if shared.exports.now().get(name).is_none() => {
            let exports = shared.exports.now();
            let names: Vec<&str> = exports.names().collect();
            Err(format!("there is no export '{name}'; accepted: {}", names.join(", ")))
        }
        // A misspelled identity must not look like a tenant that has gone.
        (Which::Identity(identity), []) => Err(format!(
            "no client has the identity '{identity}'; accepted: an identity that blkmqctl clients lists"
        )),
        _ => Ok(Answer::Disconnecting(numbers)),
    }
}

/// The name of a class, as spelled by Linux and cgroup v2.
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

/// The reason why a device prevented its own change.
fn stuck(disk: &Disk) -> String {
    format!(
        "{} is as before: its I/Os in flight did not end, or another change of it is under way; see blkmqctl stat",
        disk.name()
    )
}

fn set(disk: &Disk, path: &str, value: &str, goes_on: GoesOn<'_>) -> Result<Answer, String> {
    let service = disk.service();
    let took = service.set_attribute_while(path, value, goes_on);
    let took = took.map_err(|error| match error {
        SetAttributeError::Change(ChangeError::Busy) => stuck(disk),
        error => error.to_string(),
    })?;
    // If this is the configured scheduler, it gets the configured options.
    let configured = disk.configured().filter(|(factory, _)| factory.name == value.trim());
    if path == "queue/scheduler"
        && let Some((factory, options)) = configured
    {
        let edit = |plan: &mut Plan| {
            if plan.scheduler.name == factory.name {
                plan.options = options;
            }
            Ok::<_, Infallible>(())
        };
        service.edit(edit).map_err(|error| error.to_string())?;
    }
    Ok(Answer::Done(took.0))
}

fn change(
    shared: &Shared,
    name: &str,
    settings: &ExportSettings,
    goes_on: GoesOn<'_>,
) -> Result<Answer, String> {
    let exports = shared.exports.now();
    let export = exports.get(name).ok_or_else(|| {
        let names: Vec<&str> = exports.names().collect();
        format!("there is no export '{name}'; accepted: {}", names.join(", "))
    })?;
    // In a single edit, so that all of it takes effect or none, and no other client's change is lost. Limits that are
    // not mentioned stay.
    let edit = |plan: &mut Plan| {
        let said = |error: &dyn ToString| error.to_string();
        let (id, group) = (export.group.id(), export.group.name());
        let present = plan.groups.get(id).ok_or_else(|| format!("'{name}' has no group"))?;
        let (max, promise) = (present.max, present.promise);
        if let Some(weight) = settings.weight {
            plan.groups.set_weight(group, weight).map_err(|e| said(&e))?;
        }
        if let Some(text) = &settings.max {
            let max = max.set(text).map_err(|e| said(&e))?;
            plan.groups.set_max(group, max).map_err(|e| said(&e))?;
        }
        if let Some(text) = &settings.promise {
            let promise = promise.set(text).map_err(|e| said(&e))?;
            plan.groups.set_promise(group, promise).map_err(|e| said(&e))?;
        }
        Ok(())
    };
    let disk = &shared.disks[export.disk];
    let took = disk.service().edit_while(edit, goes_on);
    took.map(|took| Answer::Done(took.0)).map_err(|error| match error {
        EditError::Edit(why) => why,
        EditError::Change(ChangeError::Busy) => stuck(disk),
        EditError::Change(error) => error.to_string(),
    })
}

/// The origin of a change: the transport and the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin<'a> {
    pub way: &'static str,
    pub by: &'a str,
}

/// Handles `request` like [`to`]. Logs a change with its origin, and with the values before and after it, or the reason
/// of its refusal.
pub(crate) fn audited(
    request: Request,
    shared: &Shared,
    program: Option<&dyn Program>,
    goes_on: GoesOn<'_>,
    Origin { way, by }: Origin<'_>,
) -> Answer {
    if !is_change(&request) {
        return to(request, shared, program, goes_on);
    }
    let asked = request.clone();
    let before = values(shared, &asked);
    let answer = to(request, shared, program, goes_on);
    match (&answer, before, values(shared, &asked)) {
        (Answer::Refused(why), ..) => tracing::info!(by, "{way}: not {asked:?}: {why}"),
        (_, Some(before), Some(after)) => tracing::info!(by, before, after, "{way}: {asked:?}"),
        _ => tracing::info!(by, "{way}: {asked:?}"),
    }
    answer
}

/// Returns whether the request changes the server.
fn is_change(request: &Request) -> bool {
    use Request as R;
    let is_end = matches!(request, R::Disconnect { .. } | R::Remove { .. } | R::Drain);
    is_end || matches!(request, R::Set { .. } | R::Export { .. } | R::Add { .. } | R::Reload)
}

/// The present values of the settings that a request changes, if there are any. Does not block.
fn values(shared: &Shared, request: &Request) -> Option<String> {
    match request {
        Request::Set { device, path, .. } => {
            let disk = shared.disks.get(device.checked_sub(1)?)?;
            disk.service().attribute(path).ok()
        }
        Request::Export { name, settings } => {
            let group = group(shared, shared.exports.now().get(name)?)?;
            let named = [
                settings.weight.is_some().then(|| format!("weight={}", group.weight)),
                settings.max.is_some().then(|| group.max.to_string()),
                settings.promise.is_some().then(|| group.promise.to_string()),
            ];
            Some(Vec::from_iter(named.into_iter().flatten()).join(" "))
        }
        _ => None,
    }
}
