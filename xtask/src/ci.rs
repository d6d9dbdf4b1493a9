//! `ci`: all checks that must pass before a change is taken, cheapest first.

use crate::shell::{Cmd, build_program_ahead, cpu_of_programs, timed};
use crate::{
    Result, aarch64, api, bench, deny, fuzz, interop, loom, miri, orderings, outside, publish,
    sanitize, shuttle, soak, tidy,
};
use std::time::Duration;

/// A named part of the whole.
struct Step {
    name: &'static str,
    run: fn() -> Result<()>,
}

/// Steps that need the program as it is measured.
const NEED_PROGRAM: [&str; 4] = ["soak", "bench", "instructions", "interop"];
/// How long the soak runs.
const SOAK_MINUTES: u64 = 1;

/// Builds the library as a program that does I/O has it, and runs the tests of threads and files on that.
fn product() -> Result<()> {
    Cmd::new("cargo clippy -p blkmq -- -D warnings").run()?;
    let passed = Cmd::new("cargo test -p blkmq-runtime -p blkmq-uring").run_tests()?;
    println!("product: {passed} tests passed");
    Ok(())
}

const STEPS: &[Step] = &[
    Step {
        name: "test",
        run: || {
            let passed = Cmd::new("cargo test --workspace").run_tests()?;
            println!("test: {passed} tests passed");
            Ok(())
        },
    },
    Step {
        name: "clippy",
        run: || Cmd::new("cargo clippy --workspace --all-targets -- -D warnings").run(),
    },
    // Without the comparison modes, which the tests of the workspace have.
    Step { name: "product", run: product },
    Step { name: "fmt", run: || Cmd::new("cargo fmt --all -- --check").run() },
    Step {
        name: "doc",
        run: || {
            let cmd = Cmd::new("cargo doc --workspace --no-deps");
            cmd.env("RUSTDOCFLAGS", "-Dwarnings").run()
        },
    },
    Step { name: "tidy", run: || tidy::main(&[]) },
    Step { name: "deny", run: || deny::main(&[]) },
    Step { name: "api", run: || api::main(&[]) },
    Step { name: "outside", run: || outside::main(&[]) },
    Step { name: "package", run: || publish::package(&[]) },
    Step { name: "msrv", run: || publish::msrv(&[]) },
    Step { name: "loom", run: || loom::main(&[]) },
    Step { name: "orderings", run: || orderings::main(&[]) },
    Step { name: "shuttle", run: || shuttle::main(&[]) },
    Step { name: "miri", run: || miri::main(&[]) },
    Step { name: "tsan", run: sanitize::thread },
    Step { name: "asan", run: sanitize::address },
    Step { name: "aarch64", run: || aarch64::main(&[]) },
    Step { name: "fuzz", run: || fuzz::main(&[]) },
    // The soak runs as many seeds as fit, so that a machine of two cores takes no longer.
    Step { name: "soak", run: || soak::for_minutes(SOAK_MINUTES) },
    // Benchmarks run small, so that they cannot rot. Nothing is gated on their figures.
    Step { name: "bench", run: || bench::main(&["--test-size".to_owned()]) },
    Step { name: "instructions", run: || bench::main(&["--instructions".to_owned()]) },
    Step { name: "interop", run: || interop::main(&[]) },
];

/// `cargo xtask ci [--skip STEP]... [STEP]...`
///
/// # Errors
/// At the first step that fails, or if a step is unknown.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let mut times: Vec<(&str, Duration, f64)> = Vec::new();
    let steps = select(args)?;
    let is_needed = steps.iter().any(|step| NEED_PROGRAM.contains(&step.name));
    let _ahead = is_needed.then(build_program_ahead).transpose()?;
    for step in steps {
        println!("\n== {}", step.name);
        let before = cpu_of_programs();
        let (result, time) = timed(step.run);
        result.map_err(|error| format!("{} failed after {time:.1?}: {error}", step.name))?;
        println!("== {} passed in {time:.1?}", step.name);
        times.push((step.name, time, cpu_of_programs() - before));
    }
    println!();
    for (name, time, cpu) in &times {
        println!("{name:<12}{:>8.1} s {cpu:>8.1} s of CPU time", time.as_secs_f64());
    }
    let total: Duration = times.iter().map(|(_, time, _)| time).sum();
    println!("{:<12}{:>8.1} s, {} steps passed", "ci", total.as_secs_f64(), times.len());
    Ok(())
}

/// The steps to run, always in the order of the table.
fn select(args: &[String]) -> Result<Vec<&'static Step>> {
    let (mut wanted, mut skipped) = (Vec::new(), Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let (name, list) = if arg == "--skip" {
            (args.next().ok_or("--skip needs the name of a step")?, &mut skipped)
        } else {
            (arg, &mut wanted)
        };
        if STEPS.iter().all(|step| step.name != name) {
            let names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
            return Err(format!("no step {name}; there are {}", names.join(", ")).into());
        }
        list.push(name.as_str());
    }
    let is_chosen =
        |name: &str| (wanted.is_empty() || wanted.contains(&name)) && !skipped.contains(&name);
    let steps: Vec<&Step> = STEPS.iter().filter(|step| is_chosen(step.name)).collect();
    if steps.is_empty() { Err("no step is left to run".into()) } else { Ok(steps) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(args: &[&str]) -> Vec<&'static str> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        select(&args).unwrap().iter().map(|step| step.name).collect()
    }

    #[test]
    fn steps_can_be_named_and_skipped() {
        assert_eq!(names(&[]).len(), STEPS.len());
        assert_eq!(names(&["tidy", "fmt"]), ["fmt", "tidy"]);
        assert_eq!(names(&["--skip", "test"])[0], "clippy");
    }

    #[test]
    fn running_nothing_is_an_error() {
        let args = ["tidy", "--skip", "tidy"].map(str::to_owned);
        assert!(select(&args).is_err());
    }

    #[test]
    fn an_unknown_step_is_an_error_that_lists_the_steps() {
        let error = select(&["lint".to_owned()]).err().unwrap().to_string();
        assert!(error.contains("clippy") && error.contains("interop"), "{error}");
        assert!(select(&["--skip".to_owned()]).is_err());
    }
}
