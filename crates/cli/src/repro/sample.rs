//! Made-up results for the tests of this module: fixed figures, nothing measured.

use super::metric::Metric;
use super::model::{Call, Experiment, Point, Repro, Setting, Timeline, Variant};
use super::name::Name;
use crate::report::machine::Machine;

fn point(
    (variant, how): (Variant, &str),
    setting: Setting,
    figures: &[(Metric, f64)],
    spread: f64,
) -> Point {
    Point {
        variant,
        how: how.into(),
        scheduler: "mq-deadline".into(),
        setting,
        command: format!("blkmq bench --access={how} --numjobs={}", setting.value),
        figures: figures.to_vec(),
        range: (spread > 0.0)
            .then(|| (figures[0].1 * (1.0 - spread), figures[0].1 * (1.0 + spread))),
    }
}

/// Two and four threads in three variants.
pub fn contention() -> Experiment {
    let ways = [
        (Variant::Before, "spin"),
        (Variant::Proposed, "serialised"),
        (Variant::Ours, "combining"),
    ];
    let rates = [(2, [1e6, 2e6, 4e6]), (4, [0.5e6, 1.5e6, 4e6])];
    let mut points = Vec::new();
    for (value, rates) in rates {
        for (way, iops) in ways.into_iter().zip(rates) {
            let mut figures = vec![(Metric::Iops, iops), (Metric::CpuPerIo, 2e9 / iops)];
            if way.0 != Variant::Ours {
                figures.insert(1, (Metric::Waiting, 5e5 / iops));
            }
            points.push(point(way, Setting { what: "threads", value }, &figures, 0.1));
        }
    }
    Experiment {
        name: Name::Contention,
        workload: "random reads of 512 bytes, 4 in flight each, 1 s each".into(),
        points,
        timelines: Vec::new(),
        notes: vec!["a note".into()],
    }
}

/// One depth in three variants, and the three calls.
pub fn kick() -> Experiment {
    let ways = [
        (Variant::Before, "always", 200e3, 1.0, vec![1_500, 2_500]),
        (Variant::Proposed, "flag", 300e3, 0.25, vec![10_002_000]),
        (Variant::Ours, "coalesced", 300e3, 0.125, vec![]),
    ];
    let (mut points, mut timelines) = (Vec::new(), Vec::new());
    for (variant, how, iops, kicks, passes) in ways {
        let (setting, long) =
            (Setting { what: "depth", value: 64 }, format!("combining:kick={how}"));
        let figures = [(Metric::Iops, iops), (Metric::Kicks, kicks)];
        points.push(point((variant, &long), setting, &figures, 0.0));
        let calls = [(0, 0), (1_000, 10_000_000), (2_000, 0)].map(|(at, delay)| Call { at, delay });
        timelines.push(Timeline { variant, how: how.into(), calls: calls.to_vec(), passes });
    }
    Experiment {
        name: Name::Kick,
        workload: "random reads of 4 KiB".into(),
        points,
        timelines,
        notes: Vec::new(),
    }
}

/// Both claims, on a small machine.
pub fn both() -> Repro {
    Repro {
        partial: None,
        command: "blkmq repro contention kick".into(),
        version: "0.1.0".into(),
        time_ms: 1_795_259_797_343,
        machine: Machine {
            cpu_model: "Some CPU @ 2.0GHz".into(),
            cores: 2,
            memory_bytes: 8 << 30,
            os: "Some OS 12".into(),
            kernel: "6.1.0".into(),
            ..Machine::default()
        },
        experiments: vec![contention(), kick()],
    }
}

/// Like [`both`], but with text that would break a writer that does not escape, in every place that holds text.
pub fn hostile() -> Repro {
    let evil = "<script>alert('x')</script> & \"quoted\", \u{1b}[31mred\u{7}\nnext";
    let mut repro = both();
    repro.command = evil.into();
    repro.version = evil.into();
    repro.machine.cpu_model = evil.into();
    repro.machine.hypervisor = Some(evil.into());
    for experiment in &mut repro.experiments {
        experiment.workload = evil.into();
        experiment.notes = vec![evil.into()];
        for point in &mut experiment.points {
            point.how.push_str(evil);
            point.scheduler.push_str(evil);
            point.command = evil.into();
        }
        experiment.timelines.iter_mut().for_each(|timeline| timeline.how.push_str(evil));
    }
    repro
}
