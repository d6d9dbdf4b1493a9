//! `interop`: checks against real clients.
//!
//! A check names the program that it requires. If the program is missing, the check is skipped, named and counted, so
//! that "passed" never hides "was not tested"; `.ci/run` installs the programs that it can.

pub(crate) mod browser;
mod documented;
mod fio_jobs;
mod fio_readers;
mod guest;
mod logs;
pub(crate) mod rbd;
mod serve;
mod service;
pub(crate) mod storage;

use crate::dist::environment;
use crate::shell::{BLKMQ, Cmd, build, is_installed, parse_json, target_dir, timed};
use crate::{Result, suite};
use About::{Contents, Times};
use guest::Kernel;
use serde_json::Value;
pub(crate) use service::upgrades;
use std::fs;
use std::path::{Path, PathBuf};

struct Check {
    name: &'static str,
    about: About,
    /// A program that must be installed; `None` if it is one of the workspace.
    requires: Option<&'static str>,
    run: fn() -> Result<Outcome>,
}

/// The figures that a check compares.
#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    /// Contents and counts, which do not depend on the load of the machine.
    Contents,
    /// Rates, latencies and limits of time.
    Times,
}

/// The outcome of a check that did not fail.
pub(crate) enum Outcome {
    /// The check ran, and passed.
    Passed,
    /// This machine lacks a requirement.
    Skipped(String),
}

