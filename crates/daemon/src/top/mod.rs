//! The command `blkmqctl top`: shows the devices and exports of a running server at regular intervals.
//!
//! | file | step |
//! |---|---|
//! | `rates.rs` | converts the counts at both ends of an interval to rows |
//! | `columns.rs` | converts rows to values, and these to lines that fit |
//! | `screen.rs` | draws lines, converts keys to commands, and ends the program on signals and with its terminal |
//!
//! `top` does not change the server; other commands of `blkmqctl` do.

pub mod columns;
pub mod rates;
mod screen;

use crate::serve::wanted::default_control;
use crate::{Failure, promises};
use blkmq_runtime::Clock;
use blkmq_server::control::{Answer, Request, Stat, call};
use blkmq_terminal::OutputError;
use blkmq_terminal::output::reaches;
use blkmq_terminal::page::Page;
use blkmq_terminal::paper::{Paper, push_line};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use columns::{COLUMNS, View};
use rates::Row;
use screen::{Line, Screen, Wish};
use serde_json::json;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

/// The range of intervals that keys can set, in seconds.
const INTERVALS: std::ops::RangeInclusive<u64> = 1..=60;
/// Lines of the screen besides rows: the title, a line of text, the head, the keys and a line above them.
const AROUND: usize = 5;

/// Shows the figures until it is ended.
///
/// # Errors
/// If no server answers at the beginning, or the output fails.
pub fn run(wanted: &Wanted) -> Result<(), Failure> {
    let is_dumb = std::env::var("TERM").is_ok_and(|term| term.is_empty() || term == "dumb");
    let can_draw = io::stdout().is_terminal() && io::stdin().is_terminal() && !is_dumb;
    if wanted.batch || wanted.json || !can_draw {
        return batch(wanted);
    }
    // Queried before switching screens, so that an error stays visible.
    let before = counts(wanted)?;
    let screen = Screen::take().map_err(OutputError)?;
    Top { wanted, screen, before, rows: Vec::new(), said: Vec::new(), state: State::new(wanted) }
        .run()
}

fn counts(wanted: &Wanted) -> Result<Stat, Failure> {
    let failed = |what| Failure::Server(format!("{}: {what}", wanted.socket.display()));
    match call(&wanted.socket, &Request::Stat).map_err(|e| failed(e.to_string()))? {
        Answer::Stat(stat) => Ok(stat),
        Answer::Refused(why) => Err(Failure::Server(why)),
        other => Err(failed(format!("the server is of another version: {other:?}"))),
    }
}

/// Prints a table, or a line of JSON, for each interval.
fn batch(wanted: &Wanted) -> Result<(), Failure> {
    let width =
        if io::stdout().is_terminal() { Some(blkmq_terminal::output::width()) } else { None };
    let mut before = counts(wanted)?;
    let mut done = 0;
    while wanted.count.is_none_or(|count| done < count) {
        std::thread::park_timeout(wanted.every);
        let now = counts(wanted)?;
        let rows = rates::between(&before, &now);
        let text = if wanted.json {
            let seconds = rows.first().map_or(0.0, |row| row.seconds);
            let rows: Vec<_> = rows.iter().map(columns::json).collect();
            format!("{}\n", json!({ "seconds": seconds, "rows": rows }))
        } else {
            let (head, mut lines) = wanted.view.table(&rows, width);
            let said = promises::lines(&before, &now).into_iter();
            lines.extend(said.flat_map(|line| broken(&line.text, width)));
            let gap = if done > 0 { "\n" } else { "" };
            format!("{gap}{head}\n{}\n", lines.join("\n"))
        };
        if !reaches(&blkmq_terminal::output::shown(&text))? {
            break;
        }
        before = now;
        done += 1;
    }
    Ok(())
}

/// Wraps a line to `width` columns.
fn broken(text: &str, width: Option<usize>) -> Vec<String> {
    let Some(width) = width else { return vec![text.to_owned()] };
    let mut paper = Paper::new(width);
    push_line(&mut paper, 0, text);
    paper.finish().lines().map(str::to_owned).collect()
}

/// The screen, and the figures on it.
struct Top<'a> {
    wanted: &'a Wanted,
    screen: Screen,
    before: Stat,
    rows: Vec<Row>,
    /// The lines on exports and their promises.
    said: Vec<promises::Line>,
    state: State,
}

/// The user's choices, and a message.
struct State {
    view: View,
    every: Duration,
    paused: bool,
    /// The index of the first row shown.
    top: usize,
    /// The error if the server does not answer.
    trouble: Option<String>,
    done: u32,
}

