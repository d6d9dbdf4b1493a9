//! The meaning of the figures of a claim, and the limits of the machine that they are from, in sentences.

use super::metric::Metric;
use super::model::{Experiment, Point, Variant};
use super::name::Name;
use crate::report::machine::Machine;
use crate::report::number::{counted, nanos};

/// With fewer cores, few threads compete for a lock, and most of the published effects cannot be seen.
const MANY: u32 = 8;

/// The outcome of the claim here: a sentence for each scheduler with the highest setting, and one for each course of
/// calls.
pub fn findings(experiment: &Experiment) -> Vec<String> {
    let mut schedulers: Vec<&str> = Vec::new();
    for point in &experiment.points {
        if !schedulers.contains(&point.scheduler.as_str()) {
            schedulers.push(&point.scheduler);
        }
    }
    let mut sentences = Vec::new();
    for scheduler in schedulers {
        let of = |point: &&Point| point.scheduler == scheduler;
        let highest = experiment.points.iter().filter(of).map(|point| point.setting.value).max();
        sentences.extend(highest.and_then(|highest| comparison(experiment, scheduler, highest)));
    }
    for timeline in &experiment.timelines {
        let (word, how) = (timeline.variant.word(), &timeline.how);
        let answered = match timeline.answered_after() {
            Some(after) => format!("is answered {} later", nanos(after as f64)),
            None => "is not answered".into(),
        };
        sentences.push(format!("The last call for a pass now {answered}, {word} ({how})."));
    }
    sentences
}

/// `mq-deadline with 4 threads: before (spin) 600k IOPS; ours (combining) 2.40M, 4.00x.`
fn comparison(experiment: &Experiment, scheduler: &str, value: u32) -> Option<String> {
    let metric = experiment.name.metric();
    let mut what = "";
    let mut clauses = Vec::new();
    for (at, point) in experiment.points.iter().enumerate() {
        if point.scheduler != scheduler || point.setting.value != value {
            continue;
        }
        let Some(measured) = point.get(metric) else { continue };
        what = point.setting.what;
        let unit = if clauses.is_empty() { unit(metric) } else { "" };
        let ratio = experiment.ratio(at).filter(|_| !is_base(experiment, at));
        let ratio = ratio.map_or_else(String::new, |ratio| format!(", {ratio:.2}x"));
        let (word, how) = (point.variant.word(), &point.how);
        clauses.push(format!("{word} ({how}) {}{unit}{ratio}", metric.show(measured)));
    }
    let with = match what {
        "threads" => counted(value.into(), "thread"),
        _ => format!("{what} {value}"),
    };
    (clauses.len() > 1).then(|| format!("{scheduler} with {with}: {}.", clauses.join("; ")))
}

/// Returns whether the point at `at` is the one that it would be compared with.
pub fn is_base(experiment: &Experiment, at: usize) -> bool {
    let base = experiment.base(at);
    base.is_some_and(|base| std::ptr::eq(base, &raw const experiment.points[at]))
}

/// The unit behind the first value of a sentence.
fn unit(metric: Metric) -> &'static str {
    match metric {
        Metric::Iops => " IOPS",
        Metric::Inversions => " of 1000 requests inverted",
        Metric::Merged => " of the I/Os merged",
        Metric::Waiting => " of the time waiting",
        Metric::CpuPerIo => " of CPU time per I/O",
        Metric::RequestSize => " KiB in a request",
        Metric::Kicks => " kicks per I/O",
        Metric::P99 => " at the 99th percentile",
    }
}

