//! The measured quantities, with their units and their format for people.

use crate::report::number::{count, nanos, percent};

/// A quantity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Metric {
    /// I/Os per second.
    Iops,
    /// Share of the threads' time that was spent waiting for the lock of an elevator, 0 to 1.
    Waiting,
    /// CPU time of all threads per I/O, in nanoseconds.
    CpuPerIo,
    /// Requests in a thousand that reached the device before a request that the elevator had picked earlier.
    Inversions,
    /// Share of the I/Os that needed no request of their own, 0 to 1.
    Merged,
    /// Bytes in a request, on average.
    RequestSize,
    /// Wake-ups delivered per I/O.
    Kicks,
    /// Completion latency that 99 % of the I/Os do not exceed, in nanoseconds.
    P99,
}

impl Metric {
    /// The heading in a table.
    pub fn heading(self) -> &'static str {
        match self {
            Self::Iops => "IOPS",
            Self::Waiting => "waiting",
            Self::CpuPerIo => "CPU/IO",
            Self::Inversions => "inverted",
            Self::Merged => "merged",
            Self::RequestSize => "KiB/rq",
            Self::Kicks => "kicks/IO",
            Self::P99 => "p99",
        }
    }

    /// The key in JSON, with the unit.
    pub fn key(self) -> &'static str {
        match self {
            Self::Iops => "iops",
            Self::Waiting => "waiting_share",
            Self::CpuPerIo => "cpu_ns_per_io",
            Self::Inversions => "inversions_per_1000",
            Self::Merged => "merged_share",
            Self::RequestSize => "request_bytes",
            Self::Kicks => "kicks_per_io",
            Self::P99 => "clat_p99_ns",
        }
    }

    /// An explanation for a first-time reader.
    pub fn help(self) -> &'static str {
        match self {
            Self::Iops => "I/Os per second of all threads",
            Self::Waiting => "share of the threads' time spent waiting for the lock, measured",
            Self::CpuPerIo => "CPU time of all threads per I/O",
            Self::Inversions => "requests of 1000 that overtook one picked before them",
            Self::Merged => "I/Os that needed no request of their own",
            Self::RequestSize => "KiB in a request, on average",
            Self::Kicks => "wake-ups delivered per I/O",
            Self::P99 => "99 % of the I/Os took no longer",
        }
    }

    /// Returns whether a lower value is better.
    pub fn less_is_better(self) -> bool {
        matches!(self, Self::Waiting | Self::CpuPerIo | Self::Inversions | Self::Kicks | Self::P99)
    }

    /// A value of the metric, formatted for people.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Iops => count(value),
            Self::Waiting | Self::Merged => percent(value),
            Self::CpuPerIo | Self::P99 => nanos(value),
            Self::Inversions => format!("{value:.1}"),
            Self::RequestSize => format!("{:.1}", value / 1024.0),
            Self::Kicks => format!("{value:.3}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_unit() {
        let shown = [
            (Metric::Iops, 2_311_000.0, "2.31M"),
            (Metric::Waiting, 0.936, "93.6 %"),
            (Metric::CpuPerIo, 1_234.0, "1.23 us"),
            (Metric::Inversions, 12.25, "12.2"),
            (Metric::Merged, 0.9688, "96.9 %"),
            (Metric::RequestSize, 131_072.0, "128.0"),
            (Metric::Kicks, 0.5, "0.500"),
            (Metric::P99, 5e6, "5.00 ms"),
        ];
        for (metric, value, text) in shown {
            assert_eq!(metric.show(value), text);
        }
    }
}
