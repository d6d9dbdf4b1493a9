//! `sanitize`: threads and raw memory under ThreadSanitizer and AddressSanitizer, at the speed of tests, and past
//! where an interpreter ends: real threads, the kernel's rings.
//!
//! ThreadSanitizer has the standard library built with it, or it would not see what its locks and joins order.
//! AddressSanitizer takes allocation and copying over as they are.

use crate::planted::{self, Planted};
use crate::shell::{Cmd, is_installed, target_dir};
use crate::suite::{self, Suite};
use crate::{Result, nightly};

/// One of the two.
struct Sanitizer {
    /// As `cargo xtask sanitize` and the compiler call it.
    name: &'static str,
    /// The step of CI.
    step: &'static str,
    /// What else `cargo` is told.
    flags: &'static str,
    bugs: &'static [Planted],
    suites: &'static [&'static Suite],
}

const ENGINE: Suite = Suite {
    name: "engine",
    package: "-p blkmq-engine --lib --test contention --test tokens --test shared_tags --test pump_thread",
    filter: "",
    left_out: &[(
        "a_million_values_through_a_small_ring",
        "a million hand-overs; Miri runs it small",
    )],
};
const RUNTIME: Suite =
    Suite { name: "runtime", package: "-p blkmq-runtime --lib --tests", filter: "", left_out: &[] };
const DEVICE: Suite =
    Suite { name: "device", package: "-p blkmq-device --test stress", filter: "", left_out: &[] };
const BUF: Suite = Suite { name: "buf", package: "-p blkmq-buf --lib", filter: "", left_out: &[] };
const URING: Suite = Suite {
    name: "uring",
    package: "-p blkmq-uring --lib --test contents --test refusals",
    filter: "",
    left_out: &[],
};
const BLKMQ: Suite = Suite {
    name: "blkmq",
    package: "-p blkmq --test client --test integrity --test splitting",
    filter: "",
    left_out: &[],
};
const SUITES: &[&Suite] = &[&ENGINE, &RUNTIME, &DEVICE, &BUF, &URING, &BLKMQ];

const THREAD: Sanitizer = Sanitizer {
    name: "thread",
    step: "tsan",
    flags: "-Zbuild-std",
    bugs: &[Planted { bug: "race", report: "ThreadSanitizer: data race" }],
    suites: SUITES,
};
const ADDRESS: Sanitizer = Sanitizer {
    name: "address",
    step: "asan",
    flags: "",
    bugs: &[Planted { bug: "use-after-free", report: "AddressSanitizer: heap-use-after-free" }],
    suites: SUITES,
};

/// Rounds of a device that forgets its ring while the kernel still writes: many, since it is a race.
const ROUNDS: &str = "100";

/// I/Os of each combination that is stressed: a tenth of what tests without a sanitizer have.
const STRESS_IOS: &str = "3000";

/// `cargo xtask sanitize [thread|address]`
///
/// # Errors
/// If a sanitizer finds something, or does not find what is planted.
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
        package: "-p blkmq-uring --test forgetful",
        filter: "",
        left_out: &[],
    };
    if nightly::lack()?.is_none() {
        // What it leaks, it leaks for safety's sake.
        let command = |_: &Suite| {
            sanitized(&ADDRESS, "test")
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
    if let Some(lack) = nightly::lack()? {
        suite::skipped(step, suites, &lack);
        return Ok(());
    }
    let run = "run --quiet --profile test --manifest-path planted/Cargo.toml";
    let found = planted::check(bugs, |bug| sanitized(sanitizer, run).arg("--").arg(bug))?;
    let tally = suite::run(suites, |_| sanitized(sanitizer, "test"))?;
    println!("{step}: {found}; {tally}");
    Ok(())
}

/// `cargo LINE`, of everything with the sanitizer.
fn sanitized(Sanitizer { name, step, flags, .. }: &Sanitizer, line: &str) -> Cmd {
    let target = target_dir().join(step);
    nightly::cargo(&format!("{line} {flags} --target x86_64-unknown-linux-gnu"))
        .env("RUSTFLAGS", format!("-Zsanitizer={name}"))
        // Most of the time is spent on building.
        .env("CARGO_PROFILE_TEST_OPT_LEVEL", "1")
        .env("BLKMQ_STRESS_IOS", STRESS_IOS)
        .env("RUST_BACKTRACE", "0")
        .env("CARGO_TARGET_DIR", target.to_string_lossy())
}
