//! Tests under a tool: their selection, the number that ran, and the excluded ones with the reasons; and the tools:
//! `loom` and `shuttle`, the model checkers, `miri`, `sanitize`, and `aarch64`. A tool must find the bugs of the
//! program in `planted`, since otherwise its silence about our code means nothing.
//!
//! Loom tries every interleaving of the protocols in the engine's `sync` modules, up to a number of preemptions.
//! Shuttle tries thousands of random schedules of the whole queue, and of the loops that wait for it, which are too
//! large for loom; a failing schedule is printed by the test and can be replayed. Their builds differ (atomics are the
//! model's), so each has its own target folder. They use the test profile, which optimises and keeps assertions.
//!
//! Miri interprets unsafe or concurrent code, and the code below it, and knows the rules of the language: aliasing,
//! initialisation, bounds, data races. It is a hundred times slower than the tests, so slow tests are excluded by name.
//! Schedules and the values that relaxed loads may see are random; the concurrent parts run with several seeds.
//!
//! ThreadSanitizer and AddressSanitizer run at the speed of tests, and run parts that an interpreter cannot: real
//! threads, the kernel's rings. For ThreadSanitizer the standard library is instrumented, too; otherwise the ordering
//! by its locks and joins would not be seen. AddressSanitizer replaces allocation and copying and does not need that.
//!
//! `aarch64` runs the tests of the policies and of the engine for another processor, under qemu-user: the code that the
//! compiler generates for the memory orderings there, and the sizes of words and pointers. It does not test the
//! reorderings of that memory, since qemu runs on the host's memory.
//!
//! CI must end in time even on a slow machine. Optional work is skipped there, and named.

use crate::shell::{Cmd, FAST_MODELS, is_installed, root, target_dir, timed};
use crate::{Result, toolchains};
use std::path::Path;
use std::time::Duration;

/// Suites that run at a time in [`run_in_pairs`]; CI has two cores.
const AT_ONCE: usize = 2;

/// A part of the tests of one package.
struct Suite {
    /// The name in the output.
    name: &'static str,
    /// The arguments of `cargo test`: the package and the targets.
    package: &'static str,
    /// The arguments after `--`: parts of test names, any of which selects a test; empty for all.
    filter: &'static str,
    /// Parts of the names of excluded tests, each with its reason.
    left_out: &'static [(&'static str, &'static str)],
}

impl Suite {
    /// Appends the words of this suite to `command`, which ends with a `test`.
    fn behind(&self, command: Cmd) -> Cmd {
        let words = self.package.split_whitespace().chain(["--"]);
        let skips = self.left_out.iter().flat_map(|(name, _)| ["--skip", name]);
        words.chain(self.filter.split_whitespace()).chain(skips).fold(command, Cmd::arg)
    }
}

/// Runs each suite with the command that `command` makes. Returns a sentence with the number of passed tests and the
/// excluded tests.
///
/// # Errors
/// At the first suite that fails or in which no test runs.
fn run(suites: &[&Suite], command: impl Fn(&Suite) -> Cmd) -> Result<String> {
    let mut passed = 0;
    for suite in suites {
        let (tests, time) = timed(|| suite.behind(command(suite)).run_tests());
        passed += finished(suite, tests, time)?;
    }
    Ok(sentence(passed, suites))
}

/// As [`run`], for tools that use one core: [`AT_ONCE`] suites at a time, the output of each printed when it ends.
///
/// # Errors
/// As [`run`], once concurrent suites have ended.
fn run_in_pairs(suites: &[&Suite], command: impl Fn(&Suite) -> Cmd) -> Result<String> {
    let mut passed = 0;
    for pair in suites.chunks(AT_ONCE) {
        let (outcomes, time) = timed(|| {
            let started = pair.iter().map(|suite| suite.behind(command(suite)).start_tests());
            let started: Vec<_> = started.collect();
            started.into_iter().map(|tests| tests?.finish()).collect::<Vec<_>>()
        });
        for (suite, tests) in pair.iter().zip(outcomes) {
            passed += finished(suite, tests, time)?;
        }
    }
    Ok(sentence(passed, suites))
}

