//! The metrics of a server for Prometheus: names, units and labels, from one reading of the counts; and [`Writer`],
//! which writes families of samples in the text format of Prometheus 0.0.4 or of OpenMetrics 1.0.
//!
//! The names of device metrics are those of node_exporter with the prefix `blkmq_disk_`. Labels are names of devices
//! and exports, operations and stages, and identities of clients given by certificates and the kernel: nothing that
//! clients can choose. The counts are read when they are requested, so there is no registry. A client library would
//! need its collector for that, and writes only one of the two formats.

use crate::control::{Stat, Times, begin, counts};
use crate::figures::{DeviceStat, ExportStat, GoalStat, State};
use crate::log::Reason;
use crate::tls::Tls;
use crate::worker::Shared;
use Kind::{Counter, Gauge, Histogram};
use Value::{Count, Nanos};
use blkmq::{FloorCause, QueueStats};
use std::fmt::Write;
use std::fs;

/// Operations, in the order of the counts.
const OPS: [&str; 4] = ["read", "write", "discard", "flush"];
/// The upper bounds of histogram buckets: powers of two in nanoseconds, from 1.024 us to 8.59 s, which coincide with
/// bounds of the finer buckets that are counted.
const ENDS: std::ops::Range<u32> = 10..34;

/// The metrics of the server as text.
///
/// # Errors
/// If the server must not count.
pub(crate) fn text(shared: &Shared, format: Format) -> Result<String, String> {
    begin(shared)?;
    let stat = counts(shared);
    let queues: Vec<QueueStats> =
        shared.disks.iter().map(|disk| disk.service().queue().stats()).collect();
    let tags: Vec<u64> = shared.disks.iter().map(|disk| tags_in_use(disk.service())).collect();
    Ok(written(&stat, &queues, &tags, &Access::of(shared), format))
}

/// Returns the driver tags in use on all hardware queues.
fn tags_in_use(service: &blkmq::Service<blkmq::AlignedBuf>) -> u64 {
    let queue = service.queue();
    let device = queue.plan().device;
    // Shared tags are counted once.
    let queues = if device.shared_tags { 1 } else { device.hw_queues };
    (0..queues).map(|hw| u64::from(queue.tags_in_use(blkmq::core::HwQueue(hw)))).sum()
}

fn written(
    stat: &Stat,
    queues: &[QueueStats],
    tags: &[u64],
    access: &Access,
    format: Format,
) -> String {
    let mut out = Writer::new(format);
    let names = names(&stat.devices);
    let devices: Vec<(&str, &DeviceStat)> =
        names.iter().map(String::as_str).zip(&stat.devices).collect();
    disks(&mut out, &devices);
    promises_of_disks(&mut out, &devices);
    exports(&mut out, &stat.exports);
    promises_of_exports(&mut out, &stat.exports);
    durations(&mut out, &stat.exports);
    let engines: Vec<(&str, &QueueStats)> = names.iter().map(String::as_str).zip(queues).collect();
    engine(&mut out, &engines);
    out.family("blkmq_tags_in_use", Gauge, "Driver tags in use.");
    for (device, tags) in names.iter().zip(tags) {
        out.sample(&[("device", device)], Count(*tags));
    }
    access.write(&mut out);
    out.family("blkmq_info", Gauge, "The version of the server.");
    out.sample(&[("version", env!("CARGO_PKG_VERSION"))], Count(1));
    process(&mut out);
    out.end()
}

/// The names of devices; ambiguous ones are prefixed with their numbers.
fn names(devices: &[DeviceStat]) -> Vec<String> {
    let same = |name: &str| devices.iter().filter(|device| device.name == name).count();
    let name = |(number, device): (usize, &DeviceStat)| match same(&device.name) {
        1 => device.name.clone(),
        _ => format!("{number}:{}", device.name),
    };
    (1..).zip(devices).map(name).collect()
}

