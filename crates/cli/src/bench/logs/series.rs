//! Logs of rates and of latencies: a line for each I/O, or for each window of time and direction.

use super::file::Sink;
use super::{Unit, about, about_window, window};
use blkmq_core::Nanos;
use blkmq_lab::workload::{Completed, Logs};

/// A log of bandwidth or of I/Os.
pub(super) struct Rates {
    sink: Sink,
    logs: Logs,
    unit: Unit,
    /// The window that is being counted.
    window: u64,
    /// Bytes or I/Os in it, by direction.
    done: [u64; 3],
}

impl Rates {
    pub(super) fn new(sink: Sink, logs: &Logs, unit: Unit) -> Self {
        Self { sink, logs: logs.clone(), unit, window: 0, done: [0; 3] }
    }

    pub(super) fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    pub(super) fn record(&mut self, io: &Completed) {
        let amount = if self.unit == Unit::Bytes { io.bytes } else { 1 };
        if self.logs.avg == Nanos::ZERO {
            let value = match self.unit {
                // As fio has it for single I/Os: thousands of bytes in the second.
                Unit::Bytes => io.bytes.saturating_mul(1_000_000) / io.clat.0.max(1),
                Unit::Ios => 1,
            };
            let about = about(io, &self.logs);
            return self.sink.line(format_args!("{}, {value}, {about}", self.sink.time(io.at)));
        }
        let at = window(io.at, self.logs.avg);
        if at > self.window {
            self.close(self.logs.avg);
            self.window = at;
        }
        self.done[io.direction as usize] += amount;
    }

    /// Writes the present window, which lasted `length`. A direction without I/Os gets no line.
    fn close(&mut self, length: Nanos) {
        let end = Nanos(self.window * self.logs.avg.0 + length.0);
        let unit = if self.unit == Unit::Bytes { 1024 } else { 1 };
        for (direction, done) in std::mem::take(&mut self.done).into_iter().enumerate() {
            if done > 0 {
                let per_second = u128::from(done) * 1_000_000_000 / u128::from(length.0.max(1));
                let about = about_window(direction, &self.logs);
                let line = (self.sink.time(end), per_second / unit);
                self.sink.line(format_args!("{}, {}, {about}", line.0, line.1));
            }
        }
    }

    /// The last window counts if at least half of it has passed: the rate of a few I/Os in a short time is meaningless.
    pub(super) fn end(&mut self, at: Nanos) {
        let length = self.logs.avg;
        let passed = Nanos(at.0.saturating_sub(self.window * length.0)).min(length);
        if length > Nanos::ZERO && passed.0 * 2 >= length.0 {
            self.close(passed);
        }
    }
}

/// A log of one kind of latency.
pub(super) struct Latencies {
    sink: Sink,
    logs: Logs,
    window: u64,
    /// By direction.
    seen: [Seen; 3],
}

/// The latencies of a window.
#[derive(Clone, Copy, Default)]
struct Seen {
    count: u64,
    sum: u128,
    max: u64,
}

impl Latencies {
    pub(super) fn new(sink: Sink, logs: &Logs) -> Self {
        Self { sink, logs: logs.clone(), window: 0, seen: [Seen::default(); 3] }
    }

    pub(super) fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    pub(super) fn record(&mut self, io: &Completed, value: Nanos) {
        if self.logs.avg == Nanos::ZERO {
            let about = about(io, &self.logs);
            return self.sink.line(format_args!("{}, {}, {about}", self.sink.time(io.at), value.0));
        }
        let at = window(io.at, self.logs.avg);
        if at > self.window {
            self.close(Nanos((self.window + 1) * self.logs.avg.0));
            self.window = at;
        }
        let seen = &mut self.seen[io.direction as usize];
        seen.count += 1;
        seen.sum += u128::from(value.0);
        seen.max = seen.max.max(value.0);
    }

    fn close(&mut self, end: Nanos) {
        for (direction, seen) in std::mem::take(&mut self.seen).into_iter().enumerate() {
            if seen.count > 0 {
                let mean = seen.sum / u128::from(seen.count);
                let value = if self.logs.max_value { u128::from(seen.max) } else { mean };
                let about = about_window(direction, &self.logs);
                self.sink.line(format_args!("{}, {value}, {about}", self.sink.time(end)));
            }
        }
    }

    pub(super) fn end(&mut self, at: Nanos) {
        if self.logs.avg > Nanos::ZERO {
            self.close(at.min(Nanos((self.window + 1) * self.logs.avg.0)));
        }
    }
}
