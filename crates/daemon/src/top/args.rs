//! The help page of `blkmqctl top`: its options and their parsing.

use super::columns::COLUMNS;
use super::view::View;
use crate::serve::wanted::default_control;
use blkmq_terminal::page::Page;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::path::PathBuf;
use std::time::Duration;

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
    pub socket: PathBuf,
    /// The length of an interval.
    pub every: Duration,
    /// The number of intervals; `None` to continue until it is ended.
    pub count: Option<u32>,
    /// Whether to print a line of JSON for each interval.
    pub json: bool,
    /// Whether to print consecutive tables, even on a terminal.
    pub batch: bool,
    /// The sorting of rows.
    pub view: View,
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
