//! Computes the figures of an interval from the counts at its ends. `columns.rs` formats them.

use blkmq_server::control::{
    Condition, DeviceStat, ExportStat, Figures, Held, Stages, Stat, Times,
};
use std::collections::BTreeMap;

/// The reads and writes among the operations of [`Stages`].
const READS_AND_WRITES: usize = 2;

/// The subject of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Device,
    Export,
}

/// The growth of a device's or export's counts in an interval, and its state at the end.
#[derive(Clone, Debug)]
pub struct Row {
    pub kind: Kind,
    pub name: String,
    /// The number of the device, counted from 1.
    pub device: usize,
    /// The length of the interval in seconds.
    pub seconds: f64,
    pub figures: Figures,
    /// Times of reads and writes in the queue, at the device, and in total.
    pub times: [Times; 3],
    /// The unfinished requests at the end of the interval.
    pub held: Held,
    /// The number of failed requests.
    pub errors: u64,
    /// The condition at the end of the interval.
    pub condition: Condition,
    pub of: Of,
}

/// The figures of one kind of row.
#[derive(Clone, Debug)]
pub enum Of {
    Device {
        scheduler: String,
        flushes: u64,
        flush_time: u64,
        busy: u64,
    },
    Export {
        weight: u32,
        connections: usize,
        /// Nanoseconds for which the floor was not kept.
        short: u64,
        /// The device time charged, in nanoseconds.
        charged: u64,
        /// The share of the device's time, the share due by weight among exports with requests, and the share of the
        /// bytes.
        share: f64,
        due: f64,
        bytes: f64,
    },
}

/// The rows of the interval between two counts: each device, followed by its exports. Exports that did not exist at the
/// beginning are omitted.
pub fn between(before: &Stat, now: &Stat) -> Vec<Row> {
    let seconds = now.at.saturating_sub(before.at) as f64 / 1e9;
    let mut rows = Vec::new();
    for (number, (one, old)) in (1..).zip(now.devices.iter().zip(&before.devices)) {
        rows.push(device(number, one, old, seconds));
        let old = |name: &str| before.exports.iter().find(|old| old.name == name);
        let exports = now.exports.iter().filter(|one| one.device == number);
        let pairs = exports.filter_map(|one| old(&one.name).map(|old| (one, old)));
        let mut exports: Vec<Row> = pairs.map(|(one, old)| export(one, old, seconds)).collect();
        divide(&mut exports);
        rows.append(&mut exports);
    }
    rows
}

fn device(number: usize, now: &DeviceStat, before: &DeviceStat, seconds: f64) -> Row {
    Row {
        kind: Kind::Device,
        name: now.name.clone(),
        device: number,
        seconds,
        figures: grown(&now.figures, &before.figures),
        times: times(&now.stages, &before.stages),
        of: Of::Device {
            scheduler: now.scheduler.clone(),
            flushes: now.flushes.saturating_sub(before.flushes),
            flush_time: now.flush_time.saturating_sub(before.flush_time),
            busy: now.busy_time.saturating_sub(before.busy_time),
        },
        held: Held {
            in_flight: now.in_flight.iter().sum(),
            waiting: now.waiting,
            oldest: now.oldest,
            waited: 0,
        },
        errors: failed(&now.errors, &before.errors),
        condition: now.condition.clone(),
    }
}

fn export(now: &ExportStat, before: &ExportStat, seconds: f64) -> Row {
    let (weight, connections) = (now.weight, now.connections);
    Row {
        kind: Kind::Export,
        name: now.name.clone(),
        device: now.device,
        seconds,
        figures: grown(&now.figures, &before.figures),
        times: times(&now.stages, &before.stages),
        held: now.held,
        errors: failed(&now.errors, &before.errors),
        condition: now.condition.clone(),
        of: Of::Export {
            weight,
            connections,
            short: now.short_time.saturating_sub(before.short_time),
            charged: now.charged.saturating_sub(before.charged),
            share: 0.0,
            due: 0.0,
            bytes: 0.0,
        },
    }
}

fn failed(now: &[u64; 4], before: &[u64; 4]) -> u64 {
    now.iter().sum::<u64>().saturating_sub(before.iter().sum())
}

fn grown(now: &Figures, before: &Figures) -> Figures {
    let each = |now: &[u64; 3], before: &[u64; 3]| {
        std::array::from_fn(|at| now[at].saturating_sub(before[at]))
    };
    Figures {
        ios: each(&now.ios, &before.ios),
        bytes: each(&now.bytes, &before.bytes),
        merged: each(&now.merged, &before.merged),
        wait: each(&now.wait, &before.wait),
        service: each(&now.service, &before.service),
    }
}

fn times(now: &Stages, before: &Stages) -> [Times; 3] {
    let of = |stage: fn(&Stages) -> &[Times; 4]| {
        let pairs = stage(now).iter().zip(stage(before)).take(READS_AND_WRITES);
        sum(pairs.map(|(now, before)| now.since(before)))
    };
    [of(|it| &it.queue), of(|it| &it.device), of(|it| &it.total)]
}

