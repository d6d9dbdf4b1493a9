//! The command `blkmqctl top`: shows the devices and exports of a running server at regular intervals.
//!
//! `rates.rs` converts the counts at both ends of an interval to rows, and `columns.rs` these to values and to lines
//! that fit. [`Screen`] is the terminal while `top` uses it: the alternate screen, no echo, no cursor. It draws lines
//! and converts keys to commands. The terminal is restored when a [`Screen`] is dropped, and before a signal ends the
//! program. The program ends with its terminal even if the library that reads keys does not return: see [`Ending`].
//!
//! `top` does not change the server; other commands of `blkmqctl` do.

pub mod columns;
pub mod rates;

use crate::serve::wanted::default_control;
use crate::{Failure, option, switch};
use blkmq_runtime::Clock;
use blkmq_server::control::{Answer, Request, Stat, call};
use blkmq_terminal::OutputError;
use blkmq_terminal::output::reaches;
use blkmq_terminal::page::Page;
use blkmq_terminal::paper::{Paper, push_line};
use clap::{ArgMatches, Command, value_parser};
use columns::{COLUMNS, View};
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Color, Print, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    self, BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen,
};
use crossterm::{execute, queue};
use nix::poll::{PollFd, PollTimeout, poll};
use rates::Row;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder};
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
        thread::park_timeout(wanted.every);
        let now = counts(wanted)?;
        let rows = rates::between(&before, &now);
        let text = if wanted.json {
            let seconds = rows.first().map_or(0.0, |row| row.seconds);
            let rows: Vec<_> = rows.iter().map(columns::json).collect();
            format!("{}\n", json!({ "seconds": seconds, "rows": rows }))
        } else {
            let (head, mut lines) = wanted.view.table(&rows, width);
            let said = rates::state_lines(&before, &now).into_iter();
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
    said: Vec<rates::StateLine>,
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
                self.said = rates::state_lines(&self.before, &now);
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
    let names = COLUMNS.iter().map(|column| column.name);
    PAGE.command(NOTES).args([
        option("interval", "SECONDS")
            .value_parser(value_parser!(u32).range(1..=3600))
            .default_value("1")
            .help("the length of an interval"),
        option("count", "N")
            .value_parser(value_parser!(u32).range(1..))
            .help("how many intervals (default: until q or a signal)"),
        switch("once", "one interval, as lines").conflicts_with("count"),
        switch("batch", "lines that follow one another, also on a terminal"),
        option("sort", "COLUMN")
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
            socket: found.get_one::<PathBuf>("control").cloned().unwrap_or_else(default_control),
            every: Duration::from_secs(seconds.into()),
            count: if once { Some(1) } else { found.get_one("count").copied() },
            json: found.get_flag("json"),
            batch: once || found.get_flag("batch"),
            view: View { sorted, ..View::default() },
        }
    }
}

/// The interval at which signals are polled.
const LOOK: Duration = Duration::from_millis(100);

/// The alternate screen.
struct Screen {
    ending: Ending,
}

/// A command of the user, or a change of the terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    Quit,
    Pause,
    /// Sort by the next column: to the right if true.
    Sort(bool),
    Reverse,
    /// Scroll the columns: to the right if true.
    Columns(bool),
    /// Scroll the rows: down if true.
    Rows(bool),
    /// Change the interval: longer if true.
    Interval(bool),
    /// Draw again.
    Redraw,
}

/// A line and its style.
enum Line {
    Plain(String),
    Bold(String),
    /// The head of a table.
    Reverse(String),
    /// Something is wrong; shown in red.
    Bad(String),
}

impl Screen {
    /// Switches to the alternate screen.
    ///
    /// # Errors
    /// If standard output is not a terminal.
    fn take() -> io::Result<Self> {
        let screen = Self { ending: Ending::watch()? };
        enter()?;
        Ok(screen)
    }

    /// Returns the size: columns and lines.
    fn size(&self) -> (usize, usize) {
        let (width, height) = terminal::size().unwrap_or((80, 24));
        (width.into(), height.into())
    }

    /// Draws the lines from the top. Text beyond the screen is cut.
    ///
    /// # Errors
    /// If the terminal has gone.
    fn draw(&self, lines: &[Line]) -> io::Result<()> {
        let (width, height) = self.size();
        let mut out = io::stdout().lock();
        queue!(out, BeginSynchronizedUpdate)?;
        for (at, line) in (0_u16..).zip(lines.iter().take(height)) {
            let (text, look) = match line {
                Line::Plain(text) | Line::Bad(text) => (text, None),
                Line::Bold(text) => (text, Some(Attribute::Bold)),
                Line::Reverse(text) => (text, Some(Attribute::Reverse)),
            };
            queue!(out, MoveTo(0, at))?;
            if let Some(look) = look {
                queue!(out, SetAttribute(look))?;
            }
            if let Line::Bad(_) = line {
                queue!(out, SetForegroundColor(Color::Red))?;
            }
            queue!(out, Print(cut(text, width)), SetAttribute(Attribute::Reset))?;
            queue!(out, Clear(ClearType::UntilNewLine))?;
        }
        if lines.len() < height {
            queue!(out, MoveTo(0, lines.len() as u16), Clear(ClearType::FromCursorDown))?;
        }
        queue!(out, EndSynchronizedUpdate)?;
        out.flush()
    }

