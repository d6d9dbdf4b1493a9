//! Formats jobs as fio does: the output is a job file for `blkmq bench` or fio.

use super::Choice;
use blkmq_core::{Class, IoPrio, Nanos};
use blkmq_lab::workload::{
    Amount, BlockSize, CmdPrio, Contents, Direction, Distribution, ExitWhat, FileService, Flow,
    Job, Latencies, Logs, OnError, PerDirection, Strided, Unified,
};
use std::fmt::{Display, Write};

/// A job file that means `jobs`. Options at their defaults are omitted, except the pattern and the sizes, which are
/// always of interest.
pub fn job_file(jobs: &[Job]) -> String {
    let mut text = String::new();
    for job in jobs {
        let mut out = Section(&mut text);
        out.header(&job.name);
        pattern(&mut out, job);
        contents(&mut out, &job.contents);
        place(&mut out, job);
        depth(&mut out, job);
        verify(&mut out, job);
        pace(&mut out, job);
        schedule(&mut out, job);
        measure(&mut out, job);
    }
    text
}

/// Formats a time exactly, in the largest possible unit.
pub fn time(span: Nanos) -> String {
    match span.0 {
        0 => "0".into(),
        ns if ns.is_multiple_of(1_000_000_000) => format!("{}s", ns / 1_000_000_000),
        ns if ns.is_multiple_of(1_000_000) => format!("{}ms", ns / 1_000_000),
        ns => format!("{}us", ns / 1_000),
    }
}

/// The words of `blkmq` and this command with `args`, quoted so that a shell reads them back.
pub fn quote(command: &str, args: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+%@".contains(c);
    let mut line = format!("blkmq {command}");
    for arg in args {
        line.push(' ');
        if !arg.is_empty() && arg.chars().all(plain) {
            line.push_str(arg);
        } else {
            line.push_str(&format!("'{}'", arg.replace('\'', r"'\''")));
        }
    }
    line
}

struct Section<'a>(&'a mut String);

impl Section<'_> {
    fn header(&mut self, name: &str) {
        let gap = if self.0.is_empty() { "" } else { "\n" };
        writeln!(self.0, "{gap}[{name}]").expect("a string takes any text");
    }

    fn line(&mut self, key: &str, value: impl Display) {
        writeln!(self.0, "{key}={value}").expect("a string takes any text");
    }

    fn some(&mut self, key: &str, value: Option<impl Display>) {
        value.into_iter().for_each(|value| self.line(key, value));
    }

    fn unless<T: Display + PartialEq<D>, D: Copy>(&mut self, key: &str, value: T, default: D) {
        self.some(key, Some(value).filter(|value| *value != default));
    }

    /// A boolean that is off by default.
    fn on(&mut self, key: &str, set: bool) {
        self.some(key, set.then_some(1));
    }

    /// A boolean that is on by default.
    fn off(&mut self, key: &str, set: bool) {
        self.some(key, (!set).then_some(0));
    }

    /// One of `names`, of which the first is the default.
    fn word<T: Copy + PartialEq>(&mut self, key: &str, names: &[(T, &str)], value: T) {
        let named = names.iter().position(|(known, _)| *known == value);
        self.some(key, named.filter(|at| *at > 0).map(|at| names[at].1));
    }

    /// Formats `r,w,t`; a direction without a value is left empty, so that fio uses its default.
    fn directions<T: Display>(&mut self, key: &str, value: impl Fn(Direction) -> Option<T>) {
        let all = Direction::ALL.map(|direction| value(direction).map(|value| value.to_string()));
        if all.iter().any(Option::is_some) {
            self.line(key, all.map(Option::unwrap_or_default).join(","));
        }
    }
}

fn pattern(out: &mut Section<'_>, job: &Job) {
    let default = Job::default();
    match (job.run, job.hole) {
        (1, 0) => out.line("rw", job.rw),
        (1, hole) => out.line("rw", format!("{}:{hole}", job.rw)),
        (run, _) => out.line("rw", format!("{}:{run}", job.rw)),
    }
    out.unless("rwmixread", job.rwmixread, default.rwmixread);
    block_sizes(out, &job.bs);
    out.directions("blockalign", |of| job.blockalign[of]);
    out.on("norandommap", job.norandommap);
    out.unless("random_distribution", &job.random_distribution, &Distribution::Uniform);
    if job.percentage_random != default.percentage_random {
        let Job { percentage_random: p, .. } = job;
        let all = Direction::ALL.map(|direction| p[direction].to_string());
        out.line("percentage_random", all.join(","));
    }
    out.unless("randseed", job.randseed, default.randseed);
    out.on("direct", job.direct);
    out.on("sync", job.sync);
    out.unless("fsync", job.fsync, 0);
    out.unless("fdatasync", job.fdatasync, 0);
    out.on("end_fsync", job.end_fsync);
}