/// Prints how many tests of `suite` passed.
fn finished(suite: &Suite, tests: Result<u32>, time: Duration) -> Result<u32> {
    let tests = tests?;
    println!("{}: {tests} tests passed in {time:.1?}", suite.name);
    Ok(tests)
}

fn sentence(passed: u32, suites: &[&Suite]) -> String {
    format!("{passed} tests passed in {} suites{}", suites.len(), left_out(suites))
}

fn left_out(suites: &[&Suite]) -> String {
    let all = suites.iter().flat_map(|suite| suite.left_out);
    let all: Vec<String> = all.map(|(name, why)| format!("{name} ({why})")).collect();
    match all.len() {
        0 => String::new(),
        count => format!("; {count} left out: {}", all.join(", ")),
    }
}

/// Prints, if the machine lacks `what`, how many and which suites did not run.
fn skipped(step: &str, suites: &[&Suite], what: &str) {
    let names: Vec<&str> = suites.iter().map(|suite| suite.name).collect();
    println!("{step}: SKIPPED {} suites ({}): {what}", suites.len(), names.join(", "));
}

/// A bug, and a tool's report of it.
struct Planted {
    /// The name in the program.
    bug: &'static str,
    /// A part of the report.
    report: &'static str,
}

/// Runs the program with each bug, and once without. Returns a sentence with the number of bugs found.
///
/// # Errors
/// If a bug is not reported, or an error is reported where there is no bug.
fn check_planted(bugs: &[Planted], command: impl Fn(&str) -> Cmd) -> Result<String> {
    command("none").run()?;
    for Planted { bug, report } in bugs {
        let command = command(bug);
        println!("$ {command}");
        let Err(error) = command.output() else {
            return Err(format!("the planted {bug} is not found by {command}").into());
        };
        if !error.to_string().contains(report) {
            return Err(format!("the planted {bug} is not found: no '{report}' in {error}").into());
        }
        println!("planted {bug}: found");
    }
    let names: Vec<&str> = bugs.iter().map(|planted| planted.bug).collect();
    Ok(format!("{} planted bugs found ({})", bugs.len(), names.join(", ")))
}

/// The most preemptions per execution, unless `LOOM_MAX_PREEMPTIONS` is set. Nearly every known bug of protocols this
/// small needs two; three is a margin and finishes in seconds.
const PREEMPTIONS: &str = "3";

/// `cargo xtask loom [FILTER]`
///
/// # Errors
/// If a model finds a bug, a planted bug is not found, or no test matches.
pub(crate) fn loom(args: &[String]) -> Result<()> {
    let passed = loom_command(args)?.run_tests()?;
    println!("loom: {passed} models");
    Ok(())
}

fn loom_command(args: &[String]) -> Result<Cmd> {
    let filter = match args {
        [] => "loom_",
        [filter] => filter,
        _ => return Err("usage: cargo xtask loom [FILTER]".into()),
    };
    Ok(explored(loom_cargo(&format!("test -p blkmq-engine --lib -- {filter}"))))
}

/// Cargo, for the models.
pub(crate) fn loom_cargo(words: &str) -> Cmd {
    let target = target_dir().join("loom");
    Cmd::new(&format!("cargo {FAST_MODELS} {words}"))
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", target.to_string_lossy())
}

/// The models themselves, as cargo has built them.
pub(crate) fn models(binary: &Path) -> Cmd {
    explored(Cmd::new("").arg(binary.to_string_lossy()))
}

/// Sets the bound of the exploration.
fn explored(cmd: Cmd) -> Cmd {
    let preemptions = std::env::var("LOOM_MAX_PREEMPTIONS").unwrap_or_else(|_| PREEMPTIONS.into());
    cmd.env("LOOM_MAX_PREEMPTIONS", preemptions)
}

/// `cargo xtask shuttle [FILTER]`
///
/// # Errors
/// If a schedule finds a bug, a planted bug is not found, or no test matches.
pub(crate) fn shuttle(args: &[String]) -> Result<()> {
    let filter = match args {
        [] => "shuttle_",
        [filter] => filter,
        _ => return Err("usage: cargo xtask shuttle [FILTER]".into()),
    };
    let target = target_dir().join("shuttle");
    let line =
        format!("cargo {FAST_MODELS} test -p blkmq-engine -p blkmq-runtime --lib -- {filter}");
    let passed = Cmd::new(&line)
        .env("RUSTFLAGS", "--cfg shuttle")
        .env("CARGO_TARGET_DIR", target.to_string_lossy())
        .run_tests()?;
    println!("shuttle: {passed} tests");
    Ok(())
}