/// A family of counters of a device.
type DiskFamily = (&'static str, &'static str, fn(&DeviceStat) -> Value);

/// The families of node_exporter.
const DISK: [DiskFamily; 17] = [
    ("blkmq_disk_reads_completed", "Reads that ended, as requests.", |it| ios(it, 0)),
    ("blkmq_disk_reads_merged", "Reads merged into another.", |it| merged(it, 0)),
    ("blkmq_disk_read_bytes", "Bytes read.", |it| Count(it.figures.bytes[0])),
    ("blkmq_disk_read_time_seconds", "Time of all reads, from arrival to end.", |it| time(it, 0)),
    ("blkmq_disk_writes_completed", "Writes that ended, as requests.", |it| ios(it, 1)),
    ("blkmq_disk_writes_merged", "Writes merged into another.", |it| merged(it, 1)),
    ("blkmq_disk_written_bytes", "Bytes written.", |it| Count(it.figures.bytes[1])),
    ("blkmq_disk_write_time_seconds", "Time of all writes.", |it| time(it, 1)),
    ("blkmq_disk_discards_completed", "Discards that ended, as requests.", |it| ios(it, 2)),
    ("blkmq_disk_discards_merged", "Discards merged into another.", |it| merged(it, 2)),
    ("blkmq_disk_discarded_sectors", "Sectors of 512 bytes discarded.", |it| {
        Count(it.figures.bytes[2] / 512)
    }),
    ("blkmq_disk_discard_time_seconds", "Time of all discards.", |it| time(it, 2)),
    ("blkmq_disk_flush_requests", "Flushes sent to the device.", |it| Count(it.flushes)),
    ("blkmq_disk_flush_requests_time_seconds", "Time of these flushes.", |it| Nanos(it.flush_time)),
    ("blkmq_disk_io_time_seconds", "Time with a request in flight.", |it| Nanos(it.busy_time)),
    ("blkmq_disk_io_time_weighted_seconds", "Time of all requests and flushes.", |it| {
        let all = (0..3).map(|op| it.stages.total[op].sum).sum::<u64>();
        Nanos(all + it.flush_time)
    }),
    ("blkmq_disk_errors", "Requests that failed.", |it| Count(it.errors.iter().sum())),
];

fn ios(it: &DeviceStat, op: usize) -> Value {
    Count(it.figures.ios[op])
}

fn merged(it: &DeviceStat, op: usize) -> Value {
    Count(it.figures.merged[op])
}

fn time(it: &DeviceStat, op: usize) -> Value {
    Nanos(it.stages.total[op].sum)
}

fn disks(out: &mut Writer, devices: &[(&str, &DeviceStat)]) {
    for (family, help, of) in DISK {
        out.family(family, Counter, help);
        for (name, device) in devices {
            out.sample(&[("device", name)], of(device));
        }
    }
    out.family("blkmq_disk_io_now", Gauge, "Requests in flight.");
    for (name, device) in devices {
        out.sample(&[("device", name)], Count(device.in_flight.iter().sum()));
    }
    out.family("blkmq_disk_waiting", Gauge, "I/Os that wait in the scheduler.");
    for (name, device) in devices {
        out.sample(&[("device", name)], Count(device.waiting));
    }
    out.family("blkmq_disk_info", Gauge, "The scheduler of a device.");
    for (name, device) in devices {
        let labels = [("device", *name), ("scheduler", &device.scheduler)];
        out.sample(&labels, Count(1));
    }
}

/// Writes the unfinished requests.
fn held(out: &mut Writer, exports: &[ExportStat]) {
    out.family("blkmq_export_outstanding", Gauge, "Requests that have not ended, by place.");
    for export in exports {
        for (place, count) in [("device", export.held.in_flight), ("queue", export.held.waiting)] {
            out.sample(&[("export", &export.name), ("place", place)], Count(count));
        }
    }
    out.family(
        "blkmq_export_oldest_seconds",
        Gauge,
        "The age of the oldest request that has not ended.",
    );
    for export in exports {
        out.sample(&[("export", &export.name)], Nanos(export.held.oldest));
    }
}

