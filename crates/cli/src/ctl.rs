//! The command `blkmq ctl`: looks at a running server, and changes it.

pub mod args;
mod stat;
mod text;

use crate::error::Failure;
use crate::terminal;
use args::{Asked, Wanted};
use blkmq_server::control::{Answer, Request, call};
use std::time::Duration;

/// Asks the server, and shows its answer.
///
/// # Errors
/// If no server answers, or it refuses.
pub fn run(wanted: &Wanted, say: impl Fn(&str) -> Result<(), Failure>) -> Result<(), Failure> {
    match &wanted.asked {
        Asked::One(request) => say(&shown(wanted, &ask(wanted, request)?)),
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

/// A table for each interval, from the counts at its ends.
fn stat(
    wanted: &Wanted,
    every: Duration,
    count: u32,
    say: impl Fn(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let counts = || match ask(wanted, &Request::Stat)? {
        Answer::Stat(stat) => Ok(stat),
        other => Err(Failure::Serve(format!("the server is of another version: {other:?}"))),
    };
    let mut before = counts()?;
    for _ in 0..count {
        std::thread::park_timeout(every);
        let now = counts()?;
        let rates = stat::between(&before, &now);
        say(&if wanted.json {
            text::json(&rates)
        } else {
            terminal::shown(&stat::text(&rates, terminal::width())).into_owned()
        })?;
        before = now;
    }
    Ok(())
}
