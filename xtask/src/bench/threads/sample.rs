//! The figures of one run, from the JSON of fio or of `blkmq bench`, which has fio's form.
//!
//! CPU time is that of the load's threads while they measure, as each program reports it. So it does not include the
//! start of a program, which takes fio longer than ours.

use super::super::figures::{check, jobs};
use crate::Result;
use serde_json::Value;

/// The figures of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Sample {
    /// I/Os in a second.
    pub(super) rate: f64,
    /// Microseconds of CPU time for an I/O.
    pub(super) cpu: f64,
    /// Microseconds of the 99th percentile, submission included: at depth 1 our submission is part of the system call
    /// that sleeps.
    pub(super) p99: f64,
    /// Context switches for an I/O.
    pub(super) switches: f64,
}

impl Sample {
    /// Reads a report of one group of threads.
    ///
    /// # Errors
    /// If the job failed, did no I/O or lacks a field, or there is more than one.
    pub(super) fn read(report: &Value) -> Result<Self> {
        let [job] = &jobs(report)?[..] else { return Err("a report of several groups".into()) };
        check(job)?;
        let number = |of: &Value, name: &str| {
            of[name].as_f64().ok_or_else(|| format!("a report without {name}"))
        };
        let done = |direction: &&Value| direction["total_ios"].as_u64().is_some_and(|ios| ios > 0);
        let direction = ["read", "write"].map(|name| &job[name]).into_iter().find(done);
        let direction = direction.ok_or("a run without I/O")?;
        let ios = number(direction, "total_ios")?;
        // Percentages are of the time of all threads, in milliseconds.
        let time = number(job, "job_runtime")? * 1e3;
        let share = (number(job, "usr_cpu")? + number(job, "sys_cpu")?) / 100.0;
        let percentiles = &direction["lat_ns"]["percentile"];
        Ok(Self {
            rate: number(direction, "iops")?,
            cpu: share * time / ios,
            p99: number(percentiles, "99.000000")? / 1e3,
            switches: number(job, "ctx")? / ios,
        })
    }

    /// Combines two concurrent runs: the sum of the rates, the mean cost of an I/O, and the longer of the times.
    pub(super) fn and(self, other: Self) -> Self {
        let rate = self.rate + other.rate;
        let mean = |one: f64, two: f64| (one * self.rate + two * other.rate) / rate;
        Self {
            rate,
            cpu: mean(self.cpu, other.cpu),
            p99: self.p99.max(other.p99),
            switches: mean(self.switches, other.switches),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report(name: &str, error: i32, ios: u64) -> Value {
        let direction = json!({
            "total_ios": ios, "iops": 50_000.5, "runtime": 2_000,
            "lat_ns": { "percentile": { "50.000000": 1, "99.000000": 108_032 } },
        });
        let mut job = json!({ "error": error, "usr_cpu": 3.0, "sys_cpu": 9.5, "ctx": 150_000,
                              "job_runtime": 8_000,
                              "read": { "total_ios": 0, "runtime": 0 },
                              "write": { "total_ios": 0, "runtime": 0 } });
        job[name] = direction;
        json!({ "jobs": [job] })
    }

    #[test]
    fn a_run_is_read_in_either_direction() {
        for name in ["read", "write"] {
            let sample = Sample::read(&report(name, 0, 100_000)).unwrap();
            // 12.5 % of the two seconds of four threads is one second.
            let wanted = Sample { rate: 50_000.5, cpu: 10.0, p99: 108.032, switches: 1.5 };
            assert_eq!(sample, wanted, "{name}");
        }
    }

    #[test]
    fn rates_of_two_runs_add_up_and_costs_are_those_of_an_io() {
        let one = Sample { rate: 3e4, cpu: 8.0, p99: 100.0, switches: 1.0 };
        let other = Sample { rate: 1e4, cpu: 12.0, p99: 50.0, switches: 2.0 };
        let both = Sample { rate: 4e4, cpu: 9.0, p99: 100.0, switches: 1.25 };
        assert_eq!((one.and(other), other.and(one)), (both, both));
    }

    #[test]
    fn a_failed_idle_or_partial_run_is_an_error() {
        let refused = |report: &Value| Sample::read(report).unwrap_err().to_string();
        assert!(refused(&report("read", 5, 100)).contains("error"));
        assert_eq!(refused(&report("read", 0, 0)), "a run without I/O");
        let mut partial = report("read", 0, 100);
        partial["jobs"][0]["ctx"] = Value::Null;
        assert_eq!(refused(&partial), "a report without ctx");
        let job = &report("read", 0, 100)["jobs"][0];
        assert_eq!(refused(&json!({ "jobs": [job, job] })), "a report of several groups");
    }
}
