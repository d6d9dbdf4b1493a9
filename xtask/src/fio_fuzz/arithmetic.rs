//! Checks that the figures in a row of fio's JSON agree with each other.

use serde_json::Value;

/// A rule that a row breaks.
pub(super) struct Fault {
    pub(super) rule: &'static str,
    pub(super) text: String,
}

const DIRECTIONS: [&str; 3] = ["read", "write", "trim"];
const LATENCIES: [&str; 3] = ["slat_ns", "clat_ns", "lat_ns"];
/// The error of a histogram: 1/64 of a number, and the rounding of the report.
const BUCKET: f64 = 1.0 / 32.0;

/// The rules that `row` breaks.
pub(super) fn faults(row: &Value) -> Vec<Fault> {
    let mut faults = Faults(Vec::new());
    for direction in DIRECTIONS {
        faults.rates(direction, &row[direction]);
        faults.samples(direction, &row[direction]);
        for latency in LATENCIES {
            faults.latency(direction, latency, &row[direction]);
        }
        faults.parts(direction, &row[direction]);
    }
    faults.shares(row);
    faults.0
}

struct Faults(Vec<Fault>);

fn number(of: &Value) -> f64 {
    of.as_f64().unwrap_or(f64::NAN)
}

impl Faults {
    fn expect(&mut self, holds: bool, rule: &'static str, text: impl FnOnce() -> String) {
        if !holds {
            self.0.push(Fault { rule, text: text() });
        }
    }

    /// Bytes and I/Os by the runtime, which is rounded to milliseconds.
    fn rates(&mut self, direction: &str, of: &Value) {
        let [bytes, kbytes, bw_bytes, bw, iops, runtime, ios] =
            ["io_bytes", "io_kbytes", "bw_bytes", "bw", "iops", "runtime", "total_ios"]
                .map(|key| number(&of[key]));
        let shown = || {
            format!(
                "{direction}: {bytes} bytes, {kbytes} KiB, {ios} I/Os, {runtime} ms, {bw_bytes} B/s, {bw} KiB/s, {iops} IOPS"
            )
        };
        self.expect((kbytes - bytes / 1024.0).abs() <= 1.0, "io_kbytes is io_bytes by 1024", shown);
        self.expect((bw - bw_bytes / 1024.0).abs() <= 1.0, "bw is bw_bytes by 1024", shown);
        self.expect((bytes == 0.0) == (ios == 0.0), "bytes come with I/Os", shown);
        let fits = |rate: f64, amount: f64| {
            let least = amount * 1000.0 / (runtime + 1.0) - 1.0;
            let most =
                if runtime > 1.0 { amount * 1000.0 / (runtime - 1.0) + 1.0 } else { f64::INFINITY };
            (least..=most).contains(&rate) || ios == 0.0 && rate == 0.0
        };
        self.expect(fits(bw_bytes, bytes), "bw_bytes is io_bytes by runtime", shown);
        self.expect(fits(iops, ios), "iops is total_ios by runtime", shown);
    }

    /// Averages of spans of half a second.
    fn samples(&mut self, direction: &str, of: &Value) {
        for [least, mean, most, samples] in [
            ["bw_min", "bw_mean", "bw_max", "bw_samples"],
            ["iops_min", "iops_mean", "iops_max", "iops_samples"],
        ] {
            let [low, mid, high, count] = [least, mean, most, samples].map(|key| number(&of[key]));
            let shown = || format!("{direction}: {low} <= {mid} <= {high} of {count}");
            self.expect(
                low <= mid + 1.0 && mid <= high + 1.0,
                "a mean lies between the least and the most",
                shown,
            );
            self.expect(count > 0.0 || high == 0.0, "without samples there is no most", shown);
        }
    }

    fn latency(&mut self, direction: &str, name: &str, of: &Value) {
        let [least, mean, most, deviation, count] =
            ["min", "mean", "max", "stddev", "N"].map(|key| number(&of[name][key]));
        let shown = || {
            format!(
                "{direction}.{name}: {least} <= {mid} <= {most}, {deviation}, of {count}",
                mid = mean
            )
        };
        self.expect(
            least <= mean + 1.0 && mean <= most + 1.0,
            "a latency's mean lies between its least and its most",
            shown,
        );
        self.expect(
            deviation <= most - least + 1.0,
            "a deviation is no longer than the span",
            shown,
        );
        self.expect(
            count > 0.0 || (least, mean, most) == (0.0, 0.0, 0.0),
            "no latency without a sample",
            shown,
        );
        let Some(percentiles) = of[name]["percentile"].as_object() else { return };
        let mut all = Vec::from_iter(
            percentiles.iter().map(|(key, value)| (key.parse().unwrap_or(f64::NAN), number(value))),
        );
        all.sort_by(|(a, _), (b, _)| f64::total_cmp(a, b));
        let values = Vec::from_iter(all.into_iter().map(|(_, value)| value));
        let shown = || format!("{direction}.{name}: {values:?} of {least} to {most}");
        self.expect(values.is_sorted(), "percentiles rise", shown);
        let [low, high] = [values.first(), values.last()].map(|it| it.copied().unwrap_or(0.0));
        let within = low * (1.0 + BUCKET) + 1.0 >= least && high <= most * (1.0 + BUCKET) + 1.0;
        self.expect(
            count == 0.0 || within,
            "percentiles lie between the least and the most",
            shown,
        );
    }

