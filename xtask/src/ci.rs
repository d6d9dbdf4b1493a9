//! `ci`: all checks that must pass before a change is accepted, cheapest first.
//!
//! Steps that build into their own folder, or run programs that earlier steps have built, run [`AT_ONCE`] at a time:
//! the compiler often has only one crate to compile, and leaves a CPU idle. Each step is a process, whose output is
//! printed when it has ended.

use crate::shell::{Apart, Cmd, build_program_ahead, cpu_of_programs, first_to_end, timed};
use crate::{
    Result, bench, deny, dist, fuzz, interop, mass, orderings, publish, soak, suite, tidy,
    toolchains,
};
use std::time::Duration;

/// A named part of CI.
struct Step {
    name: &'static str,
    run: fn() -> Result<()>,
    place: Place,
}

/// The folder into which a step builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// That of everyday commands, which one build at a time has.
    Shared,
    /// Its own folder, or the shared one only for moments, so that another step can run at the same time.
    Own,
}

impl Step {
    const fn shared(name: &'static str, run: fn() -> Result<()>) -> Self {
        Self { name, run, place: Place::Shared }
    }

    const fn own(name: &'static str, run: fn() -> Result<()>) -> Self {
        Self { name, run, place: Place::Own }
    }
}

/// The time of a step by the clock, and the CPU time of its programs in seconds.
struct Took {
    name: &'static str,
    time: Duration,
    cpu: f64,
}

/// Steps with [`Place::Own`] that run at a time; CI has two cores.
const AT_ONCE: usize = 2;

/// Steps that need the program as it is measured.
const NEED_PROGRAM: [&str; 7] =
    ["python", "clients", "documented", "bench", "instructions", "interop", "long"];
/// Minutes that must be left before an optional step, for it and the steps after it.
const NEEDED: u64 = 15;
/// How long the soak runs.
const SOAK_MINUTES: u64 = 1;

/// Programs, and words of packages and features that must not be in their builds: the first build of a new user is
/// short, and a server does not link the laboratory.
const APART: [(&str, &[&str]); 2] = [
    ("blkmq-cli", &["blkmq-server ", "rustls ", "httparse ", "tracing "]),
    ("blkmq-daemon", &["blkmq-lab ", "blkmq-cli ", "blkmq-engine feature \"compare\""]),
];

/// Builds and documents the library as a program that does I/O uses it, and runs the file tests on that build:
/// `blkmq-uring` is a crate whose tests do not need the comparison modes. Checks that the programs do not contain each
/// other's packages.
fn product() -> Result<()> {
    for (program, words) in APART {
        let tree = format!("cargo tree --locked -p {program} -e normal,features --prefix none");
        let tree = Cmd::new(&tree).output()?;
        if let Some(line) = tree.lines().find(|line| words.iter().any(|it| line.starts_with(it))) {
            return Err(format!("{program} is built with {line}").into());
        }
    }
    Cmd::new("cargo clippy -p blkmq -- -D warnings").run()?;
    document("-p blkmq -p blkmq-engine")?;
    let passed = Cmd::new("cargo test -p blkmq-uring").run_tests()?;
    println!("product: {passed} tests passed");
    Ok(())
}

fn test() -> Result<()> {
    let passed = Cmd::new("cargo test --workspace").run_tests()?;
    println!("test: {passed} tests passed");
    Ok(())
}

fn document(packages: &str) -> Result<()> {
    let cmd = Cmd::new(&format!("cargo doc {packages} --no-deps"));
    cmd.env("RUSTDOCFLAGS", "-Dwarnings").run()
}

