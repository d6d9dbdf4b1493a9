//! `aarch64`: the tests of the policies and of the engine for another processor, under qemu-user.
//!
//! This tests the code that the compiler generates for the memory orderings there, and the sizes of words and pointers.
//! It does not test the reorderings of that memory, since qemu runs on the host's memory.

use crate::Result;
use crate::shell::{Cmd, is_installed, target_dir};
use crate::suite::{self, Suite};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const QEMU: &str = "qemu-aarch64";
/// The linker for that machine.
const LINKER: &str = "aarch64-linux-gnu-gcc";
/// The folder in which Debian's cross compiler has the libraries of that machine.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

const SUITES: &[&Suite] = &[
    &Suite { name: "core", package: "-p blkmq-core --lib", filter: "", left_out: &[] },
    &Suite {
        name: "sched",
        package: "-p blkmq-sched --lib",
        filter: "",
        left_out: &[("leaves_all_as_one_request_after_the_other", "minutes of plain arithmetic")],
    },
    &Suite {
        name: "engine",
        package: "-p blkmq-engine --lib",
        filter: "",
        left_out: &[(
            "a_million_values_through_a_small_ring",
            "a million hand-overs; Miri runs it small",
        )],
    },
    &Suite {
        name: "engine, whole queues",
        package: "-p blkmq-engine --test all",
        filter: "contention:: submission:: wakeups::",
        left_out: &[("wakeups::", "simulated threads, a minute each")],
    },
];

/// `cargo xtask aarch64`
///
/// # Errors
/// If a test fails there.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if let Some(arg) = args.first() {
        return Err(format!("aarch64 takes no argument, got {arg}").into());
    }
    if let Some(lack) = lack() {
        suite::skipped("aarch64", SUITES, &lack);
        return Ok(());
    }
    let target = target_dir().join("aarch64");
    let tally = suite::run(SUITES, |_| {
        Cmd::new(&format!("cargo test --target {TARGET}"))
            // Most of the time is spent on building; unoptimised, it would be spent on running.
            .env("CARGO_PROFILE_TEST_OPT_LEVEL", "1")
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", format!("{QEMU} -L {LIBRARIES}"))
            .env("CARGO_TARGET_DIR", target.to_string_lossy())
    })?;
    println!("aarch64: {tally}");
    Ok(())
}

/// Installs the standard library for that target. If that is impossible, or a program is missing, returns what is
/// missing.
pub(crate) fn lack() -> Option<String> {
    let missing = ["rustup", QEMU, LINKER].into_iter().find(|program| !is_installed(program));
    if let Some(program) = missing {
        return Some(format!("{program} is not installed"));
    }
    Cmd::new(&format!("rustup target add {TARGET}")).run().err().map(|error| error.to_string())
}