fn exports(out: &mut Writer, exports: &[ExportStat]) {
    out.family("blkmq_export_requests", Counter, "Requests of an export that ended.");
    for_ops(out, exports, |it, op| Count(it.stages.total[op].count));
    out.family("blkmq_export_bytes", Counter, "Their bytes.");
    for_ops(out, exports, |it, op| Count(it.figures.bytes.get(op).copied().unwrap_or(0)));
    out.family("blkmq_export_merged", Counter, "I/Os merged into another request.");
    for_ops(out, exports, |it, op| Count(it.figures.merged.get(op).copied().unwrap_or(0)));
    out.family("blkmq_errors", Counter, "Requests of an export that failed.");
    for_ops(out, exports, |it, op| Count(it.errors[op]));
    out.family("blkmq_export_weight", Gauge, "The share of an export, 1 to 1000.");
    for export in exports {
        out.sample(&[("export", &export.name)], Count(export.weight.into()));
    }
    out.family(
        "blkmq_export_floor_short_seconds",
        Counter,
        "Time for which the floor of an export was not kept.",
    );
    for export in exports {
        out.sample(&[("export", &export.name)], Nanos(export.short_time));
    }
    out.family(
        "blkmq_export_floor_judged",
        Counter,
        "Seconds in which an export with a floor had I/Os outstanding all the time.",
    );
    for export in exports.iter().filter(|export| !export.floor.promised.is_empty()) {
        out.sample(&[("export", &export.name)], Count(export.floor.seconds));
    }
    out.family(
        "blkmq_export_floor_missed",
        Counter,
        "Those of them in which it completed less than its floor, by cause.",
    );
    for export in exports.iter().filter(|export| !export.floor.promised.is_empty()) {
        for cause in FloorCause::ALL.map(FloorCause::name) {
            let missed = export.floor.missed.get(cause).copied().unwrap_or(0);
            out.sample(&[("export", &export.name), ("cause", cause)], Count(missed));
        }
    }
    out.family("blkmq_connections", Gauge, "Connections to an export.");
    for export in exports {
        let labels = [("export", export.name.as_str()), ("protocol", "nbd")];
        out.sample(&labels, Count(export.connections as u64));
    }
    held(out, exports);
    out.family(
        "blkmq_request_wait_seconds",
        Counter,
        "Time before the device: for a slot, in the scheduler, or for a tag.",
    );
    for export in exports {
        for (op, name) in OPS.into_iter().enumerate() {
            let of = &export.stages;
            for (stage, times) in [("slot", &of.slot), ("policy", &of.policy), ("tag", &of.tag)] {
                let labels = [("export", export.name.as_str()), ("op", name), ("stage", stage)];
                out.sample(&labels, Nanos(times[op].sum));
            }
        }
    }
}

fn for_ops(out: &mut Writer, exports: &[ExportStat], of: fn(&ExportStat, usize) -> Value) {
    for export in exports {
        for (op, name) in OPS.into_iter().enumerate() {
            out.sample(&[("export", &export.name), ("op", name)], of(export, op));
        }
    }
}

/// Writes the histograms, omitting operations that an export has never had.
fn durations(out: &mut Writer, exports: &[ExportStat]) {
    out.family(
        "blkmq_request_duration_seconds",
        Histogram,
        "Times of requests: before the device, at it, and both.",
    );
    for export in exports {
        let of = &export.stages;
        for (op, name) in OPS.into_iter().enumerate().filter(|(op, _)| of.total[*op].count > 0) {
            for (stage, all) in [("queue", &of.queue), ("device", &of.device), ("total", &of.total)]
            {
                let labels = [("export", export.name.as_str()), ("op", name), ("stage", stage)];
                out.histogram(&labels, buckets(&all[op]), (all[op].count, all[op].sum));
            }
        }
    }
}