impl State {
    fn new(wanted: &Wanted) -> Self {
        let view = wanted.view.clone();
        Self { view, every: wanted.every, paused: false, top: 0, trouble: None, done: 0 }
    }
}

impl Top<'_> {
    fn run(mut self) -> Result<(), Failure> {
        let clock = Clock::start();
        let mut last = clock.now();
        self.draw()?;
        while self.wanted.count.is_none_or(|count| self.state.done < count) {
            let passed = Duration::from_nanos((clock.now() - last).0);
            let left = self.state.every.saturating_sub(passed);
            if left.is_zero() && !self.state.paused {
                last = clock.now();
                self.look();
                self.draw()?;
                continue;
            }
            let patience = if self.state.paused { Duration::MAX } else { left };
            match self.screen.wish(patience).map_err(OutputError)? {
                None => {}
                Some(Wish::Quit) => return Ok(()),
                Some(wish) => {
                    self.grant(wish);
                    self.draw()?;
                }
            }
        }
        Ok(())
    }

    /// Queries the server. If it does not answer, it is queried again at the next interval: it may be restarting.
    fn look(&mut self) {
        match counts(self.wanted) {
            Ok(now) => {
                self.rows = rates::between(&self.before, &now);
                self.said = promises::lines(&self.before, &now);
                self.before = now;
                self.state.trouble = None;
                self.state.done += 1;
            }
            Err(failure) => self.state.trouble = Some(failure.to_string()),
        }
    }

    fn grant(&mut self, wish: Wish) {
        let (width, _) = self.screen.size();
        let state = &mut self.state;
        match wish {
            Wish::Quit | Wish::Redraw => {}
            Wish::Pause => state.paused = !state.paused,
            Wish::Sort(to_the_right) => state.view.sort(width, to_the_right),
            Wish::Reverse => state.view.reversed = !state.view.reversed,
            Wish::Columns(to_the_right) => state.view.scroll(to_the_right),
            Wish::Rows(true) => state.top = (state.top + 1).min(self.rows.len().saturating_sub(1)),
            Wish::Rows(false) => state.top = state.top.saturating_sub(1),
            Wish::Interval(longer) => {
                let seconds = state.every.as_secs();
                let other = if longer { seconds + 1 } else { seconds.saturating_sub(1) };
                state.every =
                    Duration::from_secs(other.clamp(*INTERVALS.start(), *INTERVALS.end()));
            }
        }
    }

    fn draw(&self) -> Result<(), Failure> {
        let (width, height) = self.screen.size();
        let (head, rows) = self.state.view.table(&self.rows, Some(width));
        let mut lines = vec![Line::Bold(self.title()), Line::Plain(self.remark())];
        lines.push(Line::Reverse(format!("{head:width$}")));
        let said = Vec::from_iter(self.said(width));
        let room = height.saturating_sub(AROUND + said.len().min(height / 2));
        lines.extend(rows.into_iter().skip(self.state.top).take(room).map(Line::Plain));
        lines.extend(said);
        lines.truncate(height.saturating_sub(1));
        while lines.len() + 1 < height {
            lines.push(Line::Plain(String::new()));
        }
        let keys = "q quit  space pause  <> sort  r reverse  arrows move  +- interval";
        lines.push(Line::Plain(keys.to_owned()));
        Ok(self.screen.draw(&lines).map_err(OutputError)?)
    }

    /// The lines below the table.
    fn said(&self, width: usize) -> impl Iterator<Item = Line> {
        self.said.iter().flat_map(move |line| {
            let look = if line.is_bad { Line::Bad } else { Line::Plain };
            broken(&line.text, Some(width)).into_iter().map(look)
        })
    }

    fn title(&self) -> String {
        let paused = if self.state.paused { ", paused" } else { "" };
        let seconds = self.state.every.as_secs();
        format!("blkmqctl top - every {seconds} s{paused} - {}", self.wanted.socket.display())
    }

    fn remark(&self) -> String {
        if let Some(trouble) = &self.state.trouble {
            return format!("No answer: {trouble}");
        }
        if self.rows.is_empty() {
            return "The first figures come after an interval.".to_owned();
        }
        let order = if self.state.view.reversed { "smallest first" } else { "largest first" };
        let sorted = self.state.view.sorted.map(|at| COLUMNS[at].name);
        let sorted = sorted.map(|name| format!(", by {name}, {order}")).unwrap_or_default();
        let (devices, exports) = (self.before.devices.len(), self.before.exports.len());
        format!("Devices {devices}, exports {exports}{sorted}")
    }
}

