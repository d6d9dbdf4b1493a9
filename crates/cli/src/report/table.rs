//! The report for the terminal: a summary of each job if there is one run, or a table if there are several, followed by
//! the findings, the limits of their validity, and the warnings.

use super::figures::{self, Table, text_table};
use super::job::{Direction, Forgiven, JobResult, Latency, Percentile, Samples, ratio};
use super::judgement::{findings, limits_of, warnings};
use super::lines::run_status;
use super::model::{Counters, Device, Disk, OpTimes, Report, Run, STAGES, Shared};
use super::wording::{
    TimeUnit, Varying, bandwidth, bytes, count, counted, nanos, pairs, percent, scheduler,
};
use blkmq_lab::workload::Latencies;
use blkmq_terminal::paper::{Paper, paragraph, push_line};
use std::collections::BTreeSet;

/// Formats the report as lines of at most `width` columns.
#[must_use]
pub fn render(report: &Report, width: usize) -> String {
    let mut out = Paper::new(width);
    if let Some(partial) = report.partial {
        paragraph(&mut out, "", &partial.to_string());
        out.push('\n');
    }
    match &report.runs[..] {
        [] => out.push_str("No run was made.\n"),
        [run] => summary(&mut out, report, run),
        runs => comparison(&mut out, report, runs),
    }
    if let Some(seed) = report.seed {
        paragraph(&mut out, "", &virtual_time(seed));
    }
    let warnings = warnings(report);
    if !report.notes.is_empty() || !warnings.is_empty() {
        out.push('\n');
    }
    for note in &report.notes {
        paragraph(&mut out, "Note: ", note);
    }
    for warning in warnings {
        paragraph(&mut out, "Warning: ", &warning.text);
    }
    out.finish()
}

fn comparison(out: &mut Paper, report: &Report, runs: &[Run]) {
    let Table { columns, rows, .. } = figures::comparison(report);
    let mut table = text_table(&columns, &rows);
    // The columns before the first figure identify a run.
    table.keys(columns.iter().position(|(name, ..)| name == "IOPS").unwrap_or(1));
    out.table(&table);
    out.push('\n');
    jobs(out, report);
    let varying = Varying::of(report);
    for run in runs {
        groups(out, &format!("groups with {}:", varying.run_name(run)), run);
    }
    disks(out, &report.disks);
    for sentence in findings(report).iter().map(String::as_str).chain(limits(report)) {
        paragraph(out, "- ", sentence);
    }
}

/// A table of the jobs, if there are several.
fn jobs(out: &mut Paper, report: &Report) {
    let Table { columns, rows, .. } = figures::jobs(report);
    if rows.is_empty() {
        return;
    }
    let mut table = text_table(&columns, &rows);
    table.keys(3);
    push_line(out, 0, "jobs:");
    out.table(&table);
    if let Some(says) = figures::jobs_left_out(report) {
        push_line(out, 0, &says);
    }
    out.push('\n');
}

/// The meaning of times in a simulation.
pub(super) fn virtual_time(seed: u64) -> String {
    format!(
        "Times are virtual (seed {seed}): what the device takes is simulated, what the processor takes is assumed. \
         The same command gives the same figures, everywhere."
    )
}

/// The limits of the devices used, each kind once.
pub(super) fn limits(report: &Report) -> Vec<&'static str> {
    // If no device takes time, a simulation only shows its own assumptions, which another sentence says.
    let says = |run: &&Run| report.seed.is_none() || !run.device.kind.is_cpu_bound();
    let runs = report.runs.iter().filter(says);
    Vec::from_iter(BTreeSet::from_iter(runs.map(|run| limits_of(run.device.kind))))
}

