//! A claim: its published figures, and the studies that show it here. Each is a file in `claims`.

use crate::experiment::compare::LEAST_PAIRS;
use crate::experiment::study::{Study, Value, Values};
use crate::plan;
use blkmq_core::Nanos;
use serde::{Deserialize, Serialize};

/// The claims by name, in the order of display.
const FILES: [(&str, &str); 7] = [
    ("contention", include_str!("claims/contention.toml")),
    ("batch", include_str!("claims/batch.toml")),
    ("order", include_str!("claims/order.toml")),
    ("merge", include_str!("claims/merge.toml")),
    ("kick", include_str!("claims/kick.toml")),
    ("depth", include_str!("claims/depth.toml")),
    ("stats", include_str!("claims/stats.toml")),
];

/// A claim.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The name on the command line.
    #[serde(skip_deserializing)]
    pub name: &'static str,
    /// The subject of the measurement, in a line.
    #[serde(skip_serializing)]
    pub summary: String,
    /// The claim as a heading.
    pub title: String,
    /// The claim in a few sentences, in our own words.
    pub claim: String,
    /// The numbers of threads on the axis `numjobs`, where they depend on the machine.
    #[serde(default, skip_serializing)]
    threads: Option<Threads>,
    /// The workload here, in words.
    pub workload: String,
    /// Calls in quick succession are a part of it.
    #[serde(default, skip_serializing)]
    pub calls: bool,
    /// The limits of this machine and of the workload, a sentence each.
    pub limits: Vec<String>,
    /// The published figures, a table for each source.
    pub published: Vec<Source>,
    /// The studies, whose first figures are those of the claim.
    #[serde(skip_serializing)]
    pub part: Vec<Part>,
}

/// Numbers of threads.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Threads {
    /// 1, 2, 4 and so on to twice the cores.
    Doubling,
    /// 1 and the number of cores.
    Ends,
}

/// Figures from one source, as published by its authors, and not ours.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The authors, the publication and the date.
    pub by: String,
    /// The hardware of the measurement.
    pub hardware: String,
    /// The workload.
    pub workload: String,
    /// The figures.
    pub figures: Vec<Published>,
    /// A remark about the figures; may be empty.
    #[serde(default)]
    pub remark: String,
}

/// A quantity before the change and with it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The configuration.
    pub what: String,
    /// The quantity, a figure of an experiment.
    pub metric: String,
    /// The value before the change.
    pub before: f64,
    /// The value with the proposed change.
    pub proposed: f64,
}

/// A study of a claim.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The subject, if a claim has several.
    #[serde(default)]
    pub of: String,
    /// The study.
    pub study: Study,
}

impl Published {
    /// The change relative to the value before it.
    pub fn relative(&self) -> f64 {
        self.proposed / self.before - 1.0
    }
}

impl Claim {
    /// Every claim, in the order of display.
    pub fn all() -> Vec<Self> {
        let of =
            |(name, text)| Self { name, ..toml::from_str(text).expect("a claim of this program") };
        FILES.map(of).into()
    }

    /// Returns whether a part of it reads a disk in memory.
    pub fn reads_disk(&self) -> bool {
        let disk = Values::One(Value::Text("{disk}".into()));
        self.part.iter().any(|part| part.study.options.get("device") == Some(&disk))
    }

    /// Sets the total time of the runs of a row and the thread counts, if any are `asked` for, and fills in the
    /// properties of a machine with this many cores and a `disk` in memory.
    pub fn prepare(&mut self, runtime: Nanos, asked: &[u32], (cores, disk): (u32, &str)) {
        let here = |text: &str| text.replace("{cores}", &cores.to_string()).replace("{disk}", disk);
        self.limits.iter_mut().for_each(|text| *text = here(text));
        let usual = match self.threads {
            Some(Threads::Doubling) => powers_to(2 * cores),
            Some(Threads::Ends) if cores > 1 => vec![1, cores],
            Some(Threads::Ends) | None => Vec::new(),
        };
        let threads = if asked.is_empty() { &usual[..] } else { asked };
        let threads = Vec::from_iter(threads.iter().map(|count| Value::Integer((*count).into())));
        let each = plan::time(each(runtime));
        self.workload.push_str(&format!("; {LEAST_PAIRS} runs of {each} each"));
        for part in &mut self.part {
            if let Some(Values::One(Value::Text(device))) = part.study.options.get_mut("device") {
                *device = here(device);
            }
            part.study.options.insert("runtime".into(), Values::One(Value::Text(each.clone())));
            let axis = part.study.grid.get_mut("numjobs").filter(|_| !threads.is_empty());
            if let Some(axis) = axis {
                *axis = Values::Many(threads.clone());
            }
        }
    }
}

/// The time of each run, at least a millisecond.
fn each(runtime: Nanos) -> Nanos {
    Nanos::from_millis((runtime.0 / 1_000_000 / LEAST_PAIRS as u64).max(1))
}

