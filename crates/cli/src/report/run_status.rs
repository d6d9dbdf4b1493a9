//! The totals of each group of jobs, in fio's lines: scripts look for `READ: bw=` in text.
//!
//! The figures of a job are printed with the job.

use super::job::{Direction, JobResult};
use super::number::{bandwidth, bytes, decimal_bytes};
use super::ratio::ratio;
use std::borrow::Cow;

/// The lines for the jobs of one run, groups in the order of their numbers.
pub(super) fn lines(jobs: &[JobResult]) -> Vec<String> {
    let mut groups = Vec::from_iter(jobs.iter().map(|job| job.group));
    groups.sort_unstable();
    groups.dedup();
    let of = |group: u32| {
        let jobs = Vec::from_iter(jobs.iter().filter(|job| job.group == group));
        let sums = ["READ", "WRITE", "TRIM", "MIXED"].into_iter().filter_map(move |name| {
            let parts = jobs.iter().flat_map(|job| job.reported());
            let parts = parts.filter(|(of, it)| of.eq_ignore_ascii_case(name) && it.total_ios > 0);
            let parts = Vec::from_iter(parts.map(|(_, direction)| direction));
            (!parts.is_empty()).then(|| format!("{name:>7}: {}", sum(&parts)))
        });
        [format!("Run status group {group} (all jobs):")].into_iter().chain(sums)
    };
    groups.into_iter().flat_map(of).collect()
}

/// The rate of all is that over the longest time, as in fio.
fn sum(parts: &[Cow<'_, Direction>]) -> String {
    let total = parts.iter().map(|part| part.io_bytes).sum::<u64>() as f64;
    let times = parts.iter().map(|part| part.runtime_ns);
    let (shortest, longest) = (times.clone().min().unwrap_or(0), times.max().unwrap_or(0));
    let rates = parts.iter().map(|part| part.bytes_per_second());
    let (slowest, fastest) =
        rates.fold((f64::MAX, 0.0_f64), |(least, most), rate| (least.min(rate), most.max(rate)));
    let binary = |rate: f64| bandwidth(rate).replace(' ', "");
    let decimal = |rate: f64| format!("{}/s", decimal_bytes(rate));
    let rate = ratio(total * 1e9, longest as f64);
    let millis = |ns: u64| (ns + 500_000) / 1_000_000;
    format!(
        "bw={} ({}), {}-{} ({}-{}), io={} ({}), run={}-{}msec",
        binary(rate),
        decimal(rate),
        binary(slowest),
        binary(fastest),
        decimal(slowest),
        decimal(fastest),
        bytes(total).replace(' ', ""),
        decimal_bytes(total),
        millis(shortest),
        millis(longest)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(group: u32, bytes: u64, ms: u64) -> JobResult {
        let read = Direction {
            io_bytes: bytes,
            total_ios: 1,
            runtime_ns: ms * 1_000_000,
            ..Direction::default()
        };
        JobResult { group, read, ..JobResult::default() }
    }

    /// As printed by fio 3.33, except for the number of digits.
    #[test]
    fn jobs_are_summed_by_group_over_the_longest_time() {
        let mut jobs = [job(1, 12_582_912, 417), job(0, 1 << 20, 1_000), job(0, 3 << 20, 2_000)];
        jobs[0].write = Direction {
            io_bytes: 4_231_168,
            total_ios: 1,
            runtime_ns: 417_000_000,
            ..Direction::default()
        };
        let expected = [
            "Run status group 0 (all jobs):",
            "   READ: bw=2.00MiB/s (2.10MB/s), 1.00MiB/s-1.50MiB/s (1.05MB/s-1.57MB/s), io=4.00MiB (4.19MB), run=1000-2000msec",
            "Run status group 1 (all jobs):",
            "   READ: bw=28.8MiB/s (30.2MB/s), 28.8MiB/s-28.8MiB/s (30.2MB/s-30.2MB/s), io=12.0MiB (12.6MB), run=417-417msec",
            "  WRITE: bw=9.68MiB/s (10.1MB/s), 9.68MiB/s-9.68MiB/s (10.1MB/s-10.1MB/s), io=4.04MiB (4.23MB), run=417-417msec",
        ];
        assert_eq!(lines(&jobs), expected);
    }

    #[test]
    fn a_group_without_io_has_its_heading() {
        assert_eq!(lines(&[JobResult::default()]), ["Run status group 0 (all jobs):"]);
        assert!(lines(&[]).is_empty());
    }
}
