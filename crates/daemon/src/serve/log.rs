//! The log of the server: lines on standard error, in one of three formats.

use std::io;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{self, Format, Writer};
use tracing_subscriber::fmt::{self, FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// The form of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// Time, level, message, and `key=value`.
    #[default]
    Text,
    /// An object for each line.
    Json,
    /// For the journal, which adds times: a priority such as `<6>`, message, and `key=value`.
    Journald,
}

impl LogFormat {
    /// The names of the formats.
    pub const NAMES: [&str; 3] = ["text", "json", "journald"];

    /// The format with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Text, Self::Json, Self::Journald];
        Self::NAMES.iter().zip(all).find(|(known, _)| **known == name).map(|(_, form)| form)
    }
}

/// Changes the level of the log.
pub type SetLevel = Box<dyn Fn(LevelFilter) -> Result<(), String> + Send + Sync>;

/// Starts logging to standard error. Returns a function that changes the level.
pub fn start(level: LevelFilter, form: LogFormat) -> SetLevel {
    let (filter, handle) = tracing_subscriber::reload::Layer::new(level);
    let lines = fmt::layer().with_writer(io::stderr).with_ansi(false).with_target(false);
    let lines = match form {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
        LogFormat::Journald => lines.event_format(Journald::default()).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(lines).init();
    Box::new(move |level| handle.reload(level).map_err(|e| e.to_string()))
}

/// Prefixes lines with the priority by which the journal files them.
struct Journald(Format<format::Full, ()>);

impl Default for Journald {
    fn default() -> Self {
        Self(fmt::format().without_time().with_level(false).with_target(false).with_ansi(false))
    }
}

/// The priority, as in `<syslog.h>`.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

impl<S, N> FormatEvent<S, N> for Journald
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_has_a_name() {
        for name in LogFormat::NAMES {
            assert!(LogFormat::named(name).is_some(), "{name}");
        }
        assert_eq!(LogFormat::named("syslog"), None);
    }

    #[test]
    fn the_journal_gets_priorities_of_syslog() {
        let all = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG];
        assert_eq!(all.map(priority), [3, 4, 6, 7]);
    }
}