/// Returns the cumulative counts by the upper bound of a bucket in seconds.
fn buckets(times: &Times) -> impl Iterator<Item = (String, u64)> {
    ENDS.map(|power| {
        let end = 1 << power;
        let below = times.buckets.iter().take_while(|(upper, _)| *upper < end);
        (seconds(end), below.map(|(_, count)| count).sum())
    })
}

/// A family of counts of a queue.
type EngineFamily = (&'static str, Kind, &'static str, fn(&QueueStats) -> u64);

const ENGINE: [EngineFamily; 8] = [
    ("blkmq_elevator_runs", Counter, "Passes over an elevator.", |it| it.passes),
    ("blkmq_elevator_handoffs", Counter, "Runs handed to another thread.", |it| it.hand_overs),
    ("blkmq_elevator_longest_run", Gauge, "The most passes of one run.", |it| it.longest_run),
    ("blkmq_requeues", Counter, "Requests that went back to the elevator.", |it| it.requeues),
    ("blkmq_timeouts", Counter, "Requests kept for too long by the device.", |it| it.timeouts),
    ("blkmq_retries", Counter, "Requests tried again after an error.", |it| it.retries),
    ("blkmq_device_busy", Counter, "Times that the device had no room.", |it| it.busy),
    ("blkmq_throttled", Counter, "I/Os held back by a limit of a group.", |it| it.throttled),
];

fn engine(out: &mut Writer, queues: &[(&str, &QueueStats)]) {
    for (family, kind, help, of) in ENGINE {
        out.family(family, kind, help);
        for (device, queue) in queues {
            out.sample(&[("device", device)], Count(of(queue)));
        }
    }
    out.family("blkmq_merges", Counter, "Merges, by the place or kind.");
    for (device, queue) in queues {
        let of = queue.merges;
        for (kind, count) in [
            ("plug", of.plug),
            ("back", of.back),
            ("front", of.front),
            ("fuse", of.request),
            ("discard", of.discard),
        ] {
            out.sample(&[("device", device), ("kind", kind)], Count(count));
        }
    }
}

/// The metrics of clients: connections by identity, refusals by reason, and the expiry of the certificate.
#[derive(Debug, Default)]
struct Access {
    refused: Vec<(&'static str, u64)>,
    /// Identities proved by a certificate or by the kernel, with their connections. Identities that are only an address
    /// are omitted: there may be a new one each minute, and each would be a series for ever.
    identities: Vec<(String, usize)>,
    /// The expiry of the server's certificate, in seconds since 1970.
    end: Option<u64>,
}

impl Access {
    fn of(shared: &Shared) -> Self {
        let refused = |(reason, label)| (label, shared.refusals.count(reason));
        let is_proved = |(name, _): &(String, usize)| !name.starts_with("net:");
        Self {
            refused: Reason::ALL.map(refused).to_vec(),
            identities: shared.tenants.all().into_iter().filter(is_proved).collect(),
            end: shared.tls.as_ref().map(Tls::end),
        }
    }

