//! `sanitize`: threads and raw memory under ThreadSanitizer and AddressSanitizer, at the speed of tests, including
//! parts that an interpreter cannot run: real threads, the kernel's rings.
//!
//! For ThreadSanitizer the standard library is instrumented, too; otherwise the ordering by its locks and joins would
//! not be seen. AddressSanitizer replaces allocation and copying and does not need that.

use crate::shell::{Cmd, is_installed, root, target_dir};
use crate::suite::{self, Planted, Suite};
use crate::{Result, toolchains};

/// One of the two.
struct Sanitizer {
    /// The name for `cargo xtask sanitize` and the compiler.
    name: &'static str,
    /// The step of CI.
    step: &'static str,
    /// Further arguments of `cargo`.
    flags: &'static str,
    /// A file with the reports that are not errors.
    suppressions: Option<&'static str>,
    bugs: &'static [Planted],
    suites: &'static [&'static Suite],
}

const ENGINE: Suite = Suite {
    name: "engine",
    package: "-p blkmq-engine --lib",
    filter: "",
    left_out: &[(
        "a_million_values_through_a_small_ring",
        "a million hand-overs; Miri runs it small",
    )],
};
const QUEUES: Suite = Suite {
    name: "engine, whole queues",
    package: "-p blkmq-engine --test all",
    filter: "contention:: shared_tags:: submission:: wakeups::",
    left_out: &[("lost_wake_up", "simulated threads, a minute each")],
};
const RUNTIME: Suite = Suite {
    name: "runtime",
    package: "-p blkmq-runtime --lib --tests",
    filter: "",
    // A queue stays in memory while a device may use its payloads.
    left_out: &[("a_service_is_closed_in_bounded_time", "leaks on purpose")],
};
const DEVICE: Suite = Suite {
    name: "device",
    package: "-p blkmq-device --test all",
    filter: "stress::",
    left_out: &[],
};
const BUF: Suite = Suite { name: "buf", package: "-p blkmq-buf --lib", filter: "", left_out: &[] };
const THREADS: Suite =
    Suite { name: "threads", package: "-p blkmq-threads --lib", filter: "", left_out: &[] };
const URING: Suite = Suite {
    name: "uring",
    package: "-p blkmq-uring --lib --test all",
    // Those of the library are in these modules, too.
    filter: "contents:: refusals:: tests::",
    // [`address`] runs it alone.
    left_out: &[("a_device_forgets", "leaks on purpose")],
};
const RBD: Suite = Suite {
    name: "rbd",
    package: "-p blkmq-rbd --lib",
    filter: "tests::",
    // The test leaves memory to a librbd that does not answer, for safety.
    left_out: &[("the_end_does_not_wait_for_ever", "leaks on purpose")],
};
const BLKMQ: Suite = Suite {
    name: "blkmq",
    package: "-p blkmq --test all",
    filter: "client:: integrity:: lists::",
    left_out: &[],
};
const LAYER: Suite = Suite {
    name: "layer",
    package: "-p blkmq-layer --lib --test contents",
    filter: "",
    left_out: &[
        ("errors_and_delays_of_legs", "takes minutes"),
        ("what_is_read_is_what_was_written", "takes minutes"),
    ],
};
const SUITES: &[&Suite] =
    &[&ENGINE, &QUEUES, &RUNTIME, &DEVICE, &BUF, &LAYER, &THREADS, &URING, &RBD, &BLKMQ];

const THREAD: Sanitizer = Sanitizer {
    name: "thread",
    step: "tsan",
    flags: "-Zbuild-std",
    suppressions: Some("xtask/tsan-suppressions.txt"),
    bugs: &[Planted { bug: "race", report: "ThreadSanitizer: data race" }],
    suites: SUITES,
};
const ADDRESS: Sanitizer = Sanitizer {
    name: "address",
    step: "asan",
    flags: "",
    suppressions: None,
    bugs: &[Planted { bug: "use-after-free", report: "AddressSanitizer: heap-use-after-free" }],
    suites: SUITES,
};

