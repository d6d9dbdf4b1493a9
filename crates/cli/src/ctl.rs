//! The command `blkmq ctl`: looks at a running server, and changes it.

pub mod args;
pub mod biolatency;
mod recording;
pub mod stat;
pub mod sys;
mod text;

use crate::error::Failure;
use crate::terminal;
use args::{Asked, KernelForm, Wanted};
use biolatency::Choice;
use blkmq_server::control::{Answer, Request, Stat, call};
use std::time::Duration;

/// Asks the server, and shows its answer. What goes on ends when `say` returns false: there is no reader any more.
///
/// # Errors
/// If no server answers, or it refuses.
pub fn run(wanted: &Wanted, say: impl Fn(&str) -> Result<bool, Failure>) -> Result<(), Failure> {
    match &wanted.asked {
        Asked::One(request) => say(&shown(wanted, &ask(wanted, request)?)).map(drop),
        Asked::Kernel(form) => say(&in_kernel_form(wanted, *form)?).map(drop),
        Asked::Biolatency { every, count, choice } => {
            biolatency(wanted, (*every, *count), *choice, say)
        }
        Asked::Recording(recorded) => recording::run(&wanted.socket, recorded, wanted.json, say),
        Asked::Stat { every, count } => stat(wanted, *every, *count, say),
    }
}

fn ask(wanted: &Wanted, request: &Request) -> Result<Answer, Failure> {
    let answer = call(&wanted.socket, request);
    match answer.map_err(|e| Failure::Serve(format!("{}: {e}", wanted.socket.display())))? {
        Answer::Refused(why) => Err(Failure::Serve(why)),
        answer => Ok(answer),
    }
}

fn shown(wanted: &Wanted, answer: &Answer) -> String {
    if wanted.json {
        text::json(answer)
    } else {
        terminal::shown(&text::of(answer, terminal::width())).into_owned()
    }
}

/// The counts at this moment.
fn counts(wanted: &Wanted) -> Result<Stat, Failure> {
    match ask(wanted, &Request::Stat)? {
        Answer::Stat(stat) => Ok(stat),
        other => Err(Failure::Serve(format!("the server is of another version: {other:?}"))),
    }
}

/// A line for each device, or with `--json` the fields of each.
fn in_kernel_form(wanted: &Wanted, form: KernelForm) -> Result<String, Failure> {
    let devices = counts(wanted)?.devices;
    if wanted.json {
        let fields = devices.iter().map(|device| match form {
            KernelForm::Stat | KernelForm::Diskstats => sys::fields(device).to_vec(),
            KernelForm::Inflight => device.in_flight.to_vec(),
        });
        return Ok(text::json(&fields.collect::<Vec<_>>()));
    }
    let lines = (1..).zip(&devices).map(|(number, device)| match form {
        KernelForm::Stat => sys::stat(device),
        KernelForm::Diskstats => sys::diskstats(number, device),
        KernelForm::Inflight => sys::inflight(device),
    });
    Ok(lines.collect())
}

/// Histograms of devices for each interval.
fn biolatency(
    wanted: &Wanted,
    (every, count): (Duration, u32),
    choice: Choice,
    say: impl Fn(&str) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let mut before = counts(wanted)?;
    for _ in 0..count {
        std::thread::park_timeout(every);
        let now = counts(wanted)?;
        let pairs = before.devices.iter().zip(&now.devices);
        let all: Vec<_> = pairs
            .flat_map(|(old, new)| biolatency::between(&new.name, &old.stages, &new.stages, choice))
            .collect();
        if !say(&if wanted.json { text::json(&all) } else { biolatency::text(&all) })? {
            break;
        }
        before = now;
    }
    Ok(())
}

/// A table for each interval, from the counts at its ends.
fn stat(
    wanted: &Wanted,
    every: Duration,
    count: u32,
    say: impl Fn(&str) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let mut before = counts(wanted)?;
    for _ in 0..count {
        std::thread::park_timeout(every);
        let now = counts(wanted)?;
        let rates = stat::between(&before, &now);
        let text = if wanted.json {
            text::json(&rates)
        } else {
            terminal::shown(&stat::text(&rates, terminal::width())).into_owned()
        };
        if !say(&text)? {
            break;
        }
        before = now;
    }
    Ok(())
}