    fn write(&self, out: &mut Writer) {
        out.family("blkmq_refused_clients", Counter, "Clients turned away, by reason.");
        for (reason, count) in &self.refused {
            out.sample(&[("reason", reason)], Count(*count));
        }
        out.family(
            "blkmq_identity_connections",
            Gauge,
            "Connections to exports, by certificate or user.",
        );
        for (identity, count) in &self.identities {
            out.sample(&[("identity", identity)], Count(*count as u64));
        }
        if let Some(end) = self.end {
            out.family(
                "blkmq_tls_certificate_expiry_seconds",
                Gauge,
                "The end of the server's certificate, in seconds since 1970.",
            );
            out.sample(&[], Count(end));
        }
    }
}

/// Writes the standard metrics of a process, from `/proc/self`. Values that cannot be read are left out.
fn process(out: &mut Writer) {
    // The fields of `stat` after the name in parentheses, which may contain spaces.
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<u64> = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().map(|it| it.parse().unwrap_or(0)).collect())
        .unwrap_or_default();
    // By the numbers of proc(5), which count from one and include the first two fields.
    let field = |number: usize| fields.get(number - 3).copied();
    let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    if let (Some(user), Some(system)) = (field(14), field(15)) {
        out.family("process_cpu_seconds", Counter, "Processor time of the server.");
        out.sample(&[], Nanos((user + system) * tick));
    }
    if let (Some(size), Some(pages)) = (field(23), field(24)) {
        out.family("process_virtual_memory_bytes", Gauge, "Size of the address space.");
        out.sample(&[], Count(size));
        out.family("process_resident_memory_bytes", Gauge, "Memory that is present.");
        out.sample(&[], Count(pages * rustix::param::page_size() as u64));
    }
    if let (Some(started), Some(booted)) = (field(22), booted()) {
        out.family("process_start_time_seconds", Gauge, "When the server started, in Unix time.");
        out.sample(&[], Nanos(booted * 1_000_000_000 + started * tick));
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        out.family("process_open_fds", Gauge, "Descriptors that are open.");
        out.sample(&[], Count(open.count() as u64));
    }
    if let Some(most) = max_fds() {
        out.family("process_max_fds", Gauge, "The most descriptors that may be open.");
        out.sample(&[], Count(most));
    }
}

/// Returns the boot time in seconds since 1970.
fn booted() -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn max_fds() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A family of a goal.
type GoalFamily = (&'static str, Kind, &'static str, fn(&GoalStat) -> Value);

const GOALS: [GoalFamily; 5] = [
    ("blkmq_export_goal_seconds", Gauge, "The target of a latency goal.", |it| Nanos(it.target)),
    (
        "blkmq_export_goal_p99_seconds",
        Gauge,
        "The 99th percentile in the last window of a goal that was judged.",
        |it| Nanos(it.p99),
    ),
    ("blkmq_export_goal_windows", Counter, "Windows of a goal that were judged.", |it| {
        Count(it.windows)
    }),
    ("blkmq_export_goal_missed", Counter, "Those of them in which it was missed.", |it| {
        Count(it.missed)
    }),
    ("blkmq_export_goal_infeasible", Gauge, "1 while a goal is given up.", |it| {
        Count((it.state == "infeasible").into())
    }),
];

fn promises_of_exports(out: &mut Writer, exports: &[ExportStat]) {
    out.family("blkmq_export_state", Gauge, "1 for the state of an export.");
    for export in exports {
        for state in State::ALL {
            let labels = [("export", export.name.as_str()), ("state", state.name())];
            out.sample(&labels, Count((export.condition.state == state).into()));
        }
    }
    out.family(
        "blkmq_export_device_seconds",
        Counter,
        "Device time that an export is charged with: its share is its part of the sum.",
    );
    for export in exports {
        out.sample(&[("export", &export.name)], Nanos(export.charged));
    }
    for (family, kind, help, of) in GOALS {
        out.family(family, kind, help);
        for export in exports {
            for goal in &export.goals {
                out.sample(&[("export", &export.name), ("goal", &goal.word)], of(goal));
            }
        }
    }
    out.family(
        "blkmq_export_setting",
        Gauge,
        "Ceilings and floors that are set, by their word: I/Os, bytes or percent, in a second.",
    );
    for export in exports {
        for (word, value) in settings(export) {
            out.sample(&[("export", &export.name), ("word", word)], Count(value));
        }
    }
}

/// The ceilings and floors of an export.
fn settings(export: &ExportStat) -> impl Iterator<Item = (&str, u64)> {
    let words = export.max.split_whitespace().chain(export.promise.split_whitespace());
    let pairs = words.filter_map(|word| word.split_once('='));
    let is_rate = |word: &str| ["iops", "bps", "percent"].iter().any(|end| word.ends_with(end));
    let set = pairs.filter(move |(word, _)| is_rate(word));
    set.filter_map(|(word, value)| Some((word, value.parse().ok().filter(|it| *it > 0)?)))
}