/// The variable with the second at which the run should end, as in `date +%s`. Without it there is no end.
const ENDS: &str = "BLKMQ_CI_ENDS";

/// Runs `work` if at least this many `minutes` are left; otherwise prints that `name` is skipped.
///
/// # Errors
/// If the work fails, or the variable is no number.
pub(crate) fn within(minutes: u64, name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    if has(minutes)? {
        return work();
    }
    println!("{name}: SKIPPED, fewer than {minutes} minutes before {ENDS}");
    Ok(())
}

/// Returns whether this many minutes are left.
///
/// # Errors
/// If the variable is no number.
pub(crate) fn has(minutes: u64) -> Result<bool> {
    let Ok(ends) = std::env::var(ENDS) else { return Ok(true) };
    let ends: u64 = ends.parse().map_err(|_| format!("{ENDS}={ends} is no number"))?;
    let now: u64 = Cmd::new("date +%s").output()?.trim().parse()?;
    Ok(now + 60 * minutes <= ends)
}

/// Run once: these tests have one thread.
const MIRI_ONCE: &[&Suite] = &[
    &Suite {
        name: "core",
        package: "-p blkmq-core --lib",
        filter: "",
        left_out: &[
            ("s16_14_parts_are_those_of_the_model", "takes minutes"),
            ("a_model_that_walks_from_byte_to_byte", "takes minutes"),
            ("is_divided_by_its_length", "takes minutes"),
        ],
    },
    &Suite {
        name: "sched",
        package: "-p blkmq-sched --lib",
        filter: "index:: policy:: options::",
        left_out: &[("plugs_of_every_size", "takes minutes"), ("sweeps_go_up", "takes minutes")],
    },
    &Suite {
        name: "engine, its tables",
        package: "-p blkmq-engine --lib",
        filter: "slots:: sync:: over_random_histories is_not_removed one_of_the_newest",
        left_out: &[
            ("laps_wrap_around", "131072 entries"),
            ("evenly_filled", "takes minutes"),
            ("each_number_is_given_out_once", "takes minutes"),
            ("shares_add_up_to_the_shallow_depth", "takes minutes"),
            ("rates_of_millions", "millions of calls"),
            ("a_long_slack_is_a_credit", "most of a minute of plain arithmetic"),
            ("threads", "run with several seeds"),
        ],
    },
    &Suite {
        name: "engine, whole queues",
        package: "-p blkmq-engine --test all",
        filter: "one_io_goes_there_and_back refusals_hand_back an_io_without_a_slot \
                 dropping_a_queue errors_reach_every_bio more_ranges_than_a_request \
                 a_request_of_lists",
        left_out: &[],
    },
    &Suite { name: "layer", package: "-p blkmq-layer --lib", filter: "lent::", left_out: &[] },
    &Suite {
        name: "buf",
        package: "-p blkmq-buf --lib",
        filter: "",
        left_out: &[
            ("threads_take_from_one_pool", "run with several seeds"),
            ("what_a_dropped_part_wrote", "run with several seeds"),
        ],
    },
];

/// Run with several seeds: these tests have threads.
const MIRI_SEEDED: &[&Suite] = &[
    &Suite {
        name: "engine, threads",
        package: "-p blkmq-engine --lib",
        filter: "threads_never_hold threads_add_up threads_combine lost_wake_up_between_threads \
                 senders_and_a_receiver waiters_are_served through_a_small_ring",
        left_out: &[],
    },
    &Suite {
        name: "buf, threads",
        package: "-p blkmq-buf --lib",
        filter: "threads_take_from_one_pool what_a_dropped_part_wrote",
        left_out: &[],
    },
];

/// Every run needs the clock and the file system of this machine.
const MIRI_FLAGS: &str = "-Zmiri-disable-isolation";
/// The number of schedules of each concurrent test.
const MIRI_SEEDS: &str = "-Zmiri-many-seeds=0..4";

