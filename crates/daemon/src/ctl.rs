//! The program `blkmqctl`: queries and changes a running server.

pub mod args;
pub mod biolatency;
mod recording;
pub mod stat;
pub mod sys;
mod text;
mod waits;

use crate::error::Failure;
use args::{Asked, KernelForm, Wanted};
use biolatency::Choice;
use blkmq_server::control::{Answer, Request, Saved, Stat, Waits, call};
use blkmq_terminal::screen;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Sends the request and shows the answer. Continuous output ends when `say` returns false, because its reader has
/// gone.
///
/// # Errors
/// If no server answers, or it refuses.
pub fn run(wanted: &Wanted, say: impl Fn(&str) -> Result<bool, Failure>) -> Result<(), Failure> {
    match &wanted.asked {
        Asked::One(request) => say(&shown(wanted, &ask(wanted, request)?)).map(drop),
        Asked::Save { output } => save(wanted, output.as_deref(), say),
        Asked::Kernel(form) => say(&in_kernel_form(wanted, *form)?).map(drop),
        Asked::Biolatency { every, count, choice } => {
            let shown = |before: &_, now: &_| biolatency(wanted, *choice, before, now);
            each_interval((*every, *count), || counts(wanted), shown, say)
        }
        Asked::Recording(recorded) => recording::run(&wanted.socket, recorded, wanted.json, say),
        Asked::Stat { every, count } => {
            let shown =
                |before: &_, now: &_| tabled(wanted, &stat::between(before, now), stat::text);
            each_interval((*every, *count), || counts(wanted), shown, say)
        }
        Asked::Waits { every, count } => {
            let shown =
                |before: &_, now: &_| tabled(wanted, &waits::between(before, now), waits::text);
            each_interval((*every, *count), || waits(wanted), shown, say)
        }
    }
}

fn ask(wanted: &Wanted, request: &Request) -> Result<Answer, Failure> {
    let answer = call(&wanted.socket, request);
    match answer.map_err(|e| Failure::Server(format!("{}: {e}", wanted.socket.display())))? {
        Answer::Refused(why) => Err(Failure::Server(why)),
        answer => Ok(answer),
    }
}

/// Rewrites the server's file. The replacement is atomic: readers see the old or the new text, also after a crash.
fn save(
    wanted: &Wanted,
    output: Option<&str>,
    say: impl Fn(&str) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let Answer::Saved(saved) = ask(wanted, &Request::Save)? else {
        return Err(Failure::Server("the server is of another version".to_owned()));
    };
    let Some(Saved { path, text }) = saved else { return say("nothing differs\n").map(drop) };
    if output == Some("-") {
        return say(&text).map(drop);
    }
    let path = output.map_or(path, PathBuf::from);
    let failed = |e: io::Error| Failure::Server(format!("{}: {e}", path.display()));
    replace(&path, &text).map_err(failed)?;
    say(&format!("{}: written\n", path.display())).map(drop)
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let mut file = File::create(&beside)?;
    let mut written = || {
        if let Ok(old) = path.metadata() {
            file.set_permissions(old.permissions())?;
            fchown(&file, Some(old.uid()), Some(old.gid()))?;
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    written().inspect_err(|_| drop(std::fs::remove_file(&beside)))
}

fn shown(wanted: &Wanted, answer: &Answer) -> String {
    if wanted.json {
        text::json(answer)
    } else {
        screen::shown(&text::of(answer, screen::width())).into_owned()
    }
}

/// The present counts.
fn counts(wanted: &Wanted) -> Result<Stat, Failure> {
    match ask(wanted, &Request::Stat)? {
        Answer::Stat(stat) => Ok(stat),
        other => Err(Failure::Server(format!("the server is of another version: {other:?}"))),
    }
}

/// A line for each device, or its fields as JSON.
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

/// Returns which export has waited behind which so far.
fn waits(wanted: &Wanted) -> Result<Waits, Failure> {
    match ask(wanted, &Request::Waits)? {
        Answer::Waits(waits) => Ok(waits),
        other => Err(Failure::Server(format!("the server is of another version: {other:?}"))),
    }
}

/// Shows the difference between the counts at the ends of each interval.
fn each_interval<T>(
    (every, count): (Duration, u32),
    counts: impl Fn() -> Result<T, Failure>,
    shown: impl Fn(&T, &T) -> String,
    say: impl Fn(&str) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let mut before = counts()?;
    for _ in 0..count {
        std::thread::park_timeout(every);
        let now = counts()?;
        if !say(&shown(&before, &now))? {
            break;
        }
        before = now;
    }
    Ok(())
}

/// Histograms of devices.
fn biolatency(wanted: &Wanted, choice: Choice, before: &Stat, now: &Stat) -> String {
    let pairs = before.devices.iter().zip(&now.devices);
    let all: Vec<_> = pairs
        .flat_map(|(old, new)| biolatency::between(&new.name, &old.stages, &new.stages, choice))
        .collect();
    if wanted.json { text::json(&all) } else { biolatency::text(&all) }
}

/// Shows figures as a table or as JSON.
fn tabled<T: Serialize>(wanted: &Wanted, figures: &T, text: fn(&T, usize) -> String) -> String {
    if wanted.json {
        text::json(figures)
    } else {
        screen::shown(&text(figures, screen::width())).into_owned()
    }
}