    /// The total latency is that of submission and that of completion.
    fn parts(&mut self, direction: &str, of: &Value) {
        let [slat, clat, lat] =
            LATENCIES.map(|name| (number(&of[name]["N"]), number(&of[name]["mean"])));
        let ios = number(&of["total_ios"]);
        let shown = || format!("{direction}: {slat:?} and {clat:?} make {lat:?} of {ios}");
        self.expect(clat.0 == 0.0 || clat.0 == ios, "each I/O has a completion latency", shown);
        self.expect(lat.0 == 0.0 || lat.0 == ios, "each I/O has a total latency", shown);
        self.expect(
            lat.0 == 0.0 || clat.0 == 0.0 || lat.1 + 1.0 >= clat.1,
            "a total latency has its completion in it",
            shown,
        );
    }

    /// Shares of all I/Os, in percent.
    fn shares(&mut self, row: &Value) {
        let sum = |name: &str| {
            row[name].as_object().map_or(0.0, |shares| shares.values().map(number).sum::<f64>())
        };
        let ios = DIRECTIONS.iter().map(|it| number(&row[*it]["total_ios"])).sum::<f64>();
        let levels = sum("iodepth_level");
        let latencies = sum("latency_ns") + sum("latency_us") + sum("latency_ms");
        let is_all =
            |share: f64| (share - 100.0).abs() <= 1.5 || (ios == 0.0 && share.abs() <= 100.5);
        self.expect(is_all(levels), "depths have all I/Os", || format!("{levels} % of {ios}"));
        self.expect(is_all(latencies), "latencies have all I/Os", || {
            format!("{latencies} % of {ios}")
        });
        let sync = &row["sync"];
        let [flushes, timed] = [number(&sync["total_ios"]), number(&sync["lat_ns"]["N"])];
        self.expect(
            timed <= flushes || timed.is_nan() || flushes.is_nan(),
            "a flush has one latency",
            || format!("{timed} of {flushes}"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row() -> Value {
        let latency = json!({ "min": 10, "max": 30, "mean": 20.0, "stddev": 5.0, "N": 100 });
        let mut completion = latency.clone();
        completion["percentile"] = json!({ "1.000000": 10, "50.000000": 20, "99.000000": 30 });
        let read = json!({
            "io_bytes": 409_600, "io_kbytes": 400, "bw_bytes": 4_096_000, "bw": 4_000, "iops": 1000.0, "runtime": 100, "total_ios": 100,
            "slat_ns": latency, "clat_ns": completion, "lat_ns": latency,
            "bw_min": 3_000, "bw_mean": 4_000.0, "bw_max": 5_000, "bw_samples": 2,
            "iops_min": 900, "iops_mean": 1_000.0, "iops_max": 1_100, "iops_samples": 2,
        });
        let none = json!({ "min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0 });
        let idle = json!({
            "io_bytes": 0, "io_kbytes": 0, "bw_bytes": 0, "bw": 0, "iops": 0.0, "runtime": 0, "total_ios": 0,
            "slat_ns": none, "clat_ns": none, "lat_ns": none,
            "bw_min": 0, "bw_mean": 0.0, "bw_max": 0, "bw_samples": 0,
            "iops_min": 0, "iops_mean": 0.0, "iops_max": 0, "iops_samples": 0,
        });
        json!({
            "read": read, "write": idle, "trim": idle, "sync": { "total_ios": 1, "lat_ns": { "N": 1 } },
            "iodepth_level": { "1": 60.0, "2": 40.0 }, "latency_ns": { "10": 100.0 }, "latency_us": {}, "latency_ms": {},
        })
    }

    fn rules(row: &Value) -> Vec<&'static str> {
        faults(row).into_iter().map(|fault| fault.rule).collect()
    }

    #[test]
    fn figures_that_fit_are_left_in_peace() {
        assert_eq!(rules(&row()), [""; 0]);
    }

    #[test]
    fn figures_that_do_not_fit_are_found() {
        let broken = |of: &[&str], value: Value| {
            let mut row = row();
            *of.iter().fold(&mut row, |row, key| &mut row[*key]) = value;
            rules(&row)
        };
        assert_eq!(broken(&["read", "io_kbytes"], json!(409)), ["io_kbytes is io_bytes by 1024"]);
        assert_eq!(broken(&["read", "iops"], json!(500.0)), ["iops is total_ios by runtime"]);
        assert_eq!(broken(&["read", "bw"], json!(4_096)), ["bw is bw_bytes by 1024"]);
        assert_eq!(
            broken(&["read", "bw_mean"], json!(1_000.0)),
            ["a mean lies between the least and the most"]
        );
        assert_eq!(
            broken(&["read", "clat_ns", "N"], json!(99)),
            ["each I/O has a completion latency"]
        );
        assert_eq!(
            broken(&["read", "clat_ns", "percentile", "1.000000"], json!(25)),
            ["percentiles rise"]
        );
        assert_eq!(
            broken(&["read", "clat_ns", "percentile", "99.000000"], json!(40)),
            ["percentiles lie between the least and the most"]
        );
        assert_eq!(
            broken(&["read", "lat_ns", "mean"], json!(15.0)),
            ["a total latency has its completion in it"]
        );
        assert_eq!(broken(&["write", "lat_ns", "max"], json!(1)), ["no latency without a sample"]);
        assert_eq!(broken(&["iodepth_level", "2"], json!(20.0)), ["depths have all I/Os"]);
        assert_eq!(broken(&["latency_ns", "10"], json!(200.0)), ["latencies have all I/Os"]);
        assert_eq!(broken(&["sync", "lat_ns", "N"], json!(2)), ["a flush has one latency"]);
    }
}
