//! `miri`: the tests of unsafe or concurrent code, and of the code below it, in an interpreter that knows the rules
//! of the language: aliasing, initialisation, bounds, data races.
//!
//! It is a hundred times slower than the tests, so slow tests are excluded by name. Schedules and the values that
//! relaxed loads may see are random; the concurrent parts run with several seeds.

use crate::shell::{Cmd, target_dir};
use crate::suite::{self, Planted, Suite};
use crate::{Result, toolchains};

/// Run once: these tests have one thread.
const ONCE: &[&Suite] = &[
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
        filter: "index:: requests:: options::",
        left_out: &[],
    },
    &Suite {
        name: "engine, its tables",
        package: "-p blkmq-engine --lib",
        filter: "slots:: sync:: merge_index::",
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
const SEEDED: &[&Suite] = &[
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
const FLAGS: &str = "-Zmiri-disable-isolation";
/// The number of schedules of each concurrent test.
const SEEDS: &str = "-Zmiri-many-seeds=0..4";

/// The planted bugs, with Miri's report of each.
const BUGS: &[Planted] = &[
    Planted { bug: "race", report: "Data race detected" },
    Planted { bug: "use-after-free", report: "has been freed" },
    Planted { bug: "uninitialised", report: "uninitialized" },
    Planted { bug: "aliasing", report: "borrow stack" },
];

/// `cargo xtask miri`
///
/// # Errors
/// If Miri reports an error in a test, or does not report a planted bug.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if let Some(arg) = args.first() {
        return Err(format!("miri takes no argument, got {arg}").into());
    }
    if let Some(lack) = toolchains::lack()? {
        suite::skipped("miri", &[ONCE, SEEDED].concat(), &lack);
        return Ok(());
    }
    let found = suite::check_planted(BUGS, |bug| {
        let run = "miri run --quiet --manifest-path planted/Cargo.toml --";
        miri(run, "").arg(bug)
    })?;
    let once = suite::run_in_pairs(ONCE, |_| miri("miri test", ""))?;
    let seeded = suite::run(SEEDED, |_| miri("miri test", SEEDS))?;
    println!("miri: {found}; {once}; with 4 seeds each, {seeded}");
    Ok(())
}

fn miri(line: &str, more: &str) -> Cmd {
    let target = target_dir().join("miri");
    toolchains::cargo(line)
        .env("MIRIFLAGS", format!("{FLAGS} {more}").trim())
        // Interpreting the code that prints a backtrace would take seconds for each test that should panic.
        .env("RUST_BACKTRACE", "0")
        .env("CARGO_TARGET_DIR", target.to_string_lossy())
}
