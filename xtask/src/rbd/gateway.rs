//! `blkmqd` between two tenants and an image: its settings, from the command line or from the table.

use crate::Result;
use crate::ceph::Cluster;
use crate::nbd::Server;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    /// As `--scheduler` takes it.
    pub(crate) scheduler: String,
    /// `--device-depth`; 0 is no limit.
    pub(crate) depth: u32,
    /// Settings of the reader's export and of the flood's.
    pub(crate) exports: [String; 2],
}

/// The rates of the cluster, in I/Os a second, for which settings have placeholders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    /// `READ`: random reads of 4 KiB, 32 at a time.
    pub(crate) reads: f64,
    /// `WRITE`: the flood's writes, alone.
    pub(crate) writes: f64,
    /// `FLOOR`: six tenths of the reader's rate alone.
    pub(crate) floor: f64,
    /// `GOAL`: three times the reader's p99 alone, in microseconds.
    pub(crate) goal: f64,
}

/// The settings that are compared: SCHEDULER/DEPTH/READER/FLOOD.
///
/// mclock is configured with the rates of the cluster, and with the amount of work that may be in flight.
pub(crate) const COMPARED: &[&str] = &[
    "none",
    "none/8",
    "mq-deadline:fifo_batch=1/8",
    "bfq:low_latency=0/8/weight=1000",
    "mclock:rrandiops=READ,wrandiops=WRITE,inflight_usec=4000/0/reserve_iops=FLOOR,overcommit=1",
    "none/0/p99_read=GOAL",
];

impl Settings {
    /// SCHEDULER[/DEPTH[/READER[/FLOOD]]]; the last two are settings of exports.
    ///
    /// # Errors
    /// If the depth is no number, or there are too many parts.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut parts = text.split('/');
        let mut next = || parts.next().unwrap_or_default().to_owned();
        let (scheduler, depth, exports) = (next(), next(), [next(), next()]);
        let depth = if depth.is_empty() { Ok(0) } else { depth.parse() };
        match (depth, parts.next()) {
            (Ok(depth), None) if !scheduler.is_empty() => Ok(Self { scheduler, depth, exports }),
            _ => Err(format!("'{text}' is not SCHEDULER[/DEPTH[/READER[/FLOOD]]]").into()),
        }
    }

    /// Replaces the placeholders by the rates.
    pub(crate) fn with(&self, rates: Rates) -> Self {
        let Rates { reads, writes, floor, goal } = rates;
        let fill = |text: &String| {
            let text = text.replace("READ", &format!("{reads:.0}"));
            let text = text.replace("WRITE", &format!("{writes:.0}"));
            text.replace("FLOOR", &format!("{floor:.0}")).replace("GOAL", &format!("{goal:.0}"))
        };
        Self {
            scheduler: fill(&self.scheduler),
            exports: self.exports.each_ref().map(fill),
            ..*self
        }
    }

    /// The name of its row.
    pub(crate) fn name(&self) -> String {
        let mut name = format!("blkmqd, `{}`", self.scheduler);
        if self.depth > 0 {
            name.push_str(&format!(", `device-depth` {}", self.depth));
        }
        for (export, whose) in self.exports.iter().zip(["reader", "flood"]) {
            if !export.is_empty() {
                name.push_str(&format!(", {whose} `{export}`"));
            }
        }
        name
    }

    /// A server of `image`, half of it for each tenant, as `reader` and `flood`.
    ///
    /// # Errors
    /// If it does not start.
    pub(crate) fn serve(&self, cluster: &Cluster, image: &str, mib: u32) -> Result<Server> {
        let Self { scheduler, depth, exports } = self;
        let more =
            |export: &str| if export.is_empty() { String::new() } else { format!(",{export}") };
        let [reader, flood] = exports.each_ref().map(|export| more(export));
        let line = format!(
            "--device-depth={depth} --log=warn --export=reader,size={mib}m{reader} \
             --export=flood,offset={mib}m,size={mib}m{flood}"
        );
        Server::blkmq("tenants", &cluster.device(image), scheduler, &line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_filled_and_named() {
        let settings =
            Settings::parse("mclock:rrandiops=READ/8/reserve_iops=FLOOR,p99_read=GOAL/weight=10");
        let rates = Rates { reads: 900.4, writes: 1.0, floor: 55.5, goal: 1200.0 };
        let filled = settings.unwrap().with(rates);
        assert_eq!(
            filled.name(),
            "blkmqd, `mclock:rrandiops=900`, `device-depth` 8, reader `reserve_iops=56,p99_read=1200`, flood `weight=10`"
        );
        assert_eq!(Settings::parse("none").unwrap().depth, 0);
        for text in ["", "none/x", "none/1/a/b/c"] {
            assert!(Settings::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_compared_settings_are_some() {
        for text in COMPARED {
            assert!(Settings::parse(text).is_ok(), "{text}");
        }
    }
}