const STEPS: &[Step] = &[
    Step::shared("test", test),
    Step::shared("clippy", || {
        Cmd::new("cargo clippy --workspace --all-targets -- -D warnings").run()
    }),
    // Without the comparison modes, which the workspace's tests enable.
    Step::shared("product", product),
    Step::shared("fmt", || Cmd::new("cargo fmt --all -- --check").run()),
    Step::shared("doc", || document("--workspace")),
    Step::shared("tidy", || tidy::main(&[])),
    Step::shared("mass", || mass::main(&[])),
    Step::shared("deny", || deny::main(&[])),
    Step::own("outside", || publish::outside(&[])),
    Step::own("api", || publish::api(&[])),
    Step::own("package", publish::pack),
    Step::own("msrv", || publish::msrv(&[])),
    Step::own("systems", || toolchains::systems(&[])),
    Step::own("loom", || suite::loom(&[])),
    Step::own("shuttle", || suite::shuttle(&[])),
    // Runs the models that `loom` has built.
    Step::own("orderings", || orderings::main(&[])),
    Step::own("miri", || suite::miri(&[])),
    Step::own("tsan", suite::thread_sanitizer),
    Step::own("asan", suite::address_sanitizer),
    Step::own("aarch64", || suite::aarch64(&[])),
    Step::own("fuzz", || fuzz::main(&[])),
    Step::own("python", || dist::python(&[])),
    // Half of their time they wait, for a guest or a cluster.
    Step::own("clients", interop::contents),
    // The soak runs as many seeds as fit, so that a machine of two cores takes no longer.
    Step::own("soak", || soak::for_minutes(SOAK_MINUTES)),
    Step::shared("instructions", || bench::main(&["--instructions".to_owned()])),
    Step::shared("documented", || suite::within(NEEDED, "documented", soak::documented)),
    // Benchmarks run small, so that they cannot rot. Nothing is gated on their figures.
    Step::shared("bench", || {
        suite::within(NEEDED, "bench", || bench::main(&["--test-size".to_owned()]))
    }),
    Step::shared("interop", interop::times),
    // Last, since they may be skipped.
    Step::shared("long", soak::in_ci),
];

/// `cargo xtask ci [--skip STEP]... [STEP]...`
///
/// # Errors
/// At the first step that fails, once the concurrent step has ended, or if a step is unknown.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let mut steps = select(args)?;
    let is_needed = steps.iter().any(|step| NEED_PROGRAM.contains(&step.name));
    let _ahead = is_needed.then(build_program_ahead).transpose()?;
    let mut all = Vec::new();
    let (took, time) = timed(|| -> Result<()> {
        while !steps.is_empty() {
            let is_own = |step: &&&Step| step.place == Place::Own;
            let own = steps.iter().take_while(is_own).count();
            if own > 1 {
                all.extend(side_by_side(&steps[..own])?);
            } else {
                all.push(one(steps[0])?);
            }
            steps.drain(..own.max(1));
        }
        Ok(())
    });
    took?;
    println!();
    for Took { name, time, cpu } in &all {
        println!("{name:<12}{:>8.1} s {cpu:>8.1} s of CPU time", time.as_secs_f64());
    }
    println!("{:<12}{:>8.1} s, {} steps passed", "ci", time.as_secs_f64(), all.len());
    Ok(())
}

/// Runs a step, with this program's output.
fn one(step: &Step) -> Result<Took> {
    let name = step.name;
    println!("\n== {name}");
    let before = cpu_of_programs();
    let (result, time) = timed(step.run);
    result.map_err(|error| format!("{name} failed after {time:.1?}: {error}"))?;
    println!("== {name} passed in {time:.1?}");
    Ok(Took { name, time, cpu: cpu_of_programs() - before })
}

/// Runs steps, [`AT_ONCE`] at a time, each in a process of its own.
fn side_by_side(steps: &[&Step]) -> Result<Vec<Took>> {
    install()?;
    let mut waiting = steps.iter();
    let mut running = Vec::new();
    let (mut all, mut failed) = (Vec::new(), Vec::new());
    loop {
        while running.len() < AT_ONCE && failed.is_empty() {
            let Some(step) = waiting.next() else { break };
            running.push(Apart::start(step.name, &["ci", step.name])?);
        }
        if running.is_empty() {
            break;
        }
        let ended = first_to_end(&mut running)?;
        print!("{}", ended.output);
        if ended.succeeded {
            all.push(Took { name: ended.name, time: ended.time, cpu: ended.cpu });
        } else {
            failed.push(ended.name);
        }
    }
    if failed.is_empty() { Ok(all) } else { Err(format!("{} failed", failed.join(", ")).into()) }
}

/// Installs the toolchains of the steps in advance, since two of them may need the same one. A step reports what its
/// machine lacks.
fn install() -> Result<()> {
    toolchains::lack()?;
    publish::api_lack()?;
    publish::msrv_lack()?;
    toolchains::systems_lack();
    suite::aarch64_lack();
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
