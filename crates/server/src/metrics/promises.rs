//! The metrics of promises: the condition of exports, their goals, floors and ceilings, and the bounds that goals
//! impose on others.

use super::writer::{Kind, Value, Writer};
use crate::figures::{DeviceStat, ExportStat, GoalStat, State};

/// A family of a goal.
type GoalFamily = (&'static str, Kind, &'static str, fn(&GoalStat) -> Value);

const GOALS: [GoalFamily; 5] = [
    ("blkmq_export_goal_seconds", Kind::Gauge, "The target of a latency goal.", |it| {
        Value::Nanos(it.target)
    }),
    (
        "blkmq_export_goal_p99_seconds",
        Kind::Gauge,
        "The 99th percentile in the last window of a goal that was judged.",
        |it| Value::Nanos(it.p99),
    ),
    ("blkmq_export_goal_windows", Kind::Counter, "Windows of a goal that were judged.", |it| {
        Value::Count(it.windows)
    }),
    ("blkmq_export_goal_missed", Kind::Counter, "Those of them in which it was missed.", |it| {
        Value::Count(it.missed)
    }),
    ("blkmq_export_goal_infeasible", Kind::Gauge, "1 while a goal is given up.", |it| {
        Value::Count((it.state == "infeasible").into())
    }),
];

pub(super) fn exports(out: &mut Writer, exports: &[ExportStat]) {
    out.family("blkmq_export_state", Kind::Gauge, "1 for the state of an export.");
    for export in exports {
        for state in State::ALL {
            let labels = [("export", export.name.as_str()), ("state", state.name())];
            out.sample(&labels, Value::Count((export.condition.state == state).into()));
        }
    }
    out.family(
        "blkmq_export_device_seconds",
        Kind::Counter,
        "Device time that an export is charged with: its share is its part of the sum.",
    );
    for export in exports {
        out.sample(&[("export", &export.name)], Value::Nanos(export.charged));
    }
    for (family, kind, help, of) in GOALS {
        out.family(family, kind, help);
        for export in exports {
            for goal in &export.goals {
                out.sample(&[("export", &export.name), ("goal", &goal.word)], of(goal));
            }
        }
    }
    out.family(
        "blkmq_export_setting",
        Kind::Gauge,
        "Ceilings and floors that are set, by their word: I/Os, bytes or percent, in a second.",
    );
    for export in exports {
        for (word, value) in settings(export) {
            out.sample(&[("export", &export.name), ("word", word)], Value::Count(value));
        }
    }
}

/// The ceilings and floors of an export.
fn settings(export: &ExportStat) -> impl Iterator<Item = (&str, u64)> {
    let words = export.max.split_whitespace().chain(export.promise.split_whitespace());
    let pairs = words.filter_map(|word| word.split_once('='));
    let is_rate = |word: &str| ["iops", "bps", "percent"].iter().any(|end| word.ends_with(end));
    let set = pairs.filter(move |(word, _)| is_rate(word));
    set.filter_map(|(word, value)| Some((word, value.parse().ok().filter(|it| *it > 0)?)))
}

pub(super) fn disks(out: &mut Writer, devices: &[(&str, &DeviceStat)]) {
    out.family(
        "blkmq_disk_stuck",
        Kind::Gauge,
        "1 while a device keeps requests and answers none.",
    );
    for (name, device) in devices {
        let is_stuck = device.condition.state == State::Stuck;
        out.sample(&[("device", name)], Value::Count(is_stuck.into()));
    }
    out.family(
        "blkmq_disk_goal_bound",
        Kind::Gauge,
        "Bounds on exports without a goal for the goals of others: bytes of a request (length), requests at the device \
         (depth), bytes a second by weight.",
    );
    for (name, device) in devices {
        for (what, bound) in &device.bounded {
            out.sample(&[("device", name), ("of", what)], Value::Count(*bound));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_are_set_have_values() {
        let export = ExportStat {
            max: "rbps=max wbps=1000 riops=500 wiops=max burst=2 burst_length=1s".into(),
            promise: "reserve_iops=200 limit_iops=0 p99_read=80ms overcommit=1".into(),
            ..ExportStat::default()
        };
        let found = Vec::from_iter(settings(&export));
        assert_eq!(found, [("wbps", 1000), ("riops", 500), ("reserve_iops", 200)]);
    }
}