const PAGE: Page = Page {
    name: "top",
    summary: "watch the devices and exports of a running server",
    description: "\
Shows what each device and export of a server does, once in an interval: the columns of iostat -x under iostat's names, \
and those that iostat cannot have. Asks over the socket for control. Without a terminal, or on a \
dumb one, it prints the table again and again.",
    examples: &[
        "blkmqctl top",
        "blkmqctl top --interval=5 --sort=q_p99",
        "blkmqctl top --once --json",
    ],
};

const NOTES: &str = "\
Columns beside those of iostat:
  state           how it fares, by the last five seconds; lines below the table give the reason
  err/s           requests that failed
  share%, due%    the part of the device's time, and the part by weight among exports with requests (bfq and mclock)
  bytes%          the part of the device's bytes
  short%          the part of its floor (reserve_iops and so on) that an export lacked while it had I/Os outstanding
  q_p50 ...       percentiles in ms of reads and writes in the queue: from the arrival to the scheduler's pick
  d_p50, t_p50    the same at the device, and of both
  flight, waiting requests at the device and before it, at the end of the interval
  conn            connections

With --json there is a line for each interval, with the names of the columns as keys.

%util is the part of the interval with a request at the device. A device that serves many at a time is not full at \
100, so depth (aqu-sz) and percentiles say more.

Keys: q quits, space pauses, < and > choose the column to sort by, r reverses, left and right move the columns, up and \
down the rows, + and - change the interval.";

/// The options of `top`.
pub struct Wanted {
    /// The socket for control.
    socket: PathBuf,
    /// The length of an interval.
    every: Duration,
    /// The number of intervals; `None` to continue until it is ended.
    count: Option<u32>,
    /// Whether to print a line of JSON for each interval.
    json: bool,
    /// Whether to print consecutive tables, even on a terminal.
    batch: bool,
    /// The sorting of rows.
    view: View,
}

/// The command.
pub fn definition() -> Command {
    let switch = |name| Arg::new(name).long(name).action(ArgAction::SetTrue);
    let names = COLUMNS.iter().map(|column| column.name);
    PAGE.command(NOTES).args([
        Arg::new("interval")
            .long("interval")
            .value_name("SECONDS")
            .value_parser(value_parser!(u32).range(1..=3600))
            .default_value("1")
            .help("the length of an interval"),
        Arg::new("count")
            .long("count")
            .value_name("N")
            .value_parser(value_parser!(u32).range(1..))
            .help("how many intervals (default: until q or a signal)"),
        switch("once").conflicts_with("count").help("one interval, as lines"),
        switch("batch").help("lines that follow one another, also on a terminal"),
        Arg::new("sort")
            .long("sort")
            .value_name("COLUMN")
            .value_parser(clap::builder::PossibleValuesParser::new(names))
            .hide_possible_values(true)
            .help("sorts the exports of a device by a column, largest first"),
    ])
}

impl Wanted {
    /// Converts the arguments that clap has parsed.
    pub fn of(found: &ArgMatches) -> Self {
        let once = found.get_flag("once");
        let seconds = found.get_one::<u32>("interval").copied().unwrap_or(1);
        let sorted = found.get_one::<String>("sort").and_then(|name| View::column(name));
        Self {
            socket: found.get_one::<PathBuf>("socket").cloned().unwrap_or_else(default_control),
            every: Duration::from_secs(seconds.into()),
            count: if once { Some(1) } else { found.get_one("count").copied() },
            json: found.get_flag("json"),
            batch: once || found.get_flag("batch"),
            view: View { sorted, ..View::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::args::everywhere;

    fn wanted(line: &str) -> Result<Wanted, String> {
        let program = Command::new("blkmqctl").args(everywhere()).subcommand(definition());
        let found = program.try_get_matches_from(["blkmqctl"].into_iter().chain(line.split(' ')));
        let wanted = |found: ArgMatches| Wanted::of(found.subcommand().expect("top").1);
        found.map(wanted).map_err(|e| e.to_string())
    }

    #[test]
    fn options_are_understood() {
        let all =
            wanted("top --socket=x --interval=5 --count=3 --sort=q_p99 --json").expect("fine");
        assert_eq!((all.every, all.count, all.json), (Duration::from_secs(5), Some(3), true));
        assert_eq!(
            (all.socket.as_os_str(), all.view.sorted),
            ("x".as_ref(), View::column("q_p99"))
        );
        let once = wanted("top --once").expect("fine");
        assert_eq!((once.count, once.batch), (Some(1), true));
        assert_eq!(wanted("top").expect("fine").count, None);
    }

    #[test]
    fn a_column_that_is_not_there_is_refused() {
        let refused = wanted("top --sort=q_p98").err().expect("no such column");
        assert!(refused.contains("q_p99"), "{refused}");
        assert!(wanted("top --once --count=2").is_err());
        assert!(wanted("top --interval=0").is_err());
    }
}
