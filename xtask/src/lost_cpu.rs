//! `lost-cpu`: how long requests stay in the engine while the device is idle and a thread of the queue has a CPU.
//!
//! The example of `blkmq-runtime` measures, with twice as many busy threads as CPUs; its figures are printed in a
//! table, for each scheduler and each kind of access. They are those of one machine at one time, and no figure is an
//! error.

use crate::Result;
use crate::shell::Cmd;

const HELP: &str = "usage: cargo xtask lost-cpu [SECONDS [OPTION=VALUE]...]

  SECONDS   each of the measurements, three for a scheduler, runs for so long (3)
  OPTION    of the example: end=wait lets threads sleep, compute and device are microseconds, threads and depth numbers";

const SCHEDULERS: [&str; 4] = ["none", "mq-deadline", "kyber", "bfq"];
const ACCESS: [&str; 3] = ["combining", "mutex", "spin"];
const HEAD: &str = "
Milliseconds for which an I/O lay in the engine while the device was idle and a thread of the queue ran, and the number of
those above 1: with a thread that had no CPU, or with none; with a thread whose CPU another process had (not among the
times, but for their longest); with one whose CPU the host had.

                          a second    median      p99    p99.9  longest   held   none  process longest   host";

/// `cargo xtask lost-cpu`, see [`HELP`].
///
/// # Errors
/// If the example does not build or run.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let (seconds, options) = match args {
        [] => (3, &[][..]),
        [seconds, options @ ..] if seconds != "--help" => (seconds.parse()?, options),
        _ => {
            println!("{HELP}");
            return Ok(());
        }
    };
    Cmd::new("cargo build --release -p blkmq-runtime --example lost_cpu").run()?;
    println!("{HEAD}");
    for scheduler in SCHEDULERS {
        for access in ACCESS {
            let mut example = Cmd::new(crate::shell::LOST_CPU);
            let given = [("scheduler", scheduler), ("access", access)];
            for (name, value) in given {
                example = example.arg(format!("{name}={value}"));
            }
            example = example.arg(format!("seconds={seconds}"));
            for option in options {
                example = example.arg(option);
            }
            print!("{}", example.output()?);
        }
    }
    Ok(())
}