fn summary(out: &mut Paper, report: &Report, run: &Run) {
    let Run { access, scope, device: Device { text: device, .. }, .. } = run;
    let (name, threads) = (scheduler(run), counted(run.threads.into(), "thread"));
    let line = format!("{name} on {device}: {threads}, access={access}, scope={scope}");
    push_line(out, 0, &line);
    for job in &run.jobs {
        out.push('\n');
        job_summary(out, job);
    }
    out.push('\n');
    for line in run_status(&run.jobs) {
        push_line(out, 0, &line);
    }
    out.push('\n');
    queue_summary(out, run);
    out.push('\n');
    groups(out, "groups:", run);
    disks(out, &report.disks);
    for sentence in limits(report) {
        paragraph(out, "", sentence);
    }
}

/// Adds the disks under the files, as in fio.
fn disks(out: &mut Paper, disks: &[Disk]) {
    if disks.is_empty() {
        return;
    }
    push_line(out, 0, "Disk stats (read/write):");
    for disk in disks {
        let line = format!(
            "{}: ios={}/{}, merge={}/{}, ticks={}/{}, in_queue={}, util={:.2}%",
            disk.name,
            disk.read_ios,
            disk.write_ios,
            disk.read_merges,
            disk.write_merges,
            disk.read_ticks,
            disk.write_ticks,
            disk.in_queue,
            disk.util
        );
        push_line(out, 2, &line);
    }
    out.push('\n');
}

fn job_summary(out: &mut Paper, job: &JobResult) {
    let threads = counted(job.members.max(1).into(), "thread");
    let heading = format!("{}: (group {}, {threads}, error {})", job.name, job.group, job.error);
    push_line(out, 0, &heading);
    for (name, direction) in job.reported().into_iter().filter(|(_, d)| d.total_ios > 0) {
        direction_summary(out, name, &direction, job);
    }
    sync_summary(out, job);
    if let Some(found) = &job.verify {
        let line = format!(
            "verify   : {} compared, {} wrong",
            bytes(found.bytes as f64),
            counted(found.errors, "block")
        );
        push_line(out, 2, &line);
        found.first.iter().for_each(|first| push_line(out, 4, &format!("first: {first}")));
    }
    let cpu = format!(
        "cpu      : usr={:.1} %, sys={:.1} %, ctx={}, majf={}, minf={}",
        job.usr_cpu, job.sys_cpu, job.ctx, job.majf, job.minf
    );
    push_line(out, 2, &cpu);
    if let Some(Forgiven { count, first }) = job.forgiven {
        push_line(out, 2, &format!("errors   : total={count}, first_error={first}"));
    }
    push_line(out, 2, &format!("IO depths: {}", shares(&job.iodepth_level.shares())));
    push_line(out, 2, &format!("submit   : {}", shares(&job.iodepth_submit.shares())));
    push_line(out, 2, &format!("complete : {}", shares(&job.iodepth_complete.shares())));
}

/// The flushes of `fsync`, and that of `end_fsync`.
fn sync_summary(out: &mut Paper, job: &JobResult) {
    if job.sync.total_ios > 0 {
        let noun = if job.sync.total_ios == 1 { "flush" } else { "flushes" };
        push_line(out, 2, &format!("sync: {} {noun}", job.sync.total_ios));
        times(out, "sync", job.sync.lat.as_ref());
        percentiles(out, "sync", job.sync.lat.as_ref(), &job.percentiles);
    }
    if let Some(ns) = job.end_fsync_ns {
        push_line(out, 2, &format!("end_fsync: {}", nanos(ns as f64)));
    }
}

