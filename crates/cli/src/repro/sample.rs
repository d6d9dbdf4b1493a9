//! Made-up results for the tests of this module: fixed figures, nothing measured.

use super::claim::Claim;
use super::measure::{Measured, Repro};
use crate::experiment::Row;
use crate::experiment::row::{JobRow, KindRow, OF_RUN};
use crate::experiment::study::Study;
use crate::report::machine::Machine;
use blkmq_core::Nanos;
use std::collections::BTreeMap;

/// The claim `name` with a row for each point, in which the rate of its job is `iops` of the words of the point, and
/// every other figure is constant.
fn measured(name: &str, iops: fn(&str) -> f64) -> Measured {
    let claim = Claim::all().into_iter().find(|claim| claim.name == name);
    let mut claim = claim.expect("a claim");
    claim.prepare(Nanos::from_secs(2), &[2], (2, ""));
    let mut measured = Measured::of(claim).expect("points");
    measured.notes.push("a note".into());
    for found in &mut measured.found {
        let points = &found.points;
        let figures = OF_RUN.iter().map(|figure| (figure.name.to_owned(), 0.5));
        let percentiles_ns = BTreeMap::from([("99".into(), 1_000)]);
        let (mean_ns, max_ns) = (Some(500.0), Some(1_000));
        let kind = KindRow { ios: 8, bytes: 8 * 4096, iops: 8.0, mean_ns, max_ns, percentiles_ns };
        let names = points.study().compare.metrics.iter().filter_map(|it| it.split_once('.'));
        let name = names.map(|(job, _)| job).next().expect("the rate of a job");
        let row = |index| Row {
            id: points.id(index),
            values: Study::point(points.axes(), index).values,
            run: figures.clone().collect(),
            jobs: vec![JobRow {
                name: name.into(),
                runtime_ns: 1,
                iops: iops(&points.label(index)),
                bytes_per_s: 0.0,
                kinds: BTreeMap::from([("write".into(), kind.clone())]),
            }],
            groups: Vec::new(),
            notes: Vec::new(),
        };
        found.rows = (0..points.len()).map(row).collect();
        found.answer().expect("every figure is there");
    }
    measured
}

/// Two claims on a small machine, of which one has a study and one has three.
pub fn both() -> Repro {
    let contention = measured("contention", |words| match words {
        _ if words.contains("spin") => 1e6,
        _ if words.contains("mutex") => 1.5e6,
        _ if words.contains("serialised") => 2e6,
        _ => 4e6,
    });
    Repro {
        partial: None,
        command: "blkmq repro contention depth".into(),
        time_ms: 1_795_259_797_343,
        machine: Machine {
            cpu_model: "Some CPU @ 2.0GHz".into(),
            cores: 2,
            memory_bytes: 8 << 30,
            os: "Some OS 12".into(),
            kernel: "6.1.0".into(),
            ..Machine::default()
        },
        claims: vec![contention, measured("depth", |_| 100e3)],
    }
}

/// Returns [`both`] with text that would break a writer that does not escape, in every field of text.
pub fn hostile() -> Repro {
    let evil = "<script>alert('x')</script> & \"quoted\", \u{1b}[31mred\u{7}\nnext";
    let mut repro = both();
    repro.command = evil.into();
    repro.machine.cpu_model = evil.into();
    repro.machine.hypervisor = Some(evil.into());
    repro.claims.iter_mut().for_each(|measured| measured.notes = vec![evil.into()]);
    repro
}