/// Formats one of `bs`, `bsrange` and `bssplit`, whichever can express the sizes. The parser creates no other mixtures.
fn block_sizes(out: &mut Section<'_>, sizes: &PerDirection<BlockSize>) {
    let all = Direction::ALL.map(|direction| &sizes[direction]);
    let split = all.iter().any(|size| matches!(size, BlockSize::Split(_)));
    let range = all.iter().any(|size| matches!(size, BlockSize::Range { .. }));
    let text = all.map(|size| match size {
        BlockSize::Fixed(bs) if split => format!("{bs}/100"),
        BlockSize::Fixed(bs) if range => format!("{bs}-{bs}"),
        BlockSize::Range { min, .. } if split => format!("{min}/100"),
        other => other.to_string(),
    });
    let key = if split {
        "bssplit"
    } else if range {
        "bsrange"
    } else {
        "bs"
    };
    let same = text[1..].iter().all(|other| *other == text[0]);
    out.line(key, if same { text[0].clone() } else { text.join(",") });
}

fn place(out: &mut Section<'_>, job: &Job) {
    out.some("size", job.size);
    out.some("io_size", job.io_size);
    out.unless("offset", job.offset, Amount::ZERO);
    out.unless("offset_increment", job.offset_increment, Amount::ZERO);
    files(out, job);
    if let Some(Strided { size, range, skip }) = job.strided {
        out.line("zonemode", "strided");
        out.line("zonesize", size);
        out.unless("zonerange", range, size);
        out.unless("zoneskip", skip, 0);
    }
    out.some("number_ios", job.number_ios);
    out.unless("loops", job.loops, 1);
}

/// Formats the number of files and the order of visits. The file names are in the command, before all jobs.
fn files(out: &mut Section<'_>, job: &Job) {
    let Some(files) = job.files.as_ref().filter(|files| files.each > 1) else { return };
    out.line("nrfiles", files.each);
    if (files.service, files.turn) != (FileService::RoundRobin, 1) {
        let named = FileService::NAMES.iter().find(|(service, _)| *service == files.service);
        let word = |(_, name): &(_, &str)| format!("{name}:{}", files.turn);
        out.some("file_service_type", named.map(word));
    }
    out.unless("openfiles", files.open, files.each);
    if files.is_sized {
        out.line("filesize", files.list.iter().map(|file| file.bytes).max().unwrap_or(0));
    }
}

fn depth(out: &mut Section<'_>, job: &Job) {
    let depth = job.depth;
    out.line("iodepth", depth.iodepth);
    out.unless("iodepth_low", depth.low, depth.iodepth);
    out.unless("iodepth_batch_submit", depth.batch_submit, 1);
    out.unless("iodepth_batch_complete_min", depth.batch_complete_min, 1);
    let least = depth.batch_complete_min.max(1);
    out.unless("iodepth_batch_complete_max", depth.batch_complete_max, least);
    out.on("serialize_overlap", job.serialize_overlap);
    out.line("numjobs", job.numjobs);
}

fn verify(out: &mut Section<'_>, job: &Job) {
    let Some(verify) = &job.verify else { return };
    out.line("verify", verify.method);
    out.some("verify_pattern", verify.pattern.as_ref());
    out.some("verify_interval", verify.interval);
    out.off("do_verify", verify.do_verify);
    out.on("verify_fatal", verify.fatal);
    out.unless("verify_backlog", verify.backlog, 0);
    out.on("verify_only", verify.only);
    out.on("verify_state_save", verify.state_save);
    out.on("verify_state_load", verify.state_load);
}

fn pace(out: &mut Section<'_>, job: &Job) {
    out.directions("rate_iops", |of| job.rate_iops[of]);
    out.directions("rate", |of| job.rate[of]);
    out.directions("rate_min", |of| job.rate_min[of]);
    out.directions("rate_iops_min", |of| job.rate_iops_min[of]);
    out.unless("rate_cycle", job.rate_cycle.0 / 1_000_000, 1000);
    if let Some(Flow { weight, id, sleep }) = job.flow {
        out.line("flow", weight);
        out.unless("flow_id", id, 0);
        out.unless("flow_sleep", sleep.0 / 1_000, 0);
    }
    out.some("rate_process", job.poisson.then_some("poisson"));
    if let Some(think) = job.thinktime {
        // In microseconds without a unit: older versions of fio accept none here.
        out.line("thinktime", think.pause.0 / 1_000);
        out.unless("thinktime_blocks", think.blocks, 1);
    }
    if job.prio.to_bits() != 0 {
        let class = job.prio.class();
        out.line("prioclass", class as u8);
        out.unless("prio", job.prio.level(), if class == Class::None { 8 } else { 0 });
    }
    if let Some(latency) = job.latency_target {
        // In microseconds without a unit, like thinktime.
        out.line("latency_target", latency.target.0 / 1_000);
        out.line("latency_window", latency.window.0 / 1_000);
        out.line("latency_percentile", latency.percentile);
        out.on("latency_run", latency.run);
    }
    out.directions("max_latency", |of| job.max_latency[of].map(|most| most.0 / 1_000));
    cmdprio(out, job);
    out.some("cgroup", job.cgroup.as_ref());
    out.some("cgroup_weight", job.cgroup_weight);
}