const CHECKS: &[Check] = &[
    Check { name: "fio-json-schema", about: Times, requires: Some("fio"), run: same_schema },
    Check { name: "fio-same-work", about: Times, requires: Some("fio"), run: same_work },
    Check { name: "fio-jobs", about: Times, requires: Some("fio"), run: fio_jobs::check },
    Check { name: "fio-workload", about: Times, requires: Some("fio"), run: fio_jobs::workload },
    Check { name: "fio-flushes", about: Times, requires: Some("fio"), run: logs::flushes },
    Check {
        name: "fio-verify-phase",
        about: Times,
        requires: Some("fio"),
        run: logs::verify_phase,
    },
    Check { name: "fio-logs", about: Times, requires: Some("fio"), run: logs::logs },
    Check {
        name: "fio-log-tools",
        about: Contents,
        requires: Some("python3"),
        run: logs::log_tools,
    },
    Check {
        name: "fio-plot",
        about: Contents,
        requires: Some("python3"),
        run: fio_readers::graphs,
    },
    Check { name: "fio-readers", about: Contents, requires: Some("fio"), run: fio_readers::check },
    Check { name: "fio-programs", about: Times, requires: Some("fio"), run: fio_readers::programs },
    Check {
        name: "report-page",
        about: Contents,
        requires: Some(browser::CHROMIUM),
        run: browser::report,
    },
    Check { name: "blktrace", about: Contents, requires: Some("blkparse"), run: logs::of_bench },
    Check { name: "file-contents", about: Contents, requires: None, run: storage::contents },
    Check {
        name: "loop-contents",
        about: Contents,
        requires: Some("losetup"),
        run: storage::loop_contents,
    },
    Check { name: "nbdinfo", about: Contents, requires: Some("nbdinfo"), run: serve::example_info },
    Check { name: "nbdcopy", about: Contents, requires: Some("nbdcopy"), run: serve::example_copy },
    Check { name: "qemu-io", about: Contents, requires: Some("qemu-io"), run: serve::example_qemu },
    Check { name: "fio-nbd", about: Times, requires: Some("fio"), run: serve::example_fio },
    Check {
        name: "serve-documented",
        about: Contents,
        requires: Some("nbdinfo"),
        run: documented::check,
    },
    Check { name: "serve-nbdinfo", about: Contents, requires: Some("nbdinfo"), run: serve::info },
    Check { name: "serve-lists", about: Contents, requires: Some("nbdinfo"), run: serve::lists },
    Check { name: "serve-cut", about: Contents, requires: Some("nbdcopy"), run: serve::cut },
    Check { name: "serve-thin", about: Contents, requires: Some("nbdcopy"), run: serve::thin },
    Check {
        name: "serve-read-only",
        about: Contents,
        requires: Some("nbdinfo"),
        run: serve::read_only,
    },
    Check { name: "serve-handshakes", about: Contents, requires: None, run: serve::handshakes },
    Check { name: "serve-started", about: Times, requires: Some("nbdinfo"), run: serve::started },
    Check { name: "serve-nbdcopy", about: Contents, requires: Some("nbdcopy"), run: serve::copy },
    Check { name: "serve-tls", about: Contents, requires: Some("nbdcopy"), run: serve::tls },
    Check { name: "serve-qemu-io", about: Contents, requires: Some("qemu-io"), run: serve::qemu },
    Check { name: "serve-fio", about: Times, requires: Some("fio"), run: serve::fio },
    Check { name: "serve-map", about: Contents, requires: Some("qemu-img"), run: serve::map },
    Check { name: "serve-verify", about: Contents, requires: Some("fio"), run: serve::verified },
    Check { name: "serve-killed", about: Contents, requires: Some("fio"), run: serve::killed },
    Check { name: "serve-live", about: Times, requires: Some("fio"), run: serve::changed },
    Check { name: "serve-stuck", about: Times, requires: Some("nbdkit"), run: serve::stuck },
    Check { name: "serve-counts", about: Times, requires: Some("fio"), run: serve::counted },
    Check { name: "serve-trace", about: Times, requires: Some("blkparse"), run: logs::traced },
    Check { name: "serve-metrics", about: Times, requires: Some("promtool"), run: serve::metrics },
    Check { name: "serve-peers", about: Times, requires: Some("fio"), run: serve::peers },
    Check { name: "serve-attacks", about: Times, requires: Some("fio"), run: serve::attacks },
    Check { name: "serve-isolation", about: Times, requires: Some("fio"), run: serve::isolation },
    Check { name: "serve-floors", about: Times, requires: Some("fio"), run: serve::floors },
    Check { name: "serve-ceilings", about: Times, requires: Some("fio"), run: serve::ceilings },
    Check { name: "serve-soak", about: Times, requires: Some("fio"), run: serve::soak },
    Check { name: "serve-ext4", about: Contents, requires: Some("nbdfuse"), run: serve::ext4 },
    Check { name: "serve-crash", about: Times, requires: None, run: serve::crash },
    Check {
        name: "serve-reconnect",
        about: Contents,
        requires: Some("qemu-io"),
        run: serve::reconnects,
    },
    Check {
        name: "guest-vhost",
        about: Contents,
        requires: None,
        run: || guest::vhost(Kernel::Uml),
    },
    Check { name: "guest-nbd", about: Contents, requires: None, run: || guest::nbd(Kernel::Uml) },
    Check { name: "guest-priorities", about: Times, requires: None, run: guest::priorities },
    Check {
        name: "cloud-guest-vhost",
        about: Contents,
        requires: None,
        run: || guest::vhost(Kernel::Cloud),
    },
    Check { name: "cloud-guest-vhost-killed", about: Contents, requires: None, run: guest::killed },
    Check {
        name: "cloud-guest-nbd",
        about: Contents,
        requires: None,
        run: || guest::nbd(Kernel::Cloud),
    },
    Check { name: "cloud-guest-arrivals", about: Contents, requires: None, run: logs::arrivals },
    Check {
        name: "cloud-guest-blktrace",
        about: Contents,
        requires: Some("blkparse"),
        run: logs::of_guest,
    },
    Check { name: "cloud-guest-null-blk", about: Contents, requires: None, run: guest::null_blk },
    Check { name: "cloud-guest-iopoll", about: Contents, requires: None, run: guest::iopoll },
    Check {
        name: "cloud-guest-ublk",
        about: Contents,
        requires: None,
        run: || guest::ublk(Kernel::Cloud, "ublk"),
    },
    Check {
        name: "cloud-guest-ublk-end",
        about: Contents,
        requires: None,
        run: || guest::ublk(Kernel::Cloud, "ublk_end"),
    },
    Check {
        name: "cloud-guest-ublk-load",
        about: Times,
        requires: Some("fio"),
        run: || guest::ublk_load(Kernel::Cloud),
    },
    Check {
        name: "next-guest-ublk",
        about: Contents,
        requires: None,
        run: || guest::ublk(Kernel::Next, "ublk"),
    },
    Check {
        name: "next-guest-ublk-end",
        about: Contents,
        requires: None,
        run: || guest::ublk(Kernel::Next, "ublk_end"),
    },
    Check {
        name: "next-guest-ublk-load",
        about: Times,
        requires: Some("fio"),
        run: || guest::ublk_load(Kernel::Next),
    },
    Check {
        name: "service-units",
        about: Contents,
        requires: Some("systemd-analyze"),
        run: service::units,
    },
    Check {
        name: "service-tells",
        about: Contents,
        requires: Some("nbdinfo"),
        run: service::tells,
    },
    Check {
        name: "service-restarts",
        about: Contents,
        requires: Some("qemu-io"),
        run: service::restarts,
    },
    Check { name: "service-manual", about: Contents, requires: Some("man"), run: service::pages },
    Check {
        name: "service-completions",
        about: Contents,
        requires: Some("fish"),
        run: service::completions,
    },
    Check { name: "operate", about: Times, requires: Some("fio"), run: documented::operate },
    Check {
        name: "browser",
        about: Contents,
        requires: Some(browser::CHROMIUM),
        run: browser::check,
    },
    Check {
        name: "remote-verified",
        about: Contents,
        requires: Some("nbdkit"),
        run: storage::verified,
    },
    Check {
        name: "remote-single-client",
        about: Contents,
        requires: None,
        run: storage::single_client,
    },
    Check {
        name: "remote-filters",
        about: Contents,
        requires: Some("nbdkit"),
        run: storage::filters,
    },
    Check { name: "remote-tls", about: Contents, requires: None, run: storage::tls },
    Check {
        name: "remote-killed",
        about: Contents,
        requires: Some("nbdkit"),
        run: storage::killed,
    },
    Check { name: "rbd", about: Contents, requires: None, run: rbd::verified },
    Check { name: "rbd-killed", about: Contents, requires: None, run: rbd::killed },
    Check { name: "alert-rules", about: Contents, requires: Some("promtool"), run: serve::rules },
    Check {
        name: "serve-dashboards",
        about: Contents,
        requires: Some("promtool"),
        run: serve::dashboards,
    },
    Check { name: "serve-figures", about: Times, requires: Some("fio"), run: serve::figures },
    Check { name: "serve-latencies", about: Times, requires: Some("fio"), run: serve::latencies },
    Check {
        name: "serve-page",
        about: Contents,
        requires: Some(browser::CHROMIUM),
        run: serve::page,
    },
    Check {
        name: "serve-scenes",
        about: Times,
        requires: Some(browser::CHROMIUM),
        run: serve::scenes,
    },
    Check {
        name: "prometheus",
        about: Contents,
        requires: Some("prometheus"),
        run: serve::prometheus,
    },
    Check { name: "beside-linux", about: Times, requires: Some("nbdfuse"), run: beside_linux },
    Check {
        name: "loop-device-tests",
        about: Contents,
        requires: Some("losetup"),
        run: storage::loop_tests,
    },
    Check { name: "release", about: Contents, requires: Some("nbdinfo"), run: service::forms },
    Check {
        name: "release-installed",
        about: Contents,
        requires: Some("dpkg"),
        run: service::installed,
    },
];