/// Rounds of a device that forgets its ring while the kernel still writes: many, since it is a race.
const ROUNDS: &str = "100";

/// Most of the time of a suite is spent on building it.
const TEST: &str = "test --profile quick";

/// I/Os of each stressed combination: a sixth of those without a sanitizer.
const STRESS_IOS: &str = "1000";

/// `cargo xtask sanitize [thread|address]`
///
/// # Errors
/// If a sanitizer reports an error in a test, or does not report a planted bug.
pub(crate) fn main(args: &[String]) -> Result<()> {
    match args {
        [] => thread().and_then(|()| address()),
        [name] if name == THREAD.name => thread(),
        [name] if name == ADDRESS.name => address(),
        _ => Err("usage: cargo xtask sanitize [thread|address]".into()),
    }
}

/// ThreadSanitizer.
///
/// # Errors
/// As [`main`].
pub(crate) fn thread() -> Result<()> {
    check(&THREAD)
}

/// AddressSanitizer, and Valgrind over the one test that is about memory and the kernel.
///
/// # Errors
/// As [`main`].
pub(crate) fn address() -> Result<()> {
    check(&ADDRESS)?;
    let test = Suite {
        name: "forgetful",
        package: "-p blkmq-uring --test all",
        filter: "a_device_forgets",
        left_out: &[],
    };
    if toolchains::lack()?.is_none() {
        // The leaks of this code are deliberate, for safety.
        let command = |_: &Suite| {
            sanitized(&ADDRESS, TEST)
                .env("BLKMQ_ROUNDS", ROUNDS)
                .env("ASAN_OPTIONS", "detect_leaks=0")
        };
        let tally = suite::run(&[&test], command)?;
        println!("asan, {ROUNDS} rounds of a device that forgets its ring: {tally}");
    }
    if !is_installed("valgrind") {
        suite::skipped("valgrind", &[&test], "valgrind is not installed");
        return Ok(());
    }
    let tally = suite::run(&[&test], |_| {
        let runner = "valgrind --quiet --error-exitcode=9";
        Cmd::new("cargo test")
            .env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", runner)
            .env("BLKMQ_ROUNDS", ROUNDS)
    })?;
    println!("valgrind, {ROUNDS} rounds of the same: {tally}");
    Ok(())
}

fn check(sanitizer: &Sanitizer) -> Result<()> {
    let Sanitizer { step, bugs, suites, .. } = sanitizer;
    if let Some(lack) = toolchains::lack()? {
        suite::skipped(step, suites, &lack);
        return Ok(());
    }
    let run = "run --quiet --profile quick --manifest-path planted/Cargo.toml";
    let found = suite::check_planted(bugs, |bug| sanitized(sanitizer, run).arg("--").arg(bug))?;
    let tally = suite::run(suites, |_| sanitized(sanitizer, TEST))?;
    println!("{step}: {found}; {tally}");
    Ok(())
}

/// `cargo LINE`, with the whole program built for the sanitizer.
fn sanitized(sanitizer: &Sanitizer, line: &str) -> Cmd {
    let Sanitizer { name, step, flags, suppressions, .. } = sanitizer;
    let target = target_dir().join(step);
    let cmd = toolchains::cargo(&format!("{line} {flags} --target x86_64-unknown-linux-gnu"))
        .env("RUSTFLAGS", format!("-Zsanitizer={name}"))
        .env("BLKMQ_STRESS_IOS", STRESS_IOS)
        .env("RUST_BACKTRACE", "0")
        .env("CARGO_TARGET_DIR", target.to_string_lossy());
    match suppressions {
        Some(file) => {
            cmd.env("TSAN_OPTIONS", format!("suppressions={}", root().join(file).display()))
        }
        None => cmd,
    }
}
