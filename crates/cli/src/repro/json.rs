//! The results as JSON: `experiments`, each with its `published` figures, the `rows` measured here, their
//! `timelines`, and the sentences `findings` and `limits`.
//!
//! Figures have full numbers and the unit in their keys. `ratio` is that of the claim's metric, named by `metric`,
//! relative to the first *before* with the same scheduler and setting. A figure that was not measured has no key.
//! `partial` says how many `runs` of those `planned` there are, if a `signal` has ended the measurement.

use super::findings::{findings, limits};
use super::metric::Metric;
use super::model::{Experiment, Point, Repro, Timeline};
use super::published::{Source, published};
use crate::report::model::Partial;
use crate::report::number::date;
use serde_json::{Map, Value, json};

/// The results as a JSON text that ends in a newline.
pub fn render(repro: &Repro) -> String {
    let machine = &repro.machine;
    let all = repro.experiments.iter().map(|experiment| {
        let mut value = self::experiment(experiment);
        value["limits"] = json!(limits(experiment, machine));
        value
    });
    let mut document = json!({
        "blkmq": repro.version,
        "command": repro.command,
        "timestamp_ms": repro.time_ms,
        "time": date(repro.time_ms),
        "machine": {
            "cpu_model": machine.cpu_model,
            "cores": machine.cores,
            "memory_bytes": machine.memory_bytes,
            "os": machine.os,
            "kernel": machine.kernel,
            "load_average": machine.load_average,
            "hypervisor": machine.hypervisor,
            "governor": machine.governor,
        },
        "experiments": all.collect::<Vec<_>>(),
    });
    if let Some(Partial { done, planned, signal }) = repro.partial {
        document["partial"] = json!({ "runs": done, "planned": planned, "signal": signal });
    }
    format!("{document:#}\n")
}

fn experiment(experiment: &Experiment) -> Value {
    let published = published(experiment.name);
    let rows = (0..experiment.points.len()).map(|at| row(experiment, at));
    json!({
        "name": experiment.name.word(),
        "title": published.title,
        "claim": published.claim,
        "metric": experiment.name.metric().key(),
        "less_is_better": experiment.name.metric().less_is_better(),
        "published": published.tables.iter().map(source).collect::<Vec<_>>(),
        "workload": experiment.workload,
        "rows": rows.collect::<Vec<_>>(),
        "timelines": experiment.timelines.iter().map(timeline).collect::<Vec<_>>(),
        "findings": findings(experiment),
        "notes": experiment.notes,
    })
}

fn source(source: &Source) -> Value {
    let rows = source.rows.iter().map(|row| {
        json!({
            "what": row.what,
            "metric": row.metric.key(),
            "before": row.before,
            "proposed": row.proposed,
            "ratio": row.ratio(),
        })
    });
    json!({
        "by": source.by,
        "hardware": source.hardware,
        "workload": source.workload,
        "rows": rows.collect::<Vec<_>>(),
        "remark": source.remark,
    })
}

fn row(experiment: &Experiment, at: usize) -> Value {
    let point = &experiment.points[at];
    let Point { variant, how, scheduler, setting, command, figures, range } = point;
    let figures = figures.iter().map(|(metric, value)| (metric.key().to_owned(), json!(value)));
    let mut row = json!({
        "variant": variant.key(),
        "with": how,
        "scheduler": scheduler,
        "command": command,
        "figures": figures.collect::<Map<_, _>>(),
    });
    row[setting.what] = json!(setting.value);
    if let Some(ratio) = experiment.ratio(at) {
        row["ratio"] = json!(ratio);
    }
    if let Some((low, high)) = range {
        let key = Metric::Iops.key();
        (row[format!("{key}_min")], row[format!("{key}_max")]) = (json!(low), json!(high));
    }
    row
}

fn timeline(timeline: &Timeline) -> Value {
    let calls =
        timeline.calls.iter().map(|call| json!({ "at_ns": call.at, "delay_ns": call.delay }));
    json!({
        "variant": timeline.variant.key(),
        "with": timeline.how,
        "calls": calls.collect::<Vec<_>>(),
        "passes_ns": timeline.passes,
        "answered_after_ns": timeline.answered_after(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn parsed(repro: &Repro) -> Value {
        serde_json::from_str(&render(repro)).expect("JSON")
    }

    #[test]
    fn everything_is_in_it_with_its_unit() {
        let json = parsed(&sample::both());
        assert_eq!(json["experiments"].as_array().map(Vec::len), Some(2));
        let contention = &json["experiments"][0];
        assert_eq!(
            (&contention["name"], &contention["metric"]),
            (&json!("contention"), &json!("iops"))
        );
        let expected = json!({
            "variant": "proposed", "with": "serialised", "scheduler": "mq-deadline", "threads": 4,
            "command": "blkmq bench --access=serialised --numjobs=4", "ratio": 3.0,
            "iops_min": 1_350_000.0, "iops_max": 1_650_000.000_000_000_2,
            "figures": {
                "iops": 1_500_000.0, "waiting_share": 1.0 / 3.0, "cpu_ns_per_io": 2e9 / 1.5e6
            }
        });
        assert_eq!(contention["rows"][4], expected);
        let published = &contention["published"][0]["rows"][0];
        assert_eq!((&published["before"], &published["proposed"]), (&json!(879e3), &json!(2311e3)));
        assert!(contention["limits"][0].as_str().expect("text").contains("2 cores"));
        let flag = &json["experiments"][1]["timelines"][1];
        assert_eq!(
            (&flag["answered_after_ns"], &flag["variant"]),
            (&json!(10_000_000), &json!("proposed"))
        );
        assert_eq!(flag["calls"][1], json!({ "at_ns": 1_000, "delay_ns": 10_000_000 }));
        assert_eq!(json["experiments"][1]["rows"][0]["depth"], 64);
        assert_eq!(
            (&json["time"], &json["machine"]["cores"]),
            (&json!("Sat Nov 21 11:16:37 2026"), &json!(2))
        );
    }

    #[test]
    fn any_text_survives() {
        let repro = sample::hostile();
        let json = parsed(&repro);
        assert_eq!(json["command"], repro.command.as_str());
        let how = repro.experiments[0].points[0].how.as_str();
        assert_eq!(json["experiments"][0]["rows"][0]["with"], how);
        assert_eq!(parsed(&Repro::default())["experiments"], json!([]));
    }
}
