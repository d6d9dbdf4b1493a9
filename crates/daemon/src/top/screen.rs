//! The terminal while `top` uses it: the alternate screen, no echo, no cursor. The terminal is restored when a
//! [`Screen`] is dropped, and before a signal ends the program.
//!
//! The program ends with its terminal even if the library that reads keys does not return: see [`Ending`].

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Color, Print, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen,
};
use crossterm::{event, execute, queue, terminal};
use nix::poll::{PollFd, PollTimeout, poll};
use signal_hook::consts::{SIGHUP, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder};
use std::time::Duration;

/// The interval at which signals are polled.
const LOOK: Duration = Duration::from_millis(100);

/// The alternate screen.
pub struct Screen {
    ending: Ending,
}

/// A command of the user, or a change of the terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
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
pub enum Line {
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
    pub fn take() -> io::Result<Self> {
        let screen = Self { ending: Ending::watch()? };
        enter()?;
        Ok(screen)
    }

    /// Returns the size: columns and lines.
    pub fn size(&self) -> (usize, usize) {
        let (width, height) = terminal::size().unwrap_or((80, 24));
        (width.into(), height.into())
    }

    /// Draws the lines from the top. Text beyond the screen is cut.
    ///
    /// # Errors
    /// If the terminal has gone.
    pub fn draw(&self, lines: &[Line]) -> io::Result<()> {
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
    pub fn wish(&self, patience: Duration) -> io::Result<Option<Wish>> {
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
struct Ending {
    due: Arc<AtomicBool>,
}

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
        Ok(Self { due })
    }

    /// Returns whether a signal has asked for the end.
    fn is_due(&self) -> bool {
        // Relaxed: no other data is published with the flag.
        self.due.load(Ordering::Relaxed)
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
