//! Every item that a server or a storage engine needs is exported, and so documented, by `blkmq` itself.

/// Names that `blkmq` must export: an import for the compiler, and a list for the tests below.
macro_rules! reachable {
    ($list:ident: $($name:ident),* $(,)?) => {
        mod names {
            #[allow(unused_imports, reason = "to be reachable is all that is asked of them")]
            use blkmq::{$($name),*};
        }
        const $list: &[&str] = &[$(stringify!($name)),*];
    };
}

reachable!(ITEMS:
    // Devices and buffers.
    open, open_on, device, device_names, Device, DeviceError, MachineShape, OpenError, StartError, AlignedBuf, BufList, BufferPool,
    IoBuf, Payload, SharedBuf, TooManyBufs,
    // I/Os and their results.
    Io, Bytes, Sectors, Op, IoFlags, IoPrio, Class, Owner, Completion, IoResult, IoError,
    Refused, Refusal, Unsubmitted, SECTOR_SIZE,
    // Services and clients.
    Config, ConfigError, Service, ServiceError, Client, Batch, Blocking, CallError, Canceller, Clock, Waiting,
    PumpMode, Placement, Reactor, ReactorError, Handle, Submitted, Answer, NotTaken, SubmitError,
    SubmitErrorKind, Unavailable, ClientError, NoSubmitterLeft, Permit, Reserving,
    Closed, StillHeld, Changing,
    // A running queue.
    Queue, QueueStats, Plan, Change, ChangeError, EditError, Freeze, Quiesce, Access, NoMerges,
    Event, Observer, Stall, Resumed, Outstanding, Place, Trace, TraceError, TraceEvent, TraceWhat,
    MAX_TRACE_NOTES, PolicyObserver,
    // Tenants, and disks behind one adapter.
    GroupOptions, GroupGuard, GroupId, GroupIndex, GroupTree, Group, GroupError, IoMax, IoMaxError, SharedTags,
    ConfigNote, GroupIo, Flow, StatsMode, StatsLevel,
    // Interfaces for writing devices and schedulers.
    BlockDevice, Finding, Join, DeviceQueue, DeviceQueues, DeviceShape, Limits, WriteCache, DEFAULT_TIMEOUT, BioTable, Inflight, Enqueued,
    Busy, Finished, Verdict, Expiry, Scheduler, Factory, Options, scheduler,
    // Queues without threads or clocks.
    Submitter, Instant, Nanos,
);

/// Names that exist only on Linux, where there are file devices.
#[cfg(target_os = "linux")]
mod linux {
    #[allow(unused_imports, reason = "to be reachable is all that is asked of them")]
    use blkmq::{FileDevice, Sleep, UringDevice, uring::Options, wait_any};
}
const LINUX: &[&str] = &["FileDevice", "Sleep", "UringDevice", "wait_any"];

/// Items of the runtime that `blkmq` need not export; it must export all others.
const OF_THE_MACHINE: &[&str] = &[
    "STALL_AFTER",
    "available_cpus",
    "bind_thread",
    "numa_nodes",
    "usable_cpus",
    "wall_clock_millis",
];

/// Returns the items at the top of a crate, from the listing of its public API.
fn items<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter(|line| line.starts_with("pub ")).filter_map(move |line| {
        let (_, path) = line.split_once(&format!(" {name}::"))?;
        let is_whole = |c: char| !c.is_alphanumeric() && c != '_';
        let end = path.find(is_whole).unwrap_or(path.len());
        (!path[end..].starts_with("::") && !path.contains(">::")).then_some(&path[..end])
    })
}

#[test]
fn what_clients_and_buffers_need_is_in_the_list() {
    let runtime = include_str!("../../../docs/api/blkmq-runtime.txt");
    let buffers = include_str!("../../../docs/api/blkmq-buf.txt");
    let items: Vec<&str> =
        items(runtime, "blkmq_runtime").chain(items(buffers, "blkmq_buf")).collect();
    assert!(items.len() > 30, "{items:?}");
    for item in items {
        let is_known = [ITEMS, LINUX, OF_THE_MACHINE, &["PAGE"]].concat().contains(&item);
        assert!(
            is_known,
            "{item} has no name under `blkmq`: re-export it, and put it into the list"
        );
    }
}

/// The front page links to the items with which a program begins, because a reader finds only linked items.
#[test]
fn the_front_page_leads_to_what_servers_begin_with() {
    let page = include_str!("../src/lib.rs");
    let (page, _) = page.split_once("#![forbid(unsafe_code)]").expect("it begins with its page");
    for name in [
        "open",
        "UringDevice",
        "AlignedBuf",
        "BufferPool",
        "Service",
        "Client",
        "Blocking",
        "Reactor",
        "Handle",
        "Sleep",
        "wait_any",
        "GroupOptions",
        "GroupGuard",
        "GroupTree",
        "IoMax",
        "SharedTags",
        "Plan",
        "QueueStats",
        "Refused",
        "SubmitError",
        "CallError",
        "IoError",
        "DeviceQueue",
        "Scheduler",
        "Submitter",
    ] {
        let links = [format!("[`{name}`]"), format!("[`{name}::")];
        assert!(links.iter().any(|link| page.contains(link)), "no link to {name}");
    }
}