/// `cmdprio_bssplit` with a priority in each entry, or `cmdprio_percentage` and its companions.
fn cmdprio(out: &mut Section<'_>, job: &Job) {
    let usual = |of| match job.cmdprio[of] {
        CmdPrio::Percentage(share, prio) => Some((share, prio)),
        _ => None,
    };
    let entry = |(len, share, prio): &(u32, u8, IoPrio)| {
        format!("{len}/{share}/{}/{}", prio.class() as u8, prio.level())
    };
    out.directions("cmdprio_percentage", |of| usual(of).map(|(share, _)| share));
    out.directions("cmdprio_class", |of| usual(of).map(|(_, prio)| prio.class() as u8));
    out.directions("cmdprio", |of| usual(of).map(|(_, prio)| prio.level()));
    out.directions("cmdprio_bssplit", |of| match &job.cmdprio[of] {
        CmdPrio::Split(parts) => Some(Vec::from_iter(parts.iter().map(entry)).join(":")),
        _ => None,
    });
}

fn schedule(out: &mut Section<'_>, job: &Job) {
    out.some("runtime", job.runtime.map(time));
    out.on("time_based", job.time_based);
    out.unless("ramp_time", time(job.ramp_time), "0");
    out.unless("startdelay", time(job.startdelay), "0");
    out.on("fill_device", job.fill_device);
    out.word("continue_on_error", &OnError::NAMES, job.on_error);
    out.on("exitall", job.exitall);
    out.word("exit_what", &ExitWhat::NAMES, job.exit_what);
    out.some("wait_for", job.wait_for.as_ref());
    out.on("stonewall", job.stonewall);
    out.on("new_group", job.new_group);
}

fn contents(out: &mut Section<'_>, contents: &Contents) {
    let default = Contents::default();
    out.on("zero_buffers", contents.is_zero);
    out.some("buffer_pattern", contents.pattern.as_ref());
    out.some("buffer_compress_percentage", contents.compress);
    out.unless("buffer_compress_chunk", contents.chunk, default.chunk);
    out.unless("dedupe_percentage", contents.dedupe, default.dedupe);
    out.unless("dedupe_mode", contents.dedupe_mode.word(), default.dedupe_mode.word());
    out.unless("dedupe_working_set_percentage", contents.working_set, default.working_set);
    out.on("dedupe_global", contents.is_global);
    out.on("refill_buffers", contents.refills);
    out.off("scramble_buffers", contents.scrambles);
}

fn measure(out: &mut Section<'_>, job: &Job) {
    out.on("group_reporting", job.group_reporting);
    let Latencies { slat, clat, lat } = job.latencies;
    out.on("disable_slat", !slat);
    out.on("disable_clat", !clat);
    out.on("disable_lat", !lat);
    logs(out, &job.logs);
    let Latencies { slat, clat, lat } = job.percentiles;
    out.on("slat_percentiles", slat);
    out.on("lat_percentiles", lat);
    out.off("clat_percentiles", clat);
    out.word("unified_rw_reporting", &Unified::NAMES, job.unified);
    if job.percentile_list != Job::default().percentile_list {
        let list = job.percentile_list.iter().map(f64::to_string);
        out.line("percentile_list", Vec::from_iter(list).join(":"));
    }
}

fn logs(out: &mut Section<'_>, logs: &Logs) {
    out.some("write_bw_log", logs.bw.as_ref());
    out.some("write_iops_log", logs.iops.as_ref());
    out.some("write_lat_log", logs.lat.as_ref());
    out.some("write_hist_log", logs.hist.as_ref());
    out.some("write_iolog", logs.io.as_ref());
    out.unless("log_avg_msec", logs.avg.0 / 1_000_000, 0);
    out.unless("log_hist_msec", logs.hist_window.0 / 1_000_000, 0);
    out.unless("log_hist_coarseness", logs.coarseness, 0);
    out.on("log_offset", logs.offset);
    out.on("log_prio", logs.prio);
    out.on("log_unix_epoch", logs.unix_epoch);
    out.on("log_max_value", logs.max_value);
    out.off("per_job_logs", logs.per_job);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_quoted_for_a_shell() {
        let args = ["--name=it's", "", "--bs=4k"].map(String::from);
        assert_eq!(quote("bench", &args), r"blkmq bench '--name=it'\''s' '' --bs=4k");
    }
}