fn sum(all: impl Iterator<Item = Times>) -> Times {
    let mut buckets = BTreeMap::new();
    let mut whole = Times::default();
    for times in all {
        whole.count += times.count;
        whole.sum += times.sum;
        for (end, count) in times.buckets {
            *buckets.entry(end).or_insert(0) += count;
        }
    }
    whole.buckets = buckets.into_iter().collect();
    whole
}

/// Computes the shares of the exports of one device.
fn divide(exports: &mut [Row]) {
    let moved = |row: &Row| row.figures.bytes.iter().sum::<u64>();
    // The device time used, and the weight if the export has requests.
    let claim = |row: &Row| match row.of {
        Of::Export { charged, weight, .. } => {
            let asks = charged > 0 || row.held.in_flight + row.held.waiting > 0;
            (charged, if asks { u64::from(weight) } else { 0 })
        }
        Of::Device { .. } => (0, 0),
    };
    let bytes_of_all: u64 = exports.iter().map(moved).sum();
    let claims = exports.iter().map(claim);
    let (time, weights) = claims.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    for row in exports {
        let (own, (had, weight)) = (moved(row), claim(row));
        if let Of::Export { share, due, bytes, .. } = &mut row.of {
            (*share, *due) = (part(had, time), part(weight, weights));
            *bytes = part(own, bytes_of_all);
        }
    }
}

/// Returns `part / whole`, or 0 if the whole is 0.
pub fn part(part: u64, whole: u64) -> f64 {
    if whole > 0 { part as f64 / whole as f64 } else { 0.0 }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use blkmq_server::control::State;

    /// Returns counts at two moments, 2 s apart: of two exports with weights 300 and 100, the first has read 100
    /// requests of 4 KiB and written 50, and the second has done nothing.
    pub fn two() -> [Stat; 2] {
        let times = |count, end| Times { count, sum: count * end, buckets: vec![(end, count)] };
        let mut stages = Stages::default();
        (stages.queue[0], stages.device[0]) = (times(100, 1_000_000), times(100, 3_000_000));
        (stages.total[0], stages.total[1]) = (times(100, 4_000_000), times(1, 90_000_000));
        let figures = Figures {
            ios: [100, 50, 0],
            bytes: [409_600, 51_200, 0],
            merged: [0, 150, 0],
            wait: [100_000_000, 0, 0],
            service: [300_000_000, 500_000_000, 0],
        };
        let gold = ExportStat {
            held: Held { in_flight: 2, waiting: 3, oldest: 4_000_000, waited: 3_000_000 },
            errors: [6, 0, 0, 0],
            charged: 900_000_000,
            condition: Condition { state: State::Errors, why: "6 requests failed".into() },
            name: "gold".into(),
            device: 1,
            weight: 300,
            connections: 2,
            figures,
            stages: stages.clone(),
            ..ExportStat::default()
        };
        let rest =
            ExportStat { name: "rest".into(), device: 1, weight: 100, ..ExportStat::default() };
        let disk = DeviceStat {
            oldest: 4_000_000,
            errors: [0; 4],
            name: "disk".into(),
            scheduler: "bfq".into(),
            figures,
            stages,
            flushes: 4,
            flush_time: 8_000_000,
            in_flight: [3, 1],
            busy_time: 1_000_000_000,
            waiting: 5,
            ..DeviceStat::default()
        };
        let now = Stat { at: 2_000_000_005, exports: vec![gold, rest], devices: vec![disk] };
        let empty = |one: &ExportStat| ExportStat {
            figures: Figures::default(),
            stages: Stages::default(),
            charged: 0,
            errors: [0; 4],
            ..one.clone()
        };
        let before = Stat {
            at: 5,
            exports: now.exports.iter().map(empty).collect(),
            devices: vec![DeviceStat::default()],
        };
        [before, now]
    }

    #[test]
    fn exports_stand_behind_their_device_with_their_shares() {
        let [before, now] = two();
        let rows = between(&before, &now);
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["disk", "gold", "rest"]);
        let of = |at: usize| match rows[at].of {
            Of::Export { share, due, .. } => (share, due),
            Of::Device { .. } => panic!("an export"),
        };
        assert_eq!((of(1), of(2)), ((1.0, 1.0), (0.0, 0.0)));
        assert_eq!(rows[1].times[0].quantile(0.99), Some(1_000_000));
        assert_eq!(rows[1].times[2].buckets, [(4_000_000, 100), (90_000_000, 1)]);
    }

    #[test]
    fn an_export_that_came_meanwhile_has_no_row() {
        let [mut before, now] = two();
        before.exports.remove(0);
        let rows = between(&before, &now);
        assert!(rows.iter().all(|row| row.name != "gold"));
    }
}