fn direction_summary(out: &mut Paper, name: &str, direction: &Direction, job: &JobResult) {
    let line = format!(
        "{name}: IOPS={}, BW={} ({} in {})",
        count(direction.iops()),
        // Scripts expect a rate without a space, as in fio.
        bandwidth(direction.bytes_per_second()).replace(' ', ""),
        bytes(direction.io_bytes as f64),
        nanos(direction.runtime_ns as f64)
    );
    push_line(out, 2, &line);
    if direction.short_ios + direction.drop_ios > 0 {
        let line = format!("short={}, dropped={}", direction.short_ios, direction.drop_ios);
        push_line(out, 4, &line);
    }
    let Latencies { slat, clat, lat } = job.percentiles_of;
    // If completions were not timed, the total time replaces them.
    let lat = lat || clat && direction.clat.is_none();
    let all = [
        ("slat", slat, &direction.slat),
        ("clat", clat, &direction.clat),
        ("lat", lat, &direction.lat),
    ];
    all.iter().for_each(|(name, _, latency)| times(out, name, latency.as_ref()));
    for (name, _, latency) in all.into_iter().filter(|(_, is_wanted, _)| *is_wanted) {
        percentiles(out, name, latency.as_ref(), &job.percentiles);
    }
    samples(out, "BW", &direction.bw_samples, bandwidth);
    samples(out, "IOPS", &direction.iops_samples, count);
}

fn times(out: &mut Paper, name: &str, latency: Option<&Latency>) {
    let Some(latency) = latency.filter(|l| l.0.count() > 0) else { return };
    // One unit per line, in parentheses, where scripts expect it.
    let unit = TimeUnit::of(latency.0.mean());
    let figures =
        [latency.0.min() as f64, latency.0.max() as f64, latency.0.mean(), latency.stddev()];
    let [min, max, avg, stdev] = figures.map(|nanos| unit.show(nanos));
    let line = format!("{name:>4} ({}): min={min}, max={max}, avg={avg}, stdev={stdev}", unit.name);
    push_line(out, 4, &line);
}

fn percentiles(out: &mut Paper, name: &str, latency: Option<&Latency>, list: &[Percentile]) {
    let Some(latency) = latency.filter(|l| l.0.count() > 0) else { return };
    push_line(out, 4, &format!("{name} percentiles:"));
    // Each takes 20 columns.
    let together = (out.width().saturating_sub(5) / 20).clamp(1, 4);
    for row in list.chunks(together) {
        let cell =
            |p: &Percentile| format!("{:>5}th=[{:>8}]", p.text(), nanos(p.of(&latency.0) as f64));
        push_line(out, 5, &row.iter().map(cell).collect::<Vec<_>>().join(", "));
    }
}

fn samples(out: &mut Paper, name: &str, samples: &Samples, show: fn(f64) -> String) {
    if samples.count == 0 {
        return;
    }
    let Samples { min, max, mean, stddev, count } = *samples;
    let [min, max, mean, stddev] = [min, max, mean, stddev].map(show);
    let line =
        format!("{name:>4}: min={min}, max={max}, avg={mean}, stdev={stddev}, samples={count}");
    push_line(out, 4, &line);
}

fn shares(shares: &[(&str, f64)]) -> String {
    pairs(shares.iter().map(|(name, share)| (name, format!("{share:.1}%"))))
}

fn queue_summary(out: &mut Paper, run: &Run) {
    let counters = &run.counters;
    push_line(out, 0, "queue (ramp included):");
    let Counters { submitted, completed, splits, .. } = counters;
    let bios = format!("bios     : submitted={submitted}, completed={completed}, splits={splits}");
    push_line(out, 2, &bios);
    push_line(out, 2, &format!("merges   : {}", pairs(counters.merges.each())));
    let dispatch = format!(
        "dispatch : {} requests, {:.1} in a batch, {} requeued, longest run {} passes",
        counters.dispatches, counters.batch_mean, counters.requeues, counters.longest_run_passes
    );
    push_line(out, 2, &dispatch);
    let kicks = &counters.kicks;
    push_line(out, 2, &format!("kicks    : sent={}, coalesced={}", kicks.sent, kicks.coalesced));
    if let Some(share) = run.waited_share() {
        let locks = &counters.locks;
        let line = format!(
            "locks    : taken={}, contended={}, {} of the threads' time spent waiting",
            locks.taken,
            locks.contended,
            percent(share)
        );
        push_line(out, 2, &line);
        let line = format!(
            "relief   : merges skipped={}, requests parked={}, dispatches left to others={}",
            locks.merges_skipped, locks.parked, locks.left
        );
        push_line(out, 2, &line);
    }
    for OpTimes { op, requests, stages, .. } in &run.times {
        let mean = |sum: &u64| nanos(ratio(*sum as f64, *requests as f64));
        let means = pairs(STAGES.iter().zip(stages.iter().map(mean)));
        push_line(out, 2, &format!("{op:<9}: {means} for each of {requests}"));
    }
    let Shared { tokens, governor } = &run.shared;
    if !tokens.is_empty() {
        let tokens = Vec::from_iter(tokens.iter().map(u32::to_string)).join(", ");
        push_line(out, 2, &format!("tokens   : {tokens}"));
    }
    if !governor.is_empty() {
        paragraph(out, "  governor : ", &pairs(governor.iter().copied()));
    }
}