fn promises_of_disks(out: &mut Writer, devices: &[(&str, &DeviceStat)]) {
    out.family("blkmq_disk_stuck", Gauge, "1 while a device keeps requests and answers none.");
    for (name, device) in devices {
        let is_stuck = device.condition.state == State::Stuck;
        out.sample(&[("device", name)], Count(is_stuck.into()));
    }
    out.family(
        "blkmq_disk_goal_bound",
        Gauge,
        "Bounds on exports without a goal for the goals of others: bytes of a request (length), requests at the device \
         (depth), bytes a second by weight.",
    );
    for (name, device) in devices {
        for (what, bound) in &device.bounded {
            out.sample(&[("device", name), ("of", what)], Count(*bound));
        }
    }
}

/// A text format.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// Prometheus, version 0.0.4.
    #[default]
    Prometheus,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The format that a client's `Accept` header requests. Clients that do not name OpenMetrics get the older format.
    #[must_use]
    pub fn wanted_by(accept: &str) -> Self {
        let names = |range: &str| range.trim_start().starts_with("application/openmetrics-text");
        if accept.split(',').any(names) { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// The content type.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The kind of a family.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A value, in the unit of the family.
#[derive(Clone, Copy)]
enum Value {
    Count(u64),
    /// Nanoseconds, written as seconds.
    Nanos(u64),
}

/// Names and values of labels.
type Labels<'a> = [(&'static str, &'a str)];

/// The text so far.
struct Writer {
    out: String,
    format: Format,
    /// The name of the current family, without `_total`.
    family: &'static str,
    kind: Kind,
}

impl Writer {
    fn new(format: Format) -> Self {
        Self { out: String::new(), format, family: "", kind: Gauge }
    }

    /// Begins a family; the name of a counter is given without `_total`.
    fn family(&mut self, family: &'static str, kind: Kind, help: &str) {
        (self.family, self.kind) = (family, kind);
        let (total, word) = match kind {
            Counter => ("_total", "counter"),
            Gauge => ("", "gauge"),
            Histogram => ("", "histogram"),
        };
        // In OpenMetrics only the sample has the suffix.
        let suffix = if self.format == Format::Prometheus { total } else { "" };
        self.line(format_args!("# TYPE {family}{suffix} {word}"));
        let unit = ["seconds", "bytes"]
            .into_iter()
            .find(|unit| family.strip_suffix(unit).is_some_and(|rest| rest.ends_with('_')));
        if let (Format::OpenMetrics, Some(unit)) = (self.format, unit) {
            self.line(format_args!("# UNIT {family} {unit}"));
        }
        self.line(format_args!("# HELP {family}{suffix} {help}"));
    }

    /// One sample of a counter or gauge.
    fn sample(&mut self, labels: &Labels<'_>, value: Value) {
        let suffix = if self.kind == Counter { "_total" } else { "" };
        self.put(suffix, labels, None, value);
    }

    /// Writes a histogram from its cumulative counts, with upper bounds in seconds as text, followed by the total.
    fn histogram(
        &mut self,
        labels: &Labels<'_>,
        buckets: impl IntoIterator<Item = (String, u64)>,
        (count, sum): (u64, u64),
    ) {
        for (le, below) in buckets {
            self.put("_bucket", labels, Some(&le), Count(below));
        }
        self.put("_bucket", labels, Some("+Inf"), Count(count));
        self.put("_count", labels, None, Count(count));
        self.put("_sum", labels, None, Nanos(sum));
    }

    fn put(&mut self, suffix: &str, labels: &Labels<'_>, le: Option<&str>, value: Value) {
        let Self { out, family, .. } = self;
        out.push_str(family);
        out.push_str(suffix);
        let all = labels.iter().copied().chain(le.map(|le| ("le", le)));
        let mut before = '{';
        for (name, value) in all {
            out.push(before);
            out.push_str(name);
            out.push_str("=\"");
            escape(out, value);
            out.push('"');
            before = ',';
        }
        if before == ',' {
            out.push('}');
        }
        out.push(' ');
        // Writing to a text does not fail.
        let _ = match value {
            Count(count) => write!(out, "{count}"),
            Nanos(ns) => write!(out, "{}", seconds(ns)),
        };
        out.push('\n');
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.out, "{text}");
    }

    /// The whole text.
    fn end(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }
}

/// Formats nanoseconds as seconds, exactly, without trailing zeroes except for one.
fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let short = text.trim_end_matches('0');
    if short.ends_with('.') { format!("{short}0") } else { short.to_owned() }
}