/// The planted bugs, with Miri's report of each.
const MIRI_BUGS: &[Planted] = &[
    Planted { bug: "race", report: "Data race detected" },
    Planted { bug: "use-after-free", report: "has been freed" },
    Planted { bug: "uninitialised", report: "uninitialized" },
    Planted { bug: "aliasing", report: "borrow stack" },
];

/// `cargo xtask miri`
///
/// # Errors
/// If Miri reports an error in a test, or does not report a planted bug.
pub(crate) fn miri(args: &[String]) -> Result<()> {
    if let Some(arg) = args.first() {
        return Err(format!("miri takes no argument, got {arg}").into());
    }
    if let Some(lack) = toolchains::lack()? {
        skipped("miri", &[MIRI_ONCE, MIRI_SEEDED].concat(), &lack);
        return Ok(());
    }
    let found = check_planted(MIRI_BUGS, |bug| {
        let run = "miri run --quiet --manifest-path planted/Cargo.toml --";
        miri_cargo(run, "").arg(bug)
    })?;
    let once = run_in_pairs(MIRI_ONCE, |_| miri_cargo("miri test", ""))?;
    let seeded = run(MIRI_SEEDED, |_| miri_cargo("miri test", MIRI_SEEDS))?;
    println!("miri: {found}; {once}; with 4 seeds each, {seeded}");
    Ok(())
}

fn miri_cargo(line: &str, more: &str) -> Cmd {
    let target = target_dir().join("miri");
    toolchains::cargo(line)
        .env("MIRIFLAGS", format!("{MIRI_FLAGS} {more}").trim())
        // Interpreting the code that prints a backtrace would take seconds for each test that should panic.
        .env("RUST_BACKTRACE", "0")
        .env("CARGO_TARGET_DIR", target.to_string_lossy())
}

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
    // [`address_sanitizer`] runs it alone.
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
    filter: "client:: integrity::",
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
const SANITIZED: &[&Suite] =
    &[&ENGINE, &QUEUES, &RUNTIME, &DEVICE, &BUF, &LAYER, &THREADS, &URING, &RBD, &BLKMQ];

const THREAD: Sanitizer = Sanitizer {
    name: "thread",
    step: "tsan",
    flags: "-Zbuild-std",
    suppressions: Some("xtask/tsan-suppressions.txt"),
    bugs: &[Planted { bug: "race", report: "ThreadSanitizer: data race" }],
    suites: SANITIZED,
};
const ADDRESS: Sanitizer = Sanitizer {
    name: "address",
    step: "asan",
    flags: "",
    suppressions: None,
    bugs: &[Planted { bug: "use-after-free", report: "AddressSanitizer: heap-use-after-free" }],
    suites: SANITIZED,
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
pub(crate) fn sanitize(args: &[String]) -> Result<()> {
    match args {
        [] => thread_sanitizer().and_then(|()| address_sanitizer()),
        [name] if name == THREAD.name => thread_sanitizer(),
        [name] if name == ADDRESS.name => address_sanitizer(),
        _ => Err("usage: cargo xtask sanitize [thread|address]".into()),
    }
}

/// ThreadSanitizer.
///
/// # Errors
/// As [`sanitize`].
pub(crate) fn thread_sanitizer() -> Result<()> {
    check_sanitizer(&THREAD)
}

/// AddressSanitizer, and Valgrind over the one test that is about memory and the kernel.
///
/// # Errors
/// As [`sanitize`].
pub(crate) fn address_sanitizer() -> Result<()> {
    check_sanitizer(&ADDRESS)?;
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
        let tally = run(&[&test], command)?;
        println!("asan, {ROUNDS} rounds of a device that forgets its ring: {tally}");
    }
    if !is_installed("valgrind") {
        skipped("valgrind", &[&test], "valgrind is not installed");
        return Ok(());
    }
    let tally = run(&[&test], |_| {
        let runner = "valgrind --quiet --error-exitcode=9";
        Cmd::new("cargo test")
            .env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", runner)
            .env("BLKMQ_ROUNDS", ROUNDS)
    })?;
    println!("valgrind, {ROUNDS} rounds of the same: {tally}");
    Ok(())
}

