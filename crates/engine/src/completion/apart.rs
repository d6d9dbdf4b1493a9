//! Failed requests that several owners share: each owner's part is repeated by itself, so that a bad sector of one
//! tenant fails no neighbour's I/O (decision 0011).
//!
//! Elevators merge adjacent I/Os of any owners, so the error of a merged request says little about each of its bios.
//! Such a request keeps its slot and its driver tag, and goes to the device again as a series of *runs*: leading bios
//! that have one owner. The bios of a run end with its result, and the request ends with its last run. A run is tried
//! once; before that, the whole request was retried as often as the queue allows.
//!
//! A request that timed out is not repeated: its runs would take as long again, one by one. Nor is one that ended
//! without the device, or a step of a flush sequence.

use crate::shared::slots::{Bio, Run};
use crate::{BioTable, Inflight};
use blkmq_core::{IoError, IoResult, Limits, Op, Tag};

/// A request that is being repeated, without the run in progress.
struct Series {
    tag: Tag,
    /// The bios behind that run, and their number; `None` if it is the last run.
    rest: Option<(Bio, u32)>,
}

/// The requests of one hardware queue that are being repeated; usually none.
#[derive(Default)]
pub(crate) struct Apart {
    series: Vec<Series>,
    /// A run has begun to wait for the device.
    is_ready: bool,
}

/// The next step for a request that has come back.
pub(crate) enum Next {
    /// The request is over.
    Over(Inflight),
    /// A run goes to the device.
    Run {
        run: Inflight,
        /// The bios of the previous run, which are over. `None` if this is the first run.
        over: Option<Bio>,
    },
}

impl Apart {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// Is the request with this tag being repeated?
    pub(crate) fn has(&self, tag: Tag) -> bool {
        self.series.iter().any(|series| series.tag == tag)
    }

    /// Has a run begun to wait for the device since the last call?
    #[inline]
    pub(crate) fn take_ready(&mut self) -> bool {
        std::mem::take(&mut self.is_ready)
    }

    /// The next step for `rq`, which has come back with this result. O(requests being repeated, bios of the next
    /// run).
    pub(crate) fn next<P>(
        &mut self,
        table: &BioTable<P>,
        limits: &Limits,
        rq: Inflight,
        result: IoResult,
    ) -> Next {
        let Some(at) = self.series.iter().position(|series| series.tag == rq.tag) else {
            return if is_worth_repeating(table, &rq, result) {
                let (run, rest) = cut(table, limits, rq);
                self.series.push(Series { tag: run.tag, rest });
                self.is_ready = true;
                Next::Run { run, over: None }
            } else {
                Next::Over(rq)
            };
        };
        let Some(rest) = self.series[at].rest.take() else {
            self.series.swap_remove(at);
            return Next::Over(rq);
        };
        let (rq, over) = rq.with_head(rest);
        let (run, rest) = cut(table, limits, rq);
        self.series[at].rest = rest;
        self.is_ready = true;
        Next::Run { run, over: Some(over) }
    }

    /// Takes out the bios that wait behind a run.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Bio> + '_ {
        self.series.drain(..).filter_map(|series| series.rest.map(|(bio, _)| bio))
    }
}

fn is_worth_repeating<P>(table: &BioTable<P>, rq: &Inflight, result: IoResult) -> bool {
    let is_partial = result.is_err_and(IoError::may_be_partial);
    is_partial && !rq.is_step() && rq.bios > 1 && rq.first_run(table).bios < rq.bios
}

/// The first run of `rq`, as a request of its own, and the bios behind it.
fn cut<P>(table: &BioTable<P>, limits: &Limits, rq: Inflight) -> (Inflight, Option<(Bio, u32)>) {
    let Run { bios, sectors } = rq.first_run(table);
    let op = rq.op();
    let all = || rq.bios(table).take(bios as usize);
    let sector = all().next().expect("a run has a first bio").sector;
    let segments = match op {
        // A discard that gathers ranges has one segment for each bio; a contiguous discard has one.
        Op::Discard if limits.max_discard_segments > 1 => u64::from(bios),
        Op::Read | Op::Write => all().map(|bio| table.segments(limits, op, &bio)).sum(),
        _ => 1,
    };
    let segments = u16::try_from(segments).expect("no more than the request had");
    rq.cut(table, sector, Run { bios, sectors }, segments)
}
