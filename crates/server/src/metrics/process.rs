//! The standard metrics of a process, from `/proc/self`. Values that cannot be read are left out.

use super::writer::{Kind, Value, Writer};
use std::fs;

pub(super) fn write(out: &mut Writer) {
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
        out.family("process_cpu_seconds", Kind::Counter, "Processor time of the server.");
        out.sample(&[], Value::Nanos((user + system) * tick));
    }
    if let (Some(size), Some(pages)) = (field(23), field(24)) {
        out.family("process_virtual_memory_bytes", Kind::Gauge, "Size of the address space.");
        out.sample(&[], Value::Count(size));
        out.family("process_resident_memory_bytes", Kind::Gauge, "Memory that is present.");
        out.sample(&[], Value::Count(pages * rustix::param::page_size() as u64));
    }
    if let (Some(started), Some(booted)) = (field(22), booted()) {
        out.family(
            "process_start_time_seconds",
            Kind::Gauge,
            "When the server started, in Unix time.",
        );
        out.sample(&[], Value::Nanos(booted * 1_000_000_000 + started * tick));
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        out.family("process_open_fds", Kind::Gauge, "Descriptors that are open.");
        out.sample(&[], Value::Count(open.count() as u64));
    }
    if let Some(most) = max_fds() {
        out.family("process_max_fds", Kind::Gauge, "The most descriptors that may be open.");
        out.sample(&[], Value::Count(most));
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