/// Escapes the value of a label.
fn escape(out: &mut String, text: &str) {
    for one in text.chars() {
        match one {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            one => out.push(one),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat() -> Stat {
        let times = |sum| Times { count: 3, sum, buckets: vec![(1023, 1), (2047, 1), (9000, 1)] };
        let mut export = ExportStat { name: "a\"b".to_owned(), ..ExportStat::default() };
        export.stages.total[0] = times(12_000);
        export.stages.device[0] = times(12_000);
        export.stages.queue[0] = Times { count: 3, ..Times::default() };
        let device = DeviceStat { name: "null".to_owned(), ..DeviceStat::default() };
        Stat { at: 0, exports: vec![export], devices: vec![device.clone(), device] }
    }

    #[test]
    fn a_missed_floor_is_counted_by_its_cause_where_there_is_a_floor() {
        let mut stat = stat();
        let none = written(
            &stat,
            &[QueueStats::default(); 2],
            &[0, 0],
            &Access::default(),
            Format::OpenMetrics,
        );
        assert!(!none.contains("blkmq_export_floor_missed_total{"), "{none}");
        let floor = &mut stat.exports[0].floor;
        (floor.promised, floor.seconds) = ("200 IOPS".into(), 30);
        floor.missed.insert("device".into(), 12);
        let text = written(
            &stat,
            &[QueueStats::default(); 2],
            &[0, 0],
            &Access::default(),
            Format::OpenMetrics,
        );
        for line in [
            "blkmq_export_floor_judged_total{export=\"a\\\"b\"} 30",
            "blkmq_export_floor_missed_total{export=\"a\\\"b\",cause=\"device\"} 12",
            "blkmq_export_floor_missed_total{export=\"a\\\"b\",cause=\"slots\"} 0",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
    }

    #[test]
    fn a_histogram_is_cumulative_and_its_parts_are_one_family() {
        let text = written(
            &stat(),
            &[QueueStats::default(); 2],
            &[0, 0],
            &Access::default(),
            Format::OpenMetrics,
        );
        let line = |of: &str| {
            let found = text.lines().find(|line| line.starts_with(of)).expect(of);
            found.rsplit(' ').next().expect("a value").to_owned()
        };
        let labels = "{export=\"a\\\"b\",op=\"read\",stage=\"total\"";
        let bucket = |le: &str| {
            line(&format!("blkmq_request_duration_seconds_bucket{labels},le=\"{le}\"}}"))
        };
        assert_eq!([bucket("0.000001024"), bucket("0.000002048"), bucket("+Inf")], ["1", "2", "3"]);
        assert_eq!(line(&format!("blkmq_request_duration_seconds_sum{labels}}}")), "0.000012");
        assert_eq!(text.matches("le=\"+Inf\"").count(), 3, "only what there was");
        assert!(text.contains("device=\"1:null\"") && text.contains("device=\"2:null\""));
    }

    #[test]
    fn no_family_and_no_series_is_there_twice() {
        let text = written(
            &stat(),
            &[QueueStats::default(); 2],
            &[0, 0],
            &Access::default(),
            Format::Prometheus,
        );
        let mut seen = std::collections::BTreeSet::new();
        for line in text.lines() {
            let series = line.rsplit_once(' ').expect("a value").0;
            assert!(seen.insert(series.to_owned()), "{line}");
        }
        assert!(text.contains("# TYPE blkmq_disk_reads_completed_total counter\n"));
    }

    #[test]
    fn a_name_in_a_certificate_cannot_break_the_text() {
        let identities = vec![("cn:a\"b\\".to_owned(), 2)];
        let access = Access { refused: vec![("tls", 3)], identities, end: Some(1_893_542_400) };
        let mut out = Writer::new(Format::Prometheus);
        access.write(&mut out);
        let text = out.end();
        for line in [
            "blkmq_refused_clients_total{reason=\"tls\"} 3",
            "blkmq_identity_connections{identity=\"cn:a\\\"b\\\\\"} 2",
            "blkmq_tls_certificate_expiry_seconds 1893542400",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
    }

    #[test]
    fn settings_that_are_set_have_values() {
        let export = ExportStat {
            max: "rbps=max wbps=1000 riops=500 wiops=max burst=2 burst_length=1s".into(),
            promise: "reserve_iops=200 limit_iops=0 p99_read=80ms overcommit=1".into(),
            ..ExportStat::default()
        };
        let found = Vec::from_iter(settings(&export));
        assert_eq!(found, [("wbps", 1000), ("riops", 500), ("reserve_iops", 200)]);
    }

    fn written_in(format: Format) -> String {
        let mut out = Writer::new(format);
        out.family("a_time_seconds", Counter, "Times.");
        out.sample(&[("export", "a\"b\\c\nd")], Nanos(1_500_000_000));
        out.family("b", Gauge, "Things.");
        out.sample(&[], Count(3));
        out.family("c_seconds", Histogram, "More.");
        out.histogram(&[("op", "read")], [("0.5".to_owned(), 1)], (2, 1_000_000_001));
        out.end()
    }

    #[test]
    fn both_forms_are_those_of_their_texts() {
        let samples = |type_, unit, help| {
            format!(
                "{type_}{unit}{help}a_time_seconds_total{{export=\"a\\\"b\\\\c\\nd\"}} 1.5\n\
                 # TYPE b gauge\n# HELP b Things.\nb 3\n# TYPE c_seconds histogram\n"
            )
        };
        let histogram = "# HELP c_seconds More.\nc_seconds_bucket{op=\"read\",le=\"0.5\"} 1\n\
            c_seconds_bucket{op=\"read\",le=\"+Inf\"} 2\nc_seconds_count{op=\"read\"} 2\n\
            c_seconds_sum{op=\"read\"} 1.000000001\n";
        let old = samples(
            "# TYPE a_time_seconds_total counter\n",
            "",
            "# HELP a_time_seconds_total Times.\n",
        );
        assert_eq!(written_in(Format::Prometheus), old + histogram);
        let new = samples(
            "# TYPE a_time_seconds counter\n",
            "# UNIT a_time_seconds seconds\n",
            "# HELP a_time_seconds Times.\n",
        );
        let unit = "# UNIT c_seconds seconds\n";
        assert_eq!(written_in(Format::OpenMetrics), new + unit + histogram + "# EOF\n");
    }

    #[test]
    fn seconds_are_exact() {
        let texts = [0, 1, 1_024, 1_000_000_000, 10_500_000_000].map(seconds);
        assert_eq!(texts, ["0.0", "0.000000001", "0.000001024", "1.0", "10.5"]);
    }

    #[test]
    fn openmetrics_is_given_to_clients_that_ask_for_it() {
        let asks = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
        assert_eq!(Format::wanted_by(asks), Format::OpenMetrics);
        assert_eq!(Format::wanted_by("text/plain, */*"), Format::Prometheus);
    }
}
