//! Traces of a running server: blkparse and btt read them from a pipe, and their counts are those of fio and of
//! `blkmqctl stat`. A log of the scheduler is replayed with the same decisions.

use super::super::Outcome;
use crate::Result;
use crate::fio;
use crate::nbd::Server;
use crate::shell::{BLKMQ, BLKMQCTL, Cmd, is_installed};
use std::fs::{File, read_to_string};
use std::process::Child;

const DEVICE: &str = "null,irqmode=2,completion_nsec=200000,gb=1";
/// The load of each export, its I/Os, and the bytes of one.
const LOADS: [(&str, &str, u64, u64); 2] = [
    ("gold", "--rw=randread --bs=4k --iodepth=8 --number_ios=6000", 6000, 4096),
    ("rest", "--rw=write --bs=8k --iodepth=16 --number_ios=4000", 4000, 8192),
];

fn ctl(server: &Server, words: &str) -> Cmd {
    Cmd::new(&format!("{BLKMQCTL} --socket={} {words}", server.path("socket.control").display()))
}

/// Runs the loads, with a switch of the scheduler between them if there is one.
fn load(server: &Server, switch: Option<&str>) -> Result<()> {
    for (number, (export, load, ios, _)) in (0..).zip(LOADS) {
        if let Some(scheduler) = switch.filter(|_| number == 1) {
            server.ctl(&format!("switch {scheduler}"))?;
        }
        let options = format!("{load} --size=64m --norandommap");
        let figures = fio::run(&server.uri(export), &server.path(export), &options)?;
        if figures.ios != ios {
            return Err(format!("fio did {} I/Os for {ios}", figures.ios).into());
        }
    }
    Ok(())
}

/// Ends a recording as Ctrl-C does, and returns its output.
pub(in crate::interop) fn interrupt(server: &Server, mut child: Child) -> Result<String> {
    Cmd::new("kill -INT").arg(child.id().to_string()).output()?;
    let status = child.wait()?;
    let said = read_to_string(server.path("said"))?;
    if status.success() { Ok(said) } else { Err(format!("{status}: {said}").into()) }
}

/// Begins an elevator log. It has begun when a second request is refused; a log in its way gets a second to end.
pub(in crate::interop) fn begin_log(server: &Server, file: &str) -> Result<Child> {
    for _ in 0..20 {
        let log = ctl(server, "elevator-log -o").arg(file);
        let mut log = log.piped(File::create(server.path("said"))?)?;
        Cmd::new("sleep 0.2").output()?;
        let other =
            ctl(server, "elevator-log -w 1 -o").arg(server.path("other").display().to_string());
        let is_busy = other.output().is_err_and(|error| error.to_string().contains("busy"));
        if is_busy && log.try_wait()?.is_none() {
            return Ok(log);
        }
        log.kill()?;
        log.wait()?;
    }
    Err("the elevator log does not begin".into())
}

/// The events of one letter in a trace as blkparse prints them: (count, bytes).
fn count(text: &str, letter: &str) -> (u64, u64) {
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of = lines.filter(|words| words.get(5) == Some(&letter));
    of.fold((0, 0), |(count, bytes), words| {
        let sectors: u64 = words.get(9).and_then(|word| word.parse().ok()).unwrap_or(0);
        (count + 1, bytes + sectors * 512)
    })
}

/// See above.
pub(in crate::interop) fn traced() -> Result<Outcome> {
    if !is_installed("btt") {
        return Ok(Outcome::Skipped("btt is not installed".into()));
    }
    let more = "--stats=always --export=gold,weight=300 --export=rest";
    let server = Server::blkmq("serve-trace", DEVICE, "mq-deadline", more)?;
    let folder = server.path("log").parent().ok_or("the server has a folder")?.to_owned();
    let mut trace = ctl(&server, "trace -o -").piped(File::create(server.path("said"))?)?;
    let pipe = trace.stdout.take().ok_or("it has a pipe")?;
    let parser = Cmd::new("blkparse -q -i - -d").arg(folder.join("t.bin").display().to_string());
    let parser = parser.start_on(pipe, File::create(server.path("parsed"))?)?;
    load(&server, Some("bfq"))?;
    let fields = server.ctl("stat --sys")?[0].clone();
    let said = interrupt(&server, trace)?;
    parser.wait_with_output()?;
    let text = read_to_string(server.path("parsed"))?;
    Cmd::new("btt -i t.bin").silent_output_in(&folder)?;
    let field = |at: usize| fields[at].as_u64().ok_or("no number");
    let done = field(0)? + field(4)?;
    let bytes = LOADS.iter().map(|(_, _, ios, bytes)| ios * bytes).sum::<u64>();
    let ios = LOADS.iter().map(|(_, _, ios, _)| ios).sum::<u64>();
    if (field(2)? + field(6)?) * 512 != bytes {
        return Err("stat has other bytes than fio".into());
    }
    for (letter, want) in [("Q", ios), ("D", done), ("C", done)] {
        let found = count(&text, letter);
        println!("{letter}: {found:?}");
        if found != (want, bytes) {
            return Err(format!(
                "{letter}: {found:?} in the trace, {want} and {bytes} bytes in fact"
            )
            .into());
        }
    }
    if !said.contains("(dropped 0)") || !text.contains("[gold]") || !text.contains("[rest]") {
        return Err(format!("dropped events, or no names: {said}").into());
    }
    logged(&server)
}

/// A log of two schedulers, one after another, is replayed with the same decisions.
fn logged(server: &Server) -> Result<Outcome> {
    let file = server.path("run.log").display().to_string();
    let log = begin_log(server, &file)?;
    load(server, Some("mq-deadline"))?;
    interrupt(server, log)?;
    let report = Cmd::new(&format!("{BLKMQ} replay {file}")).output()?;
    let same: Vec<&str> = report.lines().filter(|line| line.contains("all the same")).collect();
    same.iter().for_each(|line| println!("{line}"));
    let all = ["(bfq", "(mq-deadline"].iter().all(|name| same.iter().any(|it| it.contains(name)));
    if all { Ok(Outcome::Passed) } else { Err(format!("replayed: {report}").into()) }
}