/// The checks of contents, which can run in parallel with other work.
///
/// # Errors
/// As [`main`].
pub(crate) fn contents() -> Result<()> {
    main(&names(|check| check.about == Contents))
}

/// The checks of times.
///
/// # Errors
/// As [`main`].
pub(crate) fn times() -> Result<()> {
    main(&names(|check| check.about == Times))
}

fn names(is_chosen: impl Fn(&Check) -> bool) -> Vec<String> {
    CHECKS.iter().filter(|check| is_chosen(check)).map(|check| check.name.to_owned()).collect()
}

/// `cargo xtask interop [CHECK]...`
///
/// # Errors
/// If a check fails, or no check has such a name. All are run.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if let Some(arg) = args.iter().find(|arg| CHECKS.iter().all(|check| check.name != **arg)) {
        return Err(format!("there is no check {arg}").into());
    }
    build()?;
    let (mut passed, mut skipped, mut failed) = (0, 0, Vec::new());
    let chosen = |check: &&Check| args.is_empty() || args.iter().any(|arg| arg == check.name);
    for Check { name, requires, run, .. } in CHECKS.iter().filter(chosen) {
        if !suite::has(0)? {
            println!("{name}: SKIPPED, CI has to end");
            skipped += 1;
            continue;
        }
        let missing = requires.filter(|program| !is_installed(program));
        let (outcome, time) = timed(|| match missing {
            Some(program) => Ok(Outcome::Skipped(format!("{program} is not installed"))),
            None => run(),
        });
        match outcome {
            Ok(Outcome::Passed) => {
                println!("{name}: ok in {time:.1?}");
                passed += 1;
            }
            Ok(Outcome::Skipped(why)) => {
                println!("{name}: SKIPPED, {why}");
                skipped += 1;
            }
            Err(error) => {
                println!("{name}: FAILED, {error}");
                failed.push(*name);
            }
        }
    }
    println!("interop: {passed} passed, {skipped} skipped, {} failed", failed.len());
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}

/// `cargo xtask screenshots`
///
/// # Errors
/// If the browser or the server does not run.
pub(crate) fn screenshots(args: &[String]) -> Result<()> {
    browser::screenshots(args)?;
    build()?;
    serve::screenshots()
}

/// A short run of each side of `cargo xtask beside-linux`.
fn beside_linux() -> Result<Outcome> {
    let missing = crate::beside_linux::test_size()?;
    Ok(missing.map_or(Outcome::Passed, Outcome::Skipped))
}

/// Options that fio and blkmq must understand alike: 16384 I/Os, in any mix of directions.
const JOB: &str = "--name=check --bs=4k --iodepth=32 --size=64m --norandommap";

/// The reports of fio and blkmq about the same job, as JSON.
fn reports(options: &str) -> Result<[Value; 2]> {
    let fio = format!("fio --ioengine=null --output-format=json {JOB} {options}");
    let ours = format!(
        "{BLKMQ} bench --device null --scheduler none --output-format=json {JOB} {options}"
    );
    Ok([parse_json(&Cmd::new(&fio).output()?)?, parse_json(&Cmd::new(&ours).output()?)?])
}

