//! The serving side of control: its socket, the thread that accepts clients and a thread for each client, and the
//! answers to requests from the state shared by the workers.
//!
//! Clients do not wait for each other, unless they change the same device. A client that disconnects withdraws its
//! request. Each change of a running server is logged with a line. For the counts of a server, and for which export
//! waited behind which, each queue is read once, so that the figures of exports and device refer to the same moment.

use super::recording::{self, Kind, Wanted};
use super::{Answer, DeviceState, ExportSettings, ExportState, GoesOn, Program, Request};
use crate::clients::Which;
use crate::disk::Disk;
use crate::export::{Cache, Served};
use crate::figures::{
    Condition, Counting, DeviceStat, ExportStat, Figures, FloorStat, Held, Stages, Stat, Times,
    bounded, goals,
};
use crate::listener::{Rights, listen_on};
use crate::log::Rarely;
use crate::worker::Shared;
use blkmq::core::Class;
use blkmq::engine::GoalsStatus;
use blkmq::engine::attributes::SetAttributeError;
use blkmq::{
    ChangeError, Clock, EditError, FloorCause, FloorReport, Group, GroupIndex, Instant, IoTimes,
    Latencies, Nanos, Outstanding, Place, Plan, QueueTimes,
};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle, park_timeout};
use std::time::Duration;

/// The longest request in bytes.
const LONGEST_REQUEST: u64 = 64 << 10;
/// The maximum wait for a request, or for a client to take its answer.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// The maximum number of clients. A further one replaces the oldest that has not sent its request.
const MOST_CLIENTS: usize = 64;
/// The maximum number of recordings: a trace and a log of each of many devices.
const RECORDINGS: usize = 32;
/// The pause after a client could not be accepted.
const PAUSE: Duration = Duration::from_millis(10);

/// Control of a server; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Control {
    path: PathBuf,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The server, shared by all clients.
struct Site {
    shared: Arc<Shared>,
    program: Arc<dyn Program>,
    stopped: Arc<AtomicBool>,
    recordings: AtomicUsize,
}