    /// Waits up to `patience` for a command.
    ///
    /// # Errors
    /// If the terminal has gone.
    fn wish(&self, patience: Duration) -> io::Result<Option<Wish>> {
        if self.ending.is_due() {
            return Ok(Some(Wish::Quit));
        }
        if !event::poll(patience.min(LOOK))? {
            return Ok(None);
        }
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                if key.code == KeyCode::Char('z') && key.modifiers == KeyModifiers::CONTROL {
                    stop()?;
                    return Ok(Some(Wish::Redraw));
                }
                Ok(wish(key))
            }
            Event::Resize(..) => Ok(Some(Wish::Redraw)),
            _ => Ok(None),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal has gone, it need not be restored.
        let _ = leave();
    }
}

fn enter() -> io::Result<()> {
    terminal::enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, Hide)
}

fn leave() -> io::Result<()> {
    execute!(io::stdout(), Show, LeaveAlternateScreen)?;
    terminal::disable_raw_mode()
}

/// Suspends the program with the terminal restored, and resumes when a shell continues it.
fn stop() -> io::Result<()> {
    leave()?;
    emulate_default_handler(SIGTSTP)?;
    enter()
}

fn wish(key: KeyEvent) -> Option<Wish> {
    let control = key.modifiers == KeyModifiers::CONTROL;
    Some(match key.code {
        KeyCode::Char('c') if control => Wish::Quit,
        _ if control => return None,
        KeyCode::Char('q') | KeyCode::Esc => Wish::Quit,
        KeyCode::Char(' ' | 'p') => Wish::Pause,
        KeyCode::Char('>' | 's') => Wish::Sort(true),
        KeyCode::Char('<' | 'S') => Wish::Sort(false),
        KeyCode::Char('r') => Wish::Reverse,
        KeyCode::Right => Wish::Columns(true),
        KeyCode::Left => Wish::Columns(false),
        KeyCode::Down => Wish::Rows(true),
        KeyCode::Up => Wish::Rows(false),
        KeyCode::Char('+') => Wish::Interval(true),
        KeyCode::Char('-') => Wish::Interval(false),
        _ => return None,
    })
}

/// The beginning of a text, at most `width` columns wide.
fn cut(text: &str, width: usize) -> &str {
    let mut taken = 0;
    for (at, c) in text.char_indices() {
        taken += unicode_width::UnicodeWidthChar::width(c).unwrap_or(0);
        if taken > width {
            return &text[..at];
        }
    }
    text
}

/// How long the main thread has to restore the terminal after a signal: ten polls of the flag.
const GRACE: Duration = Duration::from_secs(1);

/// Ends `top` on SIGTERM, on SIGHUP, and when its terminal hangs up.
///
/// Normally the main thread polls a flag and ends cleanly. It may be stuck: crossterm loops for ever on a terminal that
/// has hung up, and output to a stopped terminal (Ctrl-S) blocks. Then the threads of this file end the program.
struct Ending(Arc<AtomicBool>);

impl Ending {
    /// Watches signals, and the terminal at standard input, until the program ends.
    ///
    /// # Errors
    /// If the system refuses handlers or threads.
    fn watch() -> io::Result<Self> {
        let due = Arc::new(AtomicBool::new(false));
        let (told, signals) = (Arc::clone(&due), Signals::new([SIGTERM, SIGHUP])?);
        Builder::new().name("signals".into()).spawn(move || end_on(signals, &told))?;
        Builder::new().name("terminal".into()).spawn(end_with_terminal)?;
        Ok(Self(due))
    }

    /// Returns whether a signal has asked for the end.
    fn is_due(&self) -> bool {
        // Relaxed: no other data is published with the flag.
        self.0.load(Ordering::Relaxed)
    }
}

fn end_on(mut signals: Signals, due: &AtomicBool) {
    for signal in signals.forever() {
        due.store(true, Ordering::Relaxed);
        // Nothing unparks this thread: if it wakes, the main thread is stuck.
        thread::park_timeout(GRACE);
        // This only sets attributes, so it does not block; the contents of the screen stay.
        let _ = terminal::disable_raw_mode();
        let _ = emulate_default_handler(signal);
    }
}

/// Ends the program when the terminal hangs up, as SIGHUP does: there is no terminal to restore. The signal itself only
/// reaches the foreground process group.
fn end_with_terminal() {
    let input = io::stdin();
    // With no requested events, poll(2) returns only for hang-ups and errors.
    let mut terminal = [PollFd::new(input.as_fd(), nix::poll::PollFlags::empty())];
    while let Err(nix::errno::Errno::EINTR) = poll(&mut terminal, PollTimeout::NONE) {}
    let _ = emulate_default_handler(SIGHUP);
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
            wanted("top --control=x --interval=5 --count=3 --sort=q_p99 --json").expect("fine");
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

    #[test]
    fn keys_are_wishes() {
        let of = |code, modifiers| wish(KeyEvent::new(code, modifiers));
        assert_eq!(of(KeyCode::Char('q'), KeyModifiers::NONE), Some(Wish::Quit));
        assert_eq!(of(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Wish::Quit));
        assert_eq!(of(KeyCode::Char('c'), KeyModifiers::NONE), None);
        assert_eq!(of(KeyCode::Char('q'), KeyModifiers::CONTROL), None);
        assert_eq!(of(KeyCode::Right, KeyModifiers::NONE), Some(Wish::Columns(true)));
    }

    #[test]
    fn a_line_is_cut_between_characters() {
        assert_eq!((cut("abc", 2), cut("abc", 3)), ("ab", "abc"));
        assert_eq!(cut("a\u{4f60}b", 2), "a");
    }
}