/// A program that reads fio's results must be able to read blkmq's: every key of a job, with the same type.
fn same_schema() -> Result<Outcome> {
    for options in ["--rw=randread", "--rw=randwrite", "--rw=randrw --gtod_reduce=1"] {
        let [fio, ours] = reports(options)?;
        let mut missing = Vec::new();
        compare(&fio["jobs"][0], &ours["jobs"][0], "jobs[0]", &mut missing);
        if !missing.is_empty() {
            return Err(format!("with {options}: {}", missing.join(", ")).into());
        }
    }
    Ok(Outcome::Passed)
}

/// Every key of `fio` must be in `ours` with a value of the same type.
fn compare(fio: &Value, ours: &Value, path: &str, missing: &mut Vec<String>) {
    match (fio, ours) {
        (Value::Object(fio), Value::Object(ours)) => {
            // The values are the user's words; not every option of fio's engine has a meaning here.
            for (key, value) in fio.iter().filter(|(key, _)| *key != "job options") {
                let path = format!("{path}.{key}");
                match ours.get(key) {
                    Some(ours) => compare(value, ours, &path, missing),
                    None => missing.push(format!("{path} is missing")),
                }
            }
        }
        (Value::Number(_), Value::Number(_)) | (Value::String(_), Value::String(_)) => {}
        (Value::Array(_), Value::Array(_)) => {}
        (fio, ours) => missing.push(format!("{path} is {ours}, fio has {fio}")),
    }
}

/// The same options must mean the same number of I/Os and bytes.
fn same_work() -> Result<Outcome> {
    let options = [
        "--rw=read",
        "--rw=write",
        "--rw=randread",
        "--rw=randrw --rwmixread=70",
        "--rw=randwrite",
    ];
    for options in options {
        let [fio, ours] = reports(options)?.map(|report| work(&report));
        let expected = (16384, 64 << 20);
        if fio != expected || ours != expected {
            let text =
                format!("with {options}: fio {fio:?}, blkmq {ours:?}, expected {expected:?}");
            return Err(text.into());
        }
    }
    Ok(Outcome::Passed)
}

/// I/Os and bytes of all jobs.
fn work(report: &Value) -> (u64, u64) {
    let jobs = report["jobs"].as_array().map_or(&[][..], Vec::as_slice);
    let sum = |key: &str| {
        let directions = jobs.iter().flat_map(|job| [&job["read"], &job["write"], &job["trim"]]);
        directions.map(|direction| direction[key].as_u64().unwrap_or(0)).sum()
    };
    (sum("total_ios"), sum("io_bytes"))
}

/// A folder below the target folder, removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    /// # Errors
    /// If the target folder cannot be written to.
    fn new(name: &str) -> Result<Self> {
        let folder = target_dir().join("interop").join(name);
        // The files of a folder left by an earlier check would be mixed with ours.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A leftover folder is replaced next time.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The folder with the programs of the environment, which is created if it is missing; or the reason why it cannot be
/// created here.
///
/// # Errors
/// If the target folder cannot be written to.
fn python_programs() -> Result<std::result::Result<PathBuf, String>> {
    environment("tools/interop-python", include_str!("interop/python.txt"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn differences(fio: &Value, ours: &Value) -> Vec<String> {
        let mut missing = Vec::new();
        compare(fio, ours, "job", &mut missing);
        missing
    }

    #[test]
    fn a_missing_key_and_a_changed_type_are_found() {
        let fio = json!({ "read": { "iops": 1.5, "runtime": 2 }, "error": 0 });
        assert_eq!(differences(&fio, &fio).len(), 0);
        let missing = json!({ "read": { "iops": 1.5 }, "error": 0 });
        assert_eq!(differences(&fio, &missing), ["job.read.runtime is missing"]);
        let changed = json!({ "read": { "iops": "fast", "runtime": 2 }, "error": 0 });
        assert_eq!(differences(&fio, &changed), ["job.read.iops is \"fast\", fio has 1.5"]);
    }

    #[test]
    fn our_own_keys_are_an_addition() {
        let ours = json!({ "error": 0, "blkmq": { "run": 0 } });
        assert_eq!(differences(&json!({ "error": 0 }), &ours).len(), 0);
    }

    #[test]
    fn work_is_summed_over_jobs_and_directions() {
        let report = json!({ "jobs": [
            { "read": { "total_ios": 1, "io_bytes": 10 }, "write": { "total_ios": 2, "io_bytes": 20 } },
            { "trim": { "total_ios": 4, "io_bytes": 40 } },
        ]});
        assert_eq!(work(&report), (7, 70));
    }
}