/// Adds a table of the groups of a run, if it had any.
fn groups(out: &mut Paper, heading: &str, run: &Run) {
    if run.groups.all.is_empty() {
        return;
    }
    let Table { columns, rows, .. } = figures::groups(run);
    push_line(out, 0, heading);
    out.table(&text_table(&columns, &rows));
    out.push('\n');
    if let Some(Table { columns, rows, .. }) = figures::waits(&run.groups) {
        push_line(out, 0, "waited before the device, behind requests of:");
        out.table(&text_table(&columns, &rows));
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::Verified;
    use super::super::model::Partial;
    use super::super::sample;
    use super::*;

    /// On paper that is wide enough for every table.
    fn render(report: &Report) -> String {
        super::render(report, 200)
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_no_column_is_lost() {
        let mut cut = sample::comparison();
        cut.partial = Some(Partial { done: 8, planned: 9, signal: Some(2) });
        cut.runs[8].is_partial = true;
        let mut reports = vec![cut, sample::single(), sample::shared(), sample::hostile()];
        reports.extend([sample::drawn(), sample::starved()]);
        for (report, width) in reports.iter().flat_map(|it| (60..=200).map(move |w| (it, w))) {
            let text = super::render(report, width);
            for line in text.lines() {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
        let (narrow, wide) = (super::render(&reports[0], 60), render(&reports[0]));
        let heading = wide.lines().find(|line| line.starts_with("scheduler")).expect("a table");
        for name in heading.split("  ").map(str::trim).filter(|name| !name.is_empty()) {
            assert!(narrow.contains(name), "{name} is missing in\n{narrow}");
        }
        let partial = "Partial: ended by signal 2 after 8 of 9 runs.\n\n";
        assert!(wide.starts_with(partial) && wide.contains("cut short by a signal"), "{wide}");
    }

    /// Shows the first difference; the texts are too long to print whole.
    fn assert_same(text: &str, expected: &str) {
        for (number, (line, wanted)) in text.lines().zip(expected.lines()).enumerate() {
            assert_eq!(line, wanted, "line {}", number + 1);
        }
        assert_eq!(text.lines().count(), expected.lines().count(), "{text}");
    }

    #[test]
    fn one_run_is_summarised_by_job() {
        assert_same(&render(&sample::single()), include_str!("testdata/single.txt"));
    }

    #[test]
    fn several_runs_are_one_table() {
        assert_same(&render(&sample::comparison()), include_str!("testdata/comparison.txt"));
    }

    #[test]
    fn groups_have_a_table_for_each_run() {
        assert_same(&render(&sample::shared()), include_str!("testdata/shared.txt"));
        let mut report = sample::shared();
        report.runs.truncate(1);
        let text = render(&report);
        assert!(text.contains("\ngroups:\ngroup       weight"), "{text}");
        for group in &mut report.runs[0].groups.all {
            group.stats.clear();
            group.waited.clear();
        }
        assert!(!render(&report).contains("wait"), "nobody counted");
    }

    #[test]
    fn tokens_and_what_a_governor_shows_are_with_the_queue() {
        let mut report = sample::single();
        report.runs[0].shared = sample::governed();
        let text = render(&report);
        let expected = "\n  tokens   : 256, 128\n  governor : read_target=2000000, read_p99=3\n";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn what_was_not_measured_has_no_column() {
        let mut report = sample::comparison();
        for run in &mut report.runs {
            run.jobs[0].read.clat = None;
            run.jobs[0].read.lat = None;
        }
        let heading = render(&report);
        let heading = heading.lines().next().expect("a table has a heading");
        assert!(!heading.contains("p50") && heading.contains("IOPS"), "{heading}");
    }

    #[test]
    fn flushes_have_lines_of_their_own() {
        let mut report = sample::single();
        let job = &mut report.runs[0].jobs[0];
        job.sync.total_ios = 2;
        let latency = job.sync.lat.get_or_insert_default();
        [1_000, 3_000].iter().for_each(|ns| latency.0.record(*ns));
        job.end_fsync_ns = Some(5_000_000);
        let text = render(&report);
        let line = "\n  sync: 2 flushes\n    sync (usec): min=1.00, max=3.00, avg=2.00, stdev=1.41\n    \
                    sync percentiles:\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("\n  end_fsync: 5.00 ms\n"), "{text}");
    }

    /// The latencies of reads and writes differ by orders of magnitude; a mean of both is that of neither.
    #[test]
    fn directions_have_columns_of_their_own() {
        let mut report = sample::comparison();
        let reads = report.runs[0].jobs[0].read.clone();
        report.runs[0].jobs[0].write = reads;
        let heading = render(&report);
        let heading = heading.lines().next().expect("a table has a heading");
        for name in ["read clat p50", "read clat p99", "write clat p50", "write clat p99"] {
            assert!(heading.contains(name), "{name} is not in {heading}");
        }
        assert!(!heading.contains("trim"));
        // Reads that only check contents are not part of the workload.
        let mut report = sample::comparison();
        for run in &mut report.runs {
            let job = &mut run.jobs[0];
            job.write = job.read.clone();
            (job.checks.ios, job.checks.bytes) = (job.read.total_ios, job.read.io_bytes);
        }
        let text = render(&report);
        let heading = text.lines().next().expect("a table has a heading");
        assert!(heading.contains("  clat p50") && !heading.contains("read clat"), "{heading}");
    }

    #[test]
    fn verification_is_shown_where_there_was_any() {
        let found = |errors| {
            let first = (errors > 0).then(|| "offset 4096 (block 1)".to_owned());
            Some(Verified { bytes: 1 << 20, errors, first })
        };
        let mut report = sample::single();
        report.runs[0].jobs[0].verify = found(0);
        assert!(
            render(&report).contains("\n  verify   : 1.00 MiB compared, 0 blocks wrong\n  cpu")
        );
        report.runs[0].jobs[0].verify = found(3);
        let text = render(&report);
        assert!(
            text.contains("compared, 3 blocks wrong\n    first: offset 4096 (block 1)\n"),
            "{text}"
        );

        let mut report = sample::comparison();
        (report.runs[0].jobs[0].verify, report.runs[1].jobs[0].verify) = (found(0), found(3));
        let text = render(&report);
        let ends = |line: usize, end: &str| {
            assert!(text.lines().nth(line).is_some_and(|l| l.trim_end().ends_with(end)), "{text}");
        };
        ends(0, "verified");
        ends(2, "1.00 MiB");
        ends(3, "3 WRONG");
        ends(4, "-");
    }

    #[test]
    fn no_control_character_reaches_the_terminal() {
        let mut single = sample::hostile();
        single.runs.truncate(1);
        for report in [sample::hostile(), single] {
            let text = render(&report);
            assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        }
        assert_eq!(render(&Report::default()), "No run was made.\n");
    }
}
