//! The runs that show a claim: each is a command line of `blkmq bench`, so that a doubtful reader can repeat a row.

use super::args::Wanted;
use super::model::{Case, Setting, Variant};
use super::name::Name;
use crate::plan;
use blkmq_core::Nanos;

/// Runs of each row.
pub const REPETITIONS: u32 = 5;

/// A variant of a step, and its options.
type Way = (Variant, &'static str);

/// A lock as the kernel has it, and one that parks: where threads outnumber cores, a spinning thread waits for a
/// thread that is not running, and the spinning lock shows little.
const LOCKS: [Way; 2] = [(Variant::Before, "spin"), (Variant::Before, "mutex")];
const OURS: Way = (Variant::Ours, "combining");

const CONTENTION: [Way; 4] = [LOCKS[0], LOCKS[1], (Variant::Proposed, "serialised"), OURS];
const BATCH: [Way; 5] = [
    LOCKS[0],
    LOCKS[1],
    (Variant::Proposed, "spin:dispatch=batch"),
    (Variant::Proposed, "mutex:dispatch=batch"),
    OURS,
];
const MERGE: [Way; 4] = [
    LOCKS[1],
    (Variant::Proposed, "mutex:dispatch=batch"),
    (Variant::Proposed, "serialised"),
    OURS,
];
const KICK: [Way; 3] = [
    (Variant::Before, "combining:kick=always"),
    (Variant::Proposed, "combining:kick=flag"),
    (Variant::Ours, "combining:kick=coalesced"),
];
const STATS: [Way; 4] = [
    (Variant::Before, "inline"),
    (Variant::Proposed, "off"),
    (Variant::Ours, "basic"),
    (Variant::Ours, "full"),
];
/// The ways, each with the depth of the scheduler as a multiple of the depth of the device.
const DEPTH: [(Way, u32); 4] = [
    ((Variant::Before, "mutex"), 1),
    ((Variant::Proposed, "mutex"), 2),
    ((Variant::Ours, "combining"), 1),
    ((Variant::Ours, "combining"), 2),
];

/// Hardware queues of the device that `kick` is shown on, one for each thread, and their depth.
pub const KICK_QUEUES: (u32, u32) = (8, 16);

/// The runs that show `name` on a machine with `cores` cores, in order; `kick` runs on a `disk` in memory.
pub fn cases(name: Name, wanted: &Wanted, cores: u32, disk: &str) -> Vec<Case> {
    let threads = |usual: &[u32]| match wanted.threads.as_slice() {
        [] => usual.to_vec(),
        given => given.to_vec(),
    };
    let both = ["mq-deadline", "bfq"];
    let mut cases = match name {
        Name::Contention => {
            let threads = threads(&powers_to(2 * cores));
            contended(&both, &threads, &CONTENTION, "null,irqmode=0,submit_queues=1", READS)
        }
        Name::Batch | Name::Order => {
            let device = format!("null,irqmode=0,submit_queues={cores},hw_queue_depth=1024");
            contended(&both, &threads(&[16]), &BATCH, &device, WRITES)
        }
        Name::Merge => {
            let device = "null,irqmode=2,completion_nsec=5000000,submit_queues=1,hw_queue_depth=32";
            let more = format!("{SEQUENTIAL} --iodepth=32 --nr_requests=64");
            contended(&both[..1], &[64], &MERGE, device, &more)
        }
        Name::Kick => kicks(disk),
        Name::Depth => depths(),
        Name::Stats => {
            let mut usual = vec![1, cores];
            usual.dedup();
            statistics(&threads(&usual))
        }
    };
    let runtime = format!("--runtime={}", plan::time(each(wanted)));
    for case in &mut cases {
        case.args.extend([runtime.clone(), "--time_based".into(), "--group_reporting".into()]);
    }
    cases
}

/// The time of each repetition: no less than a millisecond.
fn each(wanted: &Wanted) -> Nanos {
    Nanos::from_millis((wanted.runtime.0 / 1_000_000 / u64::from(REPETITIONS)).max(1))
}

/// The workload of `name`, in words, without a full stop.
pub fn workload(name: Name, wanted: &Wanted) -> String {
    let load = match name {
        Name::Contention => {
            "random reads of 512 bytes, 4 in flight for each thread, submitted and completed in fours; null device \
             with one hardware queue"
        }
        Name::Batch | Name::Order => {
            "random writes of 4 KiB, 32 in flight for each thread, submitted and completed in eights; null device \
             with a hardware queue of 1024 for each core"
        }
        Name::Merge => {
            "64 threads that write 4 KiB after 4 KiB, each in a place of its own, 32 in flight each; device of depth \
             32 that takes 5 ms, scheduler of depth 64"
        }
        Name::Kick => {
            "random reads of 4 KiB by 8 threads, so many in flight in all; device with 8 hardware queues of depth 16, \
             and a thread to look after each; a disk in memory where there is io_uring"
        }
        Name::Depth => {
            "16 threads that write 4 KiB after 4 KiB, each in a place of its own, 32 in flight each; device of that \
             depth that takes 1 ms"
        }
        Name::Stats => {
            "random writes of 4 KiB in a group, 32 in flight for each thread, submitted and completed in eights; \
             null device"
        }
    };
    format!("{load}; median of {REPETITIONS} runs of {} each", plan::time(each(wanted)))
}

/// The load of seed 001, which fio's `--gtod_reduce` leaves without latencies.
const READS: &str = "--rw=randread --bs=512 --iodepth=4 --iodepth_batch_submit=4 --iodepth_batch_complete=4 \
                     --norandommap --gtod_reduce=1";
/// The load of seed 000.
const WRITES: &str = "--rw=randwrite --bs=4k --iodepth=32 --iodepth_batch_submit=8 \
                      --iodepth_batch_complete=8 --norandommap --gtod_reduce=1";
/// Writers that write sequentially, each in a region of its own.
const SEQUENTIAL: &str = "--rw=write --bs=4k --offset_increment=1g";

/// 1, 2, 4 and so on, up to `most`, which is the last one.
fn powers_to(most: u32) -> Vec<u32> {
    let powers = (0..31).map(|n| 1 << n).take_while(|power| *power < most);
    powers.chain([most.max(1)]).collect()
}

fn case(way: Way, scheduler: &'static str, setting: Setting, args: &str) -> Case {
    let (variant, how) = way;
    let args = format!("--scheduler={scheduler} {args}");
    let args = args.split_whitespace().map(String::from).collect();
    Case { variant, how, scheduler, setting, args }
}

/// Each scheduler with each number of threads in each way.
fn contended(
    schedulers: &[&'static str],
    threads: &[u32],
    ways: &[Way],
    device: &str,
    load: &str,
) -> Vec<Case> {
    let mut cases = Vec::new();
    for &scheduler in schedulers {
        for &value in threads {
            for way in ways {
                let args = format!("--device={device} --access={} {load} --numjobs={value}", way.1);
                cases.push(case(*way, scheduler, Setting { what: "threads", value }, &args));
            }
        }
    }
    cases
}

/// Increasing numbers of I/Os in flight of eight jobs together, on a device whose hardware queues need pump threads.
fn kicks(disk: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for value in [16, 64, 256, 1024] {
        for way in KICK {
            let args = format!(
                "--device={disk} --scope=queue --pump=threads --access={} --rw=randread --bs=4k --numjobs=8 \
                 --iodepth={} --norandommap --gtod_reduce=1",
                way.1,
                value / 8
            );
            cases.push(case(way, "mq-deadline", Setting { what: "depth", value }, &args));
        }
    }
    cases
}

/// A limited number of requests at the device, and as many in the scheduler or more.
fn depths() -> Vec<Case> {
    let mut cases = Vec::new();
    for value in [8, 32, 128] {
        for (way, deeper) in DEPTH {
            let args = format!(
                "--device=null,irqmode=2,completion_nsec=1000000,submit_queues=1,hw_queue_depth={value} --access={} \
                 --nr_requests={} {SEQUENTIAL} --numjobs=16 --iodepth=32",
                way.1,
                value * deeper
            );
            let mut case = case(way, "mq-deadline", Setting { what: "depth", value }, &args);
            case.how = match (way.1, deeper) {
                ("mutex", 1) => "mutex, as deep as the device",
                ("mutex", _) => "mutex, twice as deep",
                (_, 1) => "combining, as deep as the device",
                _ => "combining, twice as deep",
            };
            cases.push(case);
        }
    }
    cases
}

fn statistics(threads: &[u32]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &value in threads {
        for way in STATS {
            let args = format!(
                "--device=null,irqmode=0,submit_queues=1 --group=g --cgroup=g --group_stats={} {WRITES} \
                 --numjobs={value}",
                way.1
            );
            cases.push(case(way, "bfq", Setting { what: "threads", value }, &args));
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::super::args::tests::wanted;
    use super::*;
    use crate::args;
    use crate::plan::Time;

    const DISK: &str = "null,irqmode=2,submit_queues=8,hw_queue_depth=16";

    #[test]
    fn what_is_compared_stands_together_before_first() {
        for name in Name::ALL {
            let word = name.word();
            let cases = cases(name, &wanted("--runtime=1250ms"), 4, DISK);
            assert!(!cases.is_empty(), "{word}");
            for case in &cases {
                assert_eq!(case.args.iter().filter(|arg| *arg == "--runtime=250ms").count(), 1);
                let like = |other: &&Case| {
                    other.scheduler == case.scheduler && other.setting == case.setting
                };
                let variants = cases.iter().filter(like).map(|other| other.variant);
                let variants: Vec<Variant> = variants.collect();
                assert!(variants.is_sorted() && variants.contains(&Variant::Ours), "{word}");
                assert!(variants.contains(&Variant::Proposed), "{word}");
                assert_eq!(variants[0], Variant::Before, "{word}");
            }
        }
    }

    #[test]
    fn threads_go_to_twice_the_cores_unless_they_are_given() {
        let counts = |line: &str, cores| -> Vec<u32> {
            let cases = cases(Name::Contention, &wanted(line), cores, DISK);
            let mut counts: Vec<u32> = cases.iter().map(|case| case.setting.value).collect();
            counts.sort_unstable();
            counts.dedup();
            counts
        };
        assert_eq!(counts("", 1), [1, 2]);
        assert_eq!(counts("", 6), [1, 2, 4, 8, 12]);
        assert_eq!(counts("--threads=32,3", 6), [3, 32]);
    }

    #[test]
    fn each_claim_has_a_workload_in_words() {
        let wanted = wanted("--runtime=2500ms");
        let said = Name::ALL.map(|name| workload(name, &wanted));
        assert!(said.iter().all(|text| text.ends_with(" of 500ms each") && text.is_ascii()));
        assert!(said[0].contains("512 bytes") && said[3].contains("5 ms"));
    }

    #[test]
    fn every_command_is_one_run_of_bench() {
        let all = Name::ALL.iter().flat_map(|name| cases(*name, &wanted(""), 2, DISK));
        let mut seen = 0;
        for case in all {
            let Ok(args::Request::Plan(plan)) = args::parse(&case.args, Time::Real) else {
                panic!("{:?}: {:?}", case.args, args::parse(&case.args, Time::Real));
            };
            assert_eq!((plan.cases(), plan.repeat), (1, 1));
            assert_eq!(plan.schedulers[0].text, case.scheduler);
            seen += 1;
        }
        assert!(seen > 40, "{seen}");
    }
}
