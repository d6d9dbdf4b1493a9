//! A log of histograms of completion latency.
//!
//! Bins are those of fio: the first 128 are one nanosecond wide, and each further 64 twice as wide as the previous
//! ones. Each step of `log_hist_coarseness` joins two neighbours.

use super::file::Sink;
use super::window;
use blkmq_core::Nanos;
use blkmq_lab::workload::{Completed, Logs};

/// Bins of a group, as a shift.
const BITS: u32 = 6;
/// fio's number of bins: 29 groups.
const BINS: usize = 29 << BITS;

pub(super) struct Histograms {
    sink: Sink,
    length: Nanos,
    coarseness: u8,
    window: u64,
    /// By direction; `None` until there is an I/O of it.
    seen: [Option<Seen>; 3],
}

/// The latencies of a window.
struct Seen {
    bins: Box<[u64]>,
    count: u64,
    /// The length of the latest I/O.
    bytes: u64,
}

/// The bin of a latency.
fn bin(ns: u64) -> usize {
    let shift = (ns | 1).ilog2().saturating_sub(BITS);
    let within = (ns >> shift) as usize;
    (((shift as usize) << BITS) + within).min(BINS - 1)
}

impl Histograms {
    pub(super) fn new(sink: Sink, logs: &Logs) -> Self {
        let Logs { hist_window: length, coarseness, .. } = *logs;
        Self { sink, length, coarseness, window: 0, seen: [None, None, None] }
    }

    pub(super) fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    pub(super) fn record(&mut self, io: &Completed) {
        // As in fio, the file stays empty without log_hist_msec.
        if self.length == Nanos::ZERO {
            return;
        }
        let at = window(io.at, self.length);
        if at > self.window {
            self.close(Nanos((self.window + 1) * self.length.0));
            self.window = at;
        }
        let seen = self.seen[io.direction as usize].get_or_insert_with(|| Seen {
            bins: vec![0; BINS].into_boxed_slice(),
            count: 0,
            bytes: 0,
        });
        seen.bins[bin(io.clat.0)] += 1;
        seen.count += 1;
        seen.bytes = io.bytes;
    }

    fn close(&mut self, end: Nanos) {
        for (direction, seen) in self.seen.iter_mut().enumerate() {
            let Some(seen) = seen.as_mut().filter(|seen| seen.count > 0) else { continue };
            let joined = seen.bins.chunks(1 << self.coarseness).map(|bins| bins.iter().sum());
            let bins = Vec::from_iter(joined.map(|n: u64| n.to_string())).join(", ");
            self.sink.line(format_args!(
                "{}, {direction}, {}, {bins}",
                self.sink.time(end),
                seen.bytes
            ));
            seen.bins.fill(0);
            seen.count = 0;
        }
    }

    pub(super) fn end(&mut self, at: Nanos) {
        if self.length > Nanos::ZERO {
            self.close(at.min(Nanos((self.window + 1) * self.length.0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bins rise without a gap, and their width is at most a 64th of their values.
    #[test]
    fn bins_are_fios() {
        for ns in 0..128 {
            assert_eq!(bin(ns), ns as usize);
        }
        assert_eq!((bin(128), bin(129), bin(130), bin(255), bin(256)), (128, 128, 129, 191, 192));
        assert_eq!((bin((1 << 34) - 1), bin(1 << 34), bin(u64::MAX)), (1855, 1855, 1855));
        let mut last = 0;
        for ns in 1..100_000 {
            let at = bin(ns);
            assert!(at == last || at == last + 1, "{ns}");
            last = at;
        }
    }
}