/// The limits of this machine for the claim: a sentence or two.
pub fn limits(experiment: &Experiment, machine: &Machine) -> Vec<String> {
    let cores = machine.cores;
    let threads = experiment.points.iter().filter(|point| point.setting.what == "threads");
    let threads = threads.map(|point| point.setting.value).max().unwrap_or(0);
    let mut sentences = Vec::new();
    match experiment.name {
        Name::Contention | Name::Batch | Name::Order => sentences.push(meeting(cores)),
        Name::Merge => sentences.push(
            "What is merged is counted, and that is the claim; the device is a model that takes 5 ms for whatever \
             it is given, so what a seek would have cost is not in the rates."
                .into(),
        ),
        Name::Kick => sentences.push(
            "To wake a thread that watches a disk is a write to a descriptor here, and was work queued under a lock there: \
             kicks per I/O can be compared, rates only with each other. Below the depth of the device nothing waits, and \
             few are needless."
                .into(),
        ),
        Name::Depth => sentences.push(
            "The slides compare kernels on a disk behind InfiniBand. Here only what they say about depths is varied, \
             so look at what is merged, and not at the rates."
                .into(),
        ),
        Name::Stats => sentences.push(
            "The device costs nothing, so this is the share of bfq's own time that statistics take; a real device \
             hides most of it."
                .into(),
        ),
    }
    if experiment.name == Name::Order {
        sentences.push(
            "Inversions are counted at a device that does not mind them; what they cost a disk is not measured.".into(),
        );
    }
    if threads > cores && spins(experiment) {
        sentences.push(format!(
            "With more than {} a thread that spins may wait for one that is not running, which no published \
             figure has in it; there, compare with the mutex.",
            counted(cores.into(), "thread")
        ));
    }
    sentences.extend(machine.hypervisor.iter().map(|host| {
        format!(
            "This is a guest ({host}), whose cores may be taken away in the midst of a run: repeat before you \
             believe a small difference."
        )
    }));
    sentences
}

fn meeting(cores: u32) -> String {
    let has = counted(cores.into(), "core");
    match cores {
        0 | 1 => format!(
            "This machine has {has}: threads take turns here and hardly ever meet at a lock, so the claim cannot \
             be seen."
        ),
        _ if cores < MANY => format!(
            "This machine has {has}, so no more than {cores} threads meet at a lock at once, where 16 cores and more \
             did in what was published: that there is a loss can be seen here, how large it becomes cannot."
        ),
        _ => format!(
            "This machine has {has}: enough of them to meet at a lock as in what was published."
        ),
    }
}

fn spins(experiment: &Experiment) -> bool {
    experiment.points.iter().any(|point| {
        point.variant != Variant::Ours
            && (point.how.starts_with("spin") || point.how.starts_with("serialised"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn machine(cores: u32) -> Machine {
        Machine { cores, ..Machine::default() }
    }

    #[test]
    fn the_highest_setting_is_told_for_each_scheduler() {
        assert_eq!(
            findings(&sample::contention()),
            [
                "mq-deadline with 4 threads: before (spin) 500k IOPS; as proposed (serialised) 1.50M, 3.00x; ours \
              (combining) 4.00M, 8.00x."
            ]
        );
        let mut unmeasured = sample::contention();
        unmeasured.points.iter_mut().for_each(|point| point.figures.clear());
        assert!(findings(&unmeasured).is_empty());
    }

    #[test]
    fn a_call_that_is_put_off_is_told() {
        assert_eq!(
            findings(&sample::kick()),
            [
                "mq-deadline with depth 64: before (combining:kick=always) 200k IOPS; as proposed \
                 (combining:kick=flag) 300k, 1.50x; ours (combining:kick=coalesced) 300k, 1.50x.",
                "The last call for a pass now is answered 500 ns later, before (always).",
                "The last call for a pass now is answered 10.0 ms later, as proposed (flag).",
                "The last call for a pass now is not answered, ours (coalesced).",
            ]
        );
    }

    #[test]
    fn a_machine_says_what_it_cannot_show() {
        let contention = sample::contention();
        let said = |cores| limits(&contention, &machine(cores)).join(" ");
        assert!(said(1).contains("cannot be seen"));
        assert!(said(2).contains("how large it becomes cannot"));
        assert!(said(2).contains("With more than 2 threads a thread that spins"));
        assert!(said(32).contains("enough of them") && !said(32).contains("spins"));
        let guest = Machine { hypervisor: Some("KVM".into()), ..machine(32) };
        assert!(limits(&contention, &guest)[1].starts_with("This is a guest (KVM)"));
        for (word, name) in Name::ALL.map(|name| (name.word(), name)) {
            let other = Experiment { name, ..contention.clone() };
            assert!(!limits(&other, &machine(2)).is_empty(), "{word}");
        }
    }
}
