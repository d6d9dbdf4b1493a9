//! Every item that a server or a storage engine needs is exported, and so documented, by `blkmq` itself; and
//! `README.md` agrees with the code: its snippet is the doctest of this crate, line by line, and the setup takes two
//! commands.

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

const README: &str = include_str!("../../../README.md");
const LIBRARY: &str = include_str!("../src/lib.rs");

/// Returns the fenced blocks of a Markdown page: the text behind the opening fence, and the lines.
fn blocks(page: &str) -> Vec<(&str, Vec<&str>)> {
    let (mut blocks, mut open): (Vec<(&str, Vec<&str>)>, _) = (Vec::new(), false);
    for line in page.lines() {
        if let Some(info) = line.strip_prefix("```") {
            open = !open;
            if open {
                blocks.push((info, Vec::new()));
            }
        } else if open {
            blocks.last_mut().expect("a block was opened").1.push(line);
        }
    }
    assert!(!open, "the last block is not closed");
    blocks
}

/// Returns the part of the page under `heading`.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("\n## {heading}\n")).expect("the heading is there");
    rest.split_once("\n## ").map_or(rest, |(section, _)| section)
}

#[test]
fn the_snippet_is_the_doctest() {
    let page: Vec<&str> = LIBRARY.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let page: Vec<&str> = page.iter().map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    let page = page.join("\n");
    let doctests: Vec<_> = blocks(&page).into_iter().filter(|(info, _)| info.is_empty()).collect();
    let [(_, doctest)] = &doctests[..] else { panic!("{} doctests, not one", doctests.len()) };
    // rustdoc hides lines that begin with a number sign.
    let doctest: Vec<&str> =
        doctest.iter().copied().filter(|line| !line.starts_with("# ")).collect();
    assert!(doctest.len() > 10, "{} lines show little", doctest.len());
    let shown = blocks(section(README, "As a library"));
    let snippet = shown.iter().find(|(info, _)| *info == "rust").expect("a block in Rust");
    assert_eq!(snippet.1, doctest);
}

#[test]
fn setting_up_takes_two_commands() {
    let commands: Vec<&str> = blocks(README)
        .into_iter()
        .flat_map(|(_, lines)| lines)
        .filter(|line| line.trim_start().trim_start_matches("$ ").starts_with("cargo "))
        .collect();
    assert_eq!(commands, ["cargo run --release -- bench", "cargo test --workspace"]);
}