/// 1, 2, 4 and so on, up to `most`, which is the last one.
fn powers_to(most: u32) -> Vec<u32> {
    let powers = (0..31).map(|n| 1 << n).take_while(|power| *power < most);
    powers.chain([most.max(1)]).collect()
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::experiment::Points;
    use crate::experiment::answer::percent;

    /// The claims on a machine with `cores` cores.
    fn prepared(ms: u64, threads: &[u32], cores: u32) -> Vec<Claim> {
        let mut claims = Claim::all();
        let disk = "null,irqmode=2,submit_queues=8,hw_queue_depth=16";
        claims
            .iter_mut()
            .for_each(|claim| claim.prepare(Nanos::from_millis(ms), threads, (cores, disk)));
        claims
    }

    #[test]
    fn every_claim_has_words_and_says_where_its_figures_are_from() {
        for claim in prepared(2_500, &[], 4) {
            let Claim { name, title, claim, workload, limits, published, .. } = &claim;
            assert!(!title.ends_with('.') && claim.ends_with('.'), "{name}");
            assert!(workload.ends_with("; 5 runs of 500ms each"), "{name}: {workload}");
            assert!(!published.is_empty() && limits.iter().all(|it| it.ends_with('.')), "{name}");
            let text = format!("{claim}{workload}{}", limits.concat());
            assert!(text.is_ascii() && !text.contains('{'), "{text}");
            for source in published {
                let year = source.by.split(|c: char| !c.is_ascii_digit()).any(|it| it.len() == 4);
                assert!(year, "{name}: {}", source.by);
                assert!(!source.hardware.is_empty() && !source.workload.is_empty(), "{name}");
                let text = format!("{}{}{}", source.by, source.hardware, source.remark);
                assert!(text.is_ascii() && !text.contains("http") && !text.contains("www"));
            }
        }
        let said = |at: usize| prepared(2_000, &[], 2)[at].limits.concat();
        assert!(said(0).contains("cores here: 2.") && said(3).contains("5 ms"));
    }

    #[test]
    fn differences_are_those_of_the_published_figures() {
        let differences = |name: &str, metric: &str| -> Vec<String> {
            let claim = Claim::all().into_iter().find(|claim| claim.name == name).expect("a claim");
            let rows = claim.published.into_iter().flat_map(|source| source.figures);
            rows.filter(|row| row.metric == metric).map(|row| percent(row.relative())).collect()
        };
        assert_eq!(differences("contention", "iops"), ["2.63x", "2.90x", "3.26x", "3.51x"]);
        assert_eq!(differences("contention", "waiting"), ["-77.5 %", "-74.0 %"]);
        assert_eq!(differences("kick", "iops"), ["+0.0 %", "+2.1 %", "+42.2 %", "+60.3 %"]);
        assert_eq!(differences("merge", "merged"), ["+0.0 %"]);
        assert_eq!(differences("stats", "iops"), ["+24.0 %", "+29.0 %", "+25.0 %", "+42.9 %"]);
    }

    #[test]
    fn every_point_is_a_run_of_bench_and_every_way_has_its_name() {
        for claim in prepared(1_250, &[], 4) {
            for Part { study, .. } in claim.part {
                let points = Points::of(Study::of_json(&study.json()).expect("a study"));
                let points = points.expect("points");
                points.check().expect("they can be run");
                let command = points.command(0);
                assert!(command.starts_with("blkmq bench --") && command.contains("=250ms"));
                let axis = |name: Option<&str>| {
                    let axis = points.axes().iter().find(|axis| Some(axis.name.as_str()) == name);
                    axis.expect("an axis").values.clone()
                };
                assert_eq!(axis(study.pair()).len(), LEAST_PAIRS);
                let ways = axis(study.compared());
                let names = ways.iter().map(|way| study.shown(way));
                assert!(names.zip(&ways).all(|(name, way)| name != way.to_string()));
            }
        }
    }

    #[test]
    fn threads_go_to_twice_the_cores_unless_they_are_given() {
        let counts = |threads: &[u32], cores, claim: usize| {
            let study =
                prepared(2_000, threads, cores).swap_remove(claim).part.swap_remove(0).study;
            study.grid.get("numjobs").cloned()
        };
        let many = |counts: &[i64]| {
            Some(Values::Many(counts.iter().map(|count| Value::Integer(*count)).collect()))
        };
        assert_eq!(counts(&[], 1, 0), many(&[1, 2]));
        assert_eq!(counts(&[], 6, 0), many(&[1, 2, 4, 8, 12]));
        assert_eq!(counts(&[3, 32], 6, 0), many(&[3, 32]));
        assert_eq!((counts(&[], 6, 1), counts(&[3], 6, 2)), (many(&[16]), many(&[3])));
        assert_eq!((counts(&[], 1, 6), counts(&[], 6, 6)), (many(&[1]), many(&[1, 6])));
        assert_eq!(counts(&[3], 6, 3), None);
    }
}