/// A client as known by the accepting thread.
struct Caller {
    /// Closed when the thread of the client ends.
    client: Weak<UnixStream>,
    /// Whether its request has arrived.
    has_asked: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Control {
    /// Listens on `path`; `program` handles requests that the server cannot.
    ///
    /// # Errors
    /// See [`listen_on`]; also if no thread can be started.
    pub(crate) fn start(
        path: &Path,
        shared: Arc<Shared>,
        program: Arc<dyn Program>,
    ) -> io::Result<Self> {
        let listener = listen_on(path, &Rights::default())?;
        let stopped = Arc::new(AtomicBool::new(false));
        let recordings = AtomicUsize::new(0);
        let site = Arc::new(Site { shared, program, stopped: Arc::clone(&stopped), recordings });
        let serve = move || {
            let (clock, mut refused) = (Clock::start(), Rarely::default());
            let mut callers: Vec<Caller> = Vec::new();
            for client in listener.incoming() {
                if site.stopped.load(Ordering::Relaxed) {
                    break;
                }
                if let Err(error) = client.and_then(|it| welcome(it, &site, &mut callers)) {
                    refused.log(clock.now(), |before| {
                        tracing::warn!(before, "a client of control cannot be accepted: {error}");
                    });
                    park_timeout(PAUSE);
                }
            }
            // The other clients get their answers, and then end.
            let idle = callers.iter().filter(|caller| !caller.has_asked.load(Ordering::Relaxed));
            idle.for_each(|caller| caller.hang_up(Shutdown::Read));
            // A panic in the thread has already been reported.
            callers.into_iter().for_each(|caller| drop(caller.thread.join()));
        };
        let thread = Builder::new().name("control".to_owned()).spawn(serve)?;
        Ok(Self { path: path.to_owned(), stopped, thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // The thread waits for a client, so this connection wakes it.
        if UnixStream::connect(&self.path).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // A panic in the thread has already been reported.
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Caller {
    /// Shuts the connection down in these directions, if it still exists.
    fn hang_up(&self, how: Shutdown) {
        if let Some(client) = self.client.upgrade() {
            let _ = client.shutdown(how);
        }
    }
}

/// Starts a thread for the client.
fn welcome(client: UnixStream, site: &Arc<Site>, callers: &mut Vec<Caller>) -> io::Result<()> {
    callers.retain(|caller| !caller.thread.is_finished());
    if callers.len() >= MOST_CLIENTS {
        let idle = callers.iter().position(|caller| !caller.has_asked.load(Ordering::Relaxed));
        let Some(idle) = idle else {
            let busy = Answer::Refused(format!("busy: {MOST_CLIENTS} requests are under way"));
            return (&client).write_all(busy.line().as_bytes());
        };
        // Its thread then reads end of file, and ends.
        callers.remove(idle).hang_up(Shutdown::Both);
    }
    client.set_read_timeout(Some(CLIENT_PATIENCE))?;
    client.set_write_timeout(Some(CLIENT_PATIENCE))?;
    let (client, has_asked) = (Arc::new(client), Arc::new(AtomicBool::new(false)));
    let (asked, site) = (Arc::clone(&has_asked), Arc::clone(site));
    let caller = Arc::downgrade(&client);
    let serve = move || {
        if let Err(error) = serve(&client, &site, &asked) {
            tracing::info!("a client of control had no answer: {error}");
        }
    };
    let thread = Builder::new().name("control client".to_owned()).spawn(serve)?;
    callers.push(Caller { client: caller, has_asked, thread });
    Ok(())
}

/// Returns whether the client's connection is open in at least one direction.
fn is_there(client: &UnixStream) -> bool {
    let mut watched = [PollFd::new(client, PollFlags::empty())];
    let polled = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled.is_err() || !watched[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Receives a request, and answers it.
fn serve(mut client: &UnixStream, site: &Site, has_asked: &AtomicBool) -> io::Result<()> {
    let mut line = String::new();
    BufReader::new(client).take(LONGEST_REQUEST).read_line(&mut line)?;
    has_asked.store(true, Ordering::Relaxed);
    let answer = match serde_json::from_str::<Request>(&line) {
        Ok(request) if !is_there(client) => {
            let left = format!("it left before {request:?} was carried out");
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, left));
        }
        Ok(request) => {
            tracing::debug!(?request, "control");
            match recording(&request) {
                Some(wanted) => match record(client, site, wanted) {
                    Ok(recorded) => return recorded,
                    Err(why) => Answer::Refused(why),
                },
                None => {
                    let (program, by) = (Some(&*site.program), by(client));
                    let goes_on = || is_there(client) && !site.stopped.load(Ordering::Relaxed);
                    let origin = Origin { way: "control", by: &by };
                    audited(request, &site.shared, program, &goes_on, origin)
                }
            }
        }
        Err(error) => Answer::Refused(format!("the request is not understood: {error}")),
    };
    client.write_all(answer.line().as_bytes())
}

/// The user and the process of a client.
fn by(client: &UnixStream) -> String {
    getsockopt(client, PeerCredentials).map_or_else(
        |_| "unknown".to_owned(),
        |it| format!("uid:{} process {}", it.uid(), it.pid()),
    )
}

/// Records for the client until the recording is over. An outer error is the answer for the client.
fn record(client: &UnixStream, site: &Site, wanted: Wanted) -> Result<io::Result<()>, String> {
    recording::check(&site.shared, wanted)?;
    let more = |count| (count < RECORDINGS).then_some(count + 1);
    let count = &site.recordings;
    if count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
        return Err(format!("busy: there are {RECORDINGS} recordings already"));
    }
    let recorded = recording::run(client, &site.shared, wanted, &site.stopped);
    count.fetch_sub(1, Ordering::Relaxed);
    Ok(recorded)
}

/// The recording that a client requests, if any.
fn recording(request: &Request) -> Option<Wanted> {
    let (device, seconds, kind) = match *request {
        Request::Trace { device, seconds, buffer_kib: kib, bytes } => {
            (device, seconds, Kind::Trace { kib, bytes })
        }
        Request::ElevatorLog { device, seconds, bytes } => {
            (device, seconds, Kind::ElevatorLog { bytes })
        }
        _ => return None,
    };
    Some(Wanted { device, seconds, kind })
}

/// How long a change waits for I/Os in flight, or for another change of its device. A device that holds an I/O for
/// longer is reported as stuck.
const CHANGE_PATIENCE: Nanos = Nanos::from_secs(10);

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

/// Like `goes_on`, but for at most [`CHANGE_PATIENCE`].
pub(crate) fn patient(goes_on: GoesOn<'_>) -> impl Fn() -> bool {
    let clock = Clock::start();
    move || goes_on() && clock.now() - Instant::ZERO < CHANGE_PATIENCE
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

/// The attribute that enables counting.
const IOSTATS: &str = "queue/iostats";
/// How long a request waits for a device that is being changed. After that, counting begins with a later request.
const COUNTING_PATIENCE: Nanos = Nanos::from_millis(100);

/// Enables counting where it is off, unless the server must not count.
pub(crate) fn begin(shared: &Shared) -> Result<(), String> {
    for disk in &shared.disks {
        let service = disk.service();
        if service.queue().plan().stats.times {
            continue;
        }
        if shared.counting == Counting::Never {
            return Err(format!(
                "the server does not count (stats=never); accepted: blkmqctl set {IOSTATS} 1"
            ));
        }
        let clock = Clock::start();
        let goes_on = || clock.now() - Instant::ZERO < COUNTING_PATIENCE;
        match service.set_attribute_while(IOSTATS, "1", &goes_on) {
            Ok(_) | Err(SetAttributeError::Change(ChangeError::Busy)) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

struct Reading {
    times: QueueTimes,
    plan: Plan,
    goals: Option<GoalsStatus>,
    held: BTreeMap<GroupIndex, Held>,
}

/// The counts so far. Figures that were not counted are 0.
pub(crate) fn counts(shared: &Shared) -> Stat {
    let mut stat = Stat::default();
    let mut read: Vec<Reading> = Vec::new();
    for disk in &shared.disks {
        let queue = disk.service().queue();
        let (times, goals) = (queue.times(), queue.goals());
        let now = disk.service().clock().now();
        stat.at = now.as_nanos();
        let plan = queue.plan();
        let outstanding = disk.outstanding(now);
        let held = held(&outstanding, now);
        let oldest = held.values().map(|held| held.oldest).max().unwrap_or(0);
        let kept = outstanding.iter().filter(|one| one.place != Place::Elevator);
        let kept = kept.map(|one| now.since(one.since).0).max().unwrap_or(0);
        let device = DeviceStat::of(disk.name(), plan.scheduler.name, &times);
        stat.devices.push(DeviceStat { oldest, kept, bounded: bounded(goals.as_ref()), ..device });
        read.push(Reading { times, plan, goals, held });
    }
    for export in shared.exports.now().all() {
        let Reading { times, plan, goals: status, held } = &read[export.disk];
        let id = export.group.id();
        let (of, group) = (times.group(id), plan.groups.get(id));
        stat.exports.push(ExportStat {
            name: export.info.name.clone(),
            device: export.disk + 1,
            weight: group.map_or(0, |group| group.weight),
            max: group.map(|group| group.max.to_string()).unwrap_or_default(),
            promise: group.map(|group| group.promise.to_string()).unwrap_or_default(),
            condition: Condition::default(),
            connections: export.connections(),
            figures: figures(&of),
            stages: stages(&of),
            charged: of.iter().map(|times| times.charged).sum(),
            busy: of.iter().map(|times| times.busy).sum(),
            errors: of.each_ref().map(|times| times.errors),
            held: held.get(&id.index()).copied().unwrap_or_default(),
            short_time: times.shortfall(id),
            floor: floor(group, times.floor(id)),
            goals: goals(status.as_ref(), id.index()),
        });
    }
    let by_weight = Vec::from_iter(read.iter().map(|read| read.plan.shares_by_group()));
    shared.judge.judge(&mut stat, &by_weight);
    stat
}

/// The unfinished requests at `now`, by group.
fn held(all: &[Outstanding], now: Instant) -> BTreeMap<GroupIndex, Held> {
    let mut groups = BTreeMap::<_, Held>::new();
    for one in all {
        let held = groups.entry(one.group).or_default();
        match one.place {
            Place::Elevator => {
                held.waiting += 1;
                held.waited = held.waited.max(now.since(one.since).0);
            }
            Place::HardwareQueue | Place::Device => held.in_flight += 1,
        }
        held.oldest = held.oldest.max(now.since(one.since).0);
    }
    groups
}

fn floor(group: Option<&Group>, report: Option<&FloorReport>) -> FloorStat {
    let promised = group.and_then(|group| group.promise.floor()).unwrap_or_default();
    let Some(report) = report else { return FloorStat { promised, ..FloorStat::default() } };
    let missed = FloorCause::ALL.into_iter().zip(report.causes).filter(|(_, count)| *count > 0);
    FloorStat {
        promised,
        state: report.state.name().to_owned(),
        seconds: report.seconds,
        missed: missed.map(|(cause, count)| (cause.name().to_owned(), count)).collect(),
    }
}

impl DeviceStat {
    /// The counts of a queue, for a device with this name and scheduler.
    #[must_use]
    pub fn of(name: &str, scheduler: &str, times: &QueueTimes) -> Self {
        let all = times.all();
        Self {
            name: name.to_owned(),
            scheduler: scheduler.to_owned(),
            figures: figures(&all),
            stages: stages(&all),
            errors: all.each_ref().map(|times| times.errors),
            flushes: times.flushes,
            flush_time: times.flush_time,
            in_flight: [times.reads_in_flight, times.others_in_flight],
            busy_time: times.busy,
            waiting: times.waiting,
            ..Self::default()
        }
    }
}

fn figures(of: &[IoTimes; 4]) -> Figures {
    let each = |f: fn(&IoTimes) -> u64| [f(&of[0]), f(&of[1]), f(&of[2])];
    Figures {
        ios: each(|it| it.ios),
        bytes: each(|it| it.bytes),
        merged: each(|it| it.merged),
        wait: each(before_device),
        service: each(|it| it.device),
    }
}

fn before_device(it: &IoTimes) -> u64 {
    it.slot + it.policy + it.tag
}

fn stages(of: &[IoTimes; 4]) -> Stages {
    let sums = |f: fn(&IoTimes) -> u64| {
        of.each_ref().map(|it| Times { count: it.ios, sum: f(it), buckets: Vec::new() })
    };
    let whole = |f: fn(&IoTimes) -> u64, times: fn(&IoTimes) -> &Latencies| {
        let one = |it| Times { buckets: times(it).buckets().collect(), count: it.ios, sum: f(it) };
        of.each_ref().map(one)
    };
    Stages {
        slot: sums(|it| it.slot),
        policy: sums(|it| it.policy),
        tag: sums(|it| it.tag),
        queue: whole(before_device, |it| &it.queue_times),
        device: whole(|it| it.device, |it| &it.device_times),
        total: whole(|it| before_device(it) + it.device, |it| &it.total_times),
    }
}

/// Times so far, which only grow while counting is on.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Waits {
    /// The server's time in nanoseconds.
    pub at: u64,
    /// Sorted by device, then by group.
    pub waits: Vec<ExportWait>,
}

/// The time for which I/Os of an export waited behind I/Os of another export, or of the same one
/// ([`Queue::waits`](blkmq::Queue::waits)).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExportWait {
    /// The number of the device, from 1.
    pub device: usize,
    /// The export that waited. `/` stands for removed exports.
    pub export: String,
    /// The export that had requests at the device; `None` while the device was idle.
    pub behind: Option<String>,
    /// The duration in nanoseconds.
    pub time: u64,
}

/// The times so far.
fn waits(shared: &Shared) -> Waits {
    let mut found = Waits::default();
    let exports = shared.exports.now();
    for (at, disk) in shared.disks.iter().enumerate() {
        let of_disk = exports.all().filter(|export| export.disk == at);
        let named = of_disk.map(|export| (export.group.id().index(), export.info.name.as_str()));
        let names: BTreeMap<_, _> = named.collect();
        let name = |group| names.get(&group).map_or("/", |name| *name).to_owned();
        let waits = disk.service().queue().waits().into_iter();
        found.waits.extend(waits.map(|wait| ExportWait {
            device: at + 1,
            export: name(wait.waiting),
            behind: wait.behind.map(name),
            time: wait.time.0,
        }));
        found.at = disk.service().clock().now().as_nanos();
    }
    found
}