fn check_sanitizer(sanitizer: &Sanitizer) -> Result<()> {
    let Sanitizer { step, bugs, suites, .. } = sanitizer;
    if let Some(lack) = toolchains::lack()? {
        skipped(step, suites, &lack);
        return Ok(());
    }
    let program = "run --quiet --profile quick --manifest-path planted/Cargo.toml";
    let found = check_planted(bugs, |bug| sanitized(sanitizer, program).arg("--").arg(bug))?;
    let tally = run(suites, |_| sanitized(sanitizer, TEST))?;
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

const AARCH64: &str = "aarch64-unknown-linux-gnu";
const QEMU: &str = "qemu-aarch64";
/// The linker for that machine.
const LINKER: &str = "aarch64-linux-gnu-gcc";
/// The folder in which Debian's cross compiler has the libraries of that machine.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

const EMULATED: &[&Suite] = &[
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
pub(crate) fn aarch64(args: &[String]) -> Result<()> {
    if let Some(arg) = args.first() {
        return Err(format!("aarch64 takes no argument, got {arg}").into());
    }
    if let Some(lack) = aarch64_lack() {
        skipped("aarch64", EMULATED, &lack);
        return Ok(());
    }
    let target = target_dir().join("aarch64");
    let tally = run(EMULATED, |_| {
        Cmd::new(&format!("cargo test --target {AARCH64}"))
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
pub(crate) fn aarch64_lack() -> Option<String> {
    let missing = ["rustup", QEMU, LINKER].into_iter().find(|program| !is_installed(program));
    if let Some(program) = missing {
        return Some(format!("{program} is not installed"));
    }
    Cmd::new(&format!("rustup target add {AARCH64}")).run().err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUITE: Suite = Suite {
        name: "echo",
        package: "-p x --lib",
        filter: "one two",
        left_out: &[("slow", "it is slow")],
    };

    #[test]
    fn a_suite_is_a_command_that_can_be_typed() {
        let line = SUITE.behind(Cmd::new("cargo test")).to_string();
        assert_eq!(line, "cargo test -p x --lib -- one two --skip slow");
    }

    #[test]
    fn what_ran_is_counted_and_what_did_not_is_named() {
        let echo = |_: &Suite| Cmd::new("echo test result: ok. 3 passed; 0 failed");
        let text = run(&[&SUITE, &SUITE], echo).unwrap();
        assert!(text.starts_with("6 tests passed in 2 suites; 2 left out: slow (it is slow)"));
        let pairs = run_in_pairs(&[&SUITE, &SUITE, &SUITE], echo).unwrap();
        assert!(pairs.starts_with("9 tests passed in 3 suites"), "{pairs}");
    }

    #[test]
    fn a_suite_that_fails_or_runs_nothing_is_an_error() {
        assert!(run(&[&SUITE], |_| Cmd::new("false")).is_err());
        assert!(run(&[&SUITE], |_| Cmd::new("true")).is_err());
        assert!(run_in_pairs(&[&SUITE, &SUITE], |_| Cmd::new("false")).is_err());
        assert!(run_in_pairs(&[&SUITE], |_| Cmd::new("true")).is_err());
    }

    const RACE: &[Planted] = &[Planted { bug: "race", report: "'race'" }];

    /// A tool that finds the planted bug; its output contains the name of the bug.
    fn finds(bug: &str) -> Cmd {
        Cmd::new(if bug == "none" { "true" } else { "ls" }).arg(format!("'{bug}'"))
    }

    #[test]
    fn a_bug_that_is_reported_is_found() {
        assert_eq!(check_planted(RACE, finds).unwrap(), "1 planted bugs found (race)");
    }

    #[test]
    fn a_tool_that_is_silent_or_always_speaks_finds_nothing() {
        assert!(check_planted(RACE, |_| Cmd::new("true")).is_err());
        assert!(check_planted(RACE, |_| Cmd::new("false")).is_err());
        let other: &[Planted] = &[Planted { bug: "race", report: "another report" }];
        assert!(check_planted(other, finds).is_err());
    }
}
