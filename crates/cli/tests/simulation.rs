//! Runs `blkmq sim` as a user would: two runs print the same bytes in every format, and do the same work as `blkmq
//! bench`.

use serde_json::{Value, json};
use std::process::Command;

fn blkmq(line: &str) -> String {
    let args = line.split_whitespace();
    let output = Command::new(env!("CARGO_BIN_EXE_blkmq")).args(args).output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{line}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

const JOB: &str = "--rw=randread --numjobs=8 --iodepth=4 --runtime=200us --time_based";

#[test]
fn the_same_seed_gives_the_same_bytes_in_every_format_and_another_one_others() {
    for device in ["null", "null,irqmode=2,hw_queue_depth=2", "memory,size=64"] {
        for format in ["json", "json+", "csv", "html", "normal"] {
            let run = |seed: u32| {
                blkmq(&format!(
                    "sim --device {device} {JOB} --seed {seed} --output-format {format}"
                ))
            };
            let first = run(7);
            assert!(first == run(7), "{device} as {format}: two runs differ");
            // Every format but CSV contains the seed.
            assert!(first != run(8), "{device} as {format}: another seed is the same run");
        }
    }
}

#[test]
fn nothing_of_this_machine_or_moment_is_printed() {
    let json: Value =
        serde_json::from_str(&blkmq(&format!("sim {JOB} --seed 3 --output-format json")))
            .expect("JSON");
    assert_eq!((&json["timestamp_ms"], &json["blkmq"]["seed"]), (&0.into(), &3.into()));
    assert_eq!(json["blkmq"]["cpu_model"], "virtual CPUs");
    assert_eq!((&json["blkmq"]["kernel"], &json["blkmq"]["memory_bytes"]), (&"".into(), &0.into()));
    let device = json["jobs"][0]["blkmq"]["device"].as_str();
    assert_eq!(device, Some("null"));
}

#[test]
fn a_job_without_an_end_is_given_one() {
    let line = "sim --device disk --rw=randread --numjobs=8 --output-format json --seed";
    let (first, again) = (blkmq(&format!("{line} 7")), blkmq(&format!("{line} 7")));
    assert!(first == again && first != blkmq(&format!("{line} 8")));
    let json: Value = serde_json::from_str(&first).expect("JSON");
    assert!(json["blkmq"]["notes"].to_string().contains("10 s of virtual time"), "{json}");
}

/// Two jobs of 400 and 100 reads, in groups below another one.
const GROUPS: &str = "--device null,irqmode=2,completion_nsec=100000,submit_queues=1,hw_queue_depth=1 \
    --group top:weight=500 --group a:parent=top,weight=300 --group b:parent=top --bs=4k --iodepth=8 \
    --name=a --cgroup=a --rw=read --number_ios=400 --name=b --cgroup=b --rw=read --number_ios=100 --offset=64m";

fn queues(line: &str) -> Vec<Value> {
    let json: Value =
        serde_json::from_str(&blkmq(&format!("sim {line} --output-format json"))).expect("JSON");
    json["blkmq"]["queues"].as_array().cloned().unwrap_or_default()
}

#[test]
fn what_is_counted_about_groups_is_exact_and_nothing_is_said_of_what_is_not() {
    let line = format!("{GROUPS} --scheduler bfq,mq-deadline --nomerges 2");
    let all = queues(&format!("{line} --group_stats full"));
    assert_eq!(all.len(), 2);
    let groups = all[0]["groups"].as_array().expect("a list");
    let names = ["/", "top", "a", "b"];
    assert!(groups.iter().map(|group| &group["name"]).eq(names.iter()), "{groups:?}");
    let total = |at: usize, name: &str| groups[at]["stats"][name]["Total"].as_u64();
    for (at, own, below) in [(0, 0, 500), (1, 0, 500), (2, 400, 400), (3, 100, 100)] {
        assert_eq!(groups[at]["ios"], own);
        assert_eq!(total(at, "io_serviced"), Some(own));
        assert_eq!(total(at, "io_serviced_recursive"), Some(below));
        assert_eq!(total(at, "io_service_bytes_recursive"), Some(below << 12));
        assert_eq!(groups[at]["stats"]["sectors_recursive"], below * 8);
        // One request at a time, 100 us each; but for the scheduler, the very last one ends with its last pass.
        let served = total(at, "io_service_time_recursive").expect("it is counted");
        let in_full = served / 100_000;
        assert!(served % 100_000 == 0 && (in_full == below || in_full + 1 == below), "{served}");
        let stats = groups[at]["stats"].as_object().expect("an object");
        assert_eq!(stats.len(), 21, "{stats:?}");
    }
    assert_eq!((&groups[2]["share"], &groups[2]["due"]), (&json!(0.8), &json!(0.75)));
    // A scheduler that does not share by group has no turns; the I/O of its groups is counted.
    let groups = all[1]["groups"].as_array().expect("a list");
    assert_eq!(groups[2]["ios"], 400);
    let stats = groups[2]["stats"].as_object().expect("an object");
    assert_eq!((stats.len(), &stats["io_serviced"]["Read"]), (12, &json!(400)));

    let basic = queues(&format!("{line} --group_stats basic"));
    let stats = basic[0]["groups"][2]["stats"].as_object().expect("an object");
    assert_eq!((stats.len(), &stats["io_serviced"]["Read"]), (12, &json!(400)));
    let off = queues(&line);
    assert_eq!((off[0]["groups"][2].get("stats"), &off[0]["group_stats"]), (None, &json!("off")));
    assert!(queues("--rw=read --number_ios=10 --scheduler bfq").is_empty());
}

#[test]
fn where_the_time_goes_is_exact_and_shown() {
    // A device that takes one request at a time, 100 us each, and 16 I/Os together: each waits for 15 others.
    let line = "--device null,irqmode=2,completion_nsec=100000,submit_queues=1,hw_queue_depth=1 \
                --scheduler mq-deadline --bs=4k --iodepth=16 --rw=randread --norandommap --size=1g \
                --number_ios=1000 --nomerges=2 --nr_requests=64";
    let all = queues(&format!("{line} --iostats"));
    let reads = &all[0]["times"]["read"];
    let of = |key: &str| reads[key].as_u64().expect("a number");
    assert_eq!((of("requests"), of("merged"), of("device_ns")), (1000, 0, 1000 * 100_000));
    let waited = of("slot_ns") + of("policy_ns") + of("tag_ns");
    // The first ones wait for fewer.
    let expected = (1000 * 15 - (1..=15).sum::<u64>()) * 100_000;
    assert!(waited.abs_diff(expected) < expected / 100, "{waited} for {expected}");
    assert!(all[0]["times"].get("write").is_none(), "{all:?}");
    let text = blkmq(&format!("sim {line} --iostats"));
    let line_of =
        "  read     : slot=0 ns, policy=0 ns, tag=1.49 ms, device=100 us for each of 1000\n";
    assert!(text.contains(line_of), "{text}");
    assert!(queues(line).is_empty(), "nothing is said of what is not counted");
}

#[test]
fn groups_get_what_their_weights_say_and_every_output_shows_it() {
    let line = "sim --scheduler bfq:low_latency=0 --group_stats full --seed 5 --bs=64k --iodepth=16 \
                --device null,irqmode=2,completion_nsec=100000,submit_queues=1,hw_queue_depth=1 \
                --group a:weight=300 --group b --runtime=8 --time_based --rw=randread --norandommap \
                --name=a --cgroup=a --name=b --cgroup=b --output-format";
    let text = blkmq(&format!("{line} normal"));
    let table = text.split("\ngroups:\n").nth(1).expect("a table").lines();
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows = Vec::from_iter(table.skip(2).take(3).map(cells));
    assert_eq!(
        [&rows[0][..6], &rows[1][..4]],
        [
            &["/", "-", "100.0", "%", "100.0", "%"].map(str::to_owned)[..],
            &["a", "300", "75.0", "%"].map(str::to_owned)[..]
        ]
    );
    let share: f64 = rows[1][4].parse().expect("a number");
    assert!((73.0..=77.0).contains(&share), "{share} of 75");
    let csv = blkmq(&format!("{line} csv"));
    // Columns are counted from the end, since the device's text contains commas.
    let mut lines = csv.lines().map(|line| line.rsplit(',').collect::<Vec<_>>());
    let heading = lines.next().expect("a heading");
    let at = heading.iter().position(|name| *name == "cgroup").expect("a column");
    let groups = Vec::from_iter(lines.map(|cells| format!("{}={}", cells[at], cells[at - 1])));
    assert_eq!(groups, ["a=300", "b=100"]);
    assert!(blkmq(&format!("{line} html")).contains("Shares of groups"));
}

#[test]
fn a_tenant_beside_a_flood_waits_behind_the_flood_and_the_flood_behind_itself() {
    // A device that takes one request at a time, 2 ms for each: no time is sampled.
    let line = "--device null,irqmode=2,completion_nsec=2000000,submit_queues=1,hw_queue_depth=1 --nr_requests=64 \
                --group flood --group victim --bs=4k --rw=randread --norandommap --size=1g --runtime=5s --time_based \
                --name=flood --cgroup=flood --iodepth=16 --name=victim --cgroup=victim --iodepth=1";
    for scheduler in ["none", "mq-deadline", "bfq:low_latency=0"] {
        let all = queues(&format!("{line} --iostats --scheduler {scheduler}"));
        let groups = all[0]["groups"].as_array().expect("a list");
        let waited = |group: usize, behind: Value| {
            let all = groups[group]["waited_for"].as_array().expect("a list");
            let found = all.iter().find(|waited| waited["group"] == behind);
            found.map_or(0, |waited| waited["time_ns"].as_u64().expect("a number"))
        };
        assert_eq!([&groups[1]["name"], &groups[2]["name"]], ["flood", "victim"]);
        let victim = ["flood".into(), "victim".into(), Value::Null].map(|of| waited(2, of));
        let flood = ["flood".into(), "victim".into(), Value::Null].map(|of| waited(1, of));
        let at = format!("{scheduler}: {victim:?}, {flood:?}");
        let sums = [victim, flood].map(|of| of.iter().sum::<u64>());
        // The last I/Os end after the five seconds.
        assert!(sums.iter().all(|sum| *sum <= 5_100_000_000), "{at}");
        assert_eq!(victim[1], 0, "its only I/O is no cause: {at}");
        assert!(victim[0] > sums[0] * 99 / 100, "{at}");
        // The flood always has waiting I/Os: behind its own, and under a fair scheduler also for the victim's turns.
        assert!(sums[1] > 4_990_000_000, "{at}");
        let most = if scheduler.starts_with("bfq") { 55 } else { 7 };
        assert!(flood[1] < sums[1] / 100 * most, "{at}");
    }
    let text = blkmq(&format!("sim {line} --iostats --scheduler none"));
    let table = text.split("\nwaited before the device, behind requests of:\n").nth(1);
    let mut rows = table.expect("a table").lines();
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        rows.next().map(cells),
        Some(["group", "waited", "flood", "victim"].map(str::to_owned).to_vec())
    );
    let victim = cells(rows.nth(2).expect("a row"));
    assert_eq!([&victim[0], &victim[3], &victim[4]], ["victim", "100.0", "%"]);
    let off = queues(&format!("{line} --scheduler none"));
    assert_eq!(
        off[0]["groups"][2].get("waited_for"),
        None,
        "nothing is said of what is not counted"
    );
    assert!(!blkmq(&format!("sim {line} --scheduler none")).contains("waited before"));
}

#[test]
fn what_kyber_lets_through_is_shown() {
    let found = queues("--scheduler kyber,none --rw=randread --runtime=1ms --time_based");
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0]["run"], &found[0]["tokens"]), (&json!(0), &json!([256, 128, 64, 16])));
    assert_eq!(found[0]["governor"]["read_target"], 2_000_000);
}

/// Jobs, phases, verification and files mean the same in both kinds of time.
#[test]
fn the_work_is_that_of_a_bench() {
    let work = |command: &str| {
        let line = format!(
            "{command} --device=memory,size=16 --scheduler=mq-deadline --bs=4k --size=4m --iodepth=8 \
             --verify=crc32c --output-format=json --name=fill --rw=randwrite --name=check --stonewall \
             --rw=randread --name=paced --rw=write --stonewall --rate_iops=100000 --size=1m"
        );
        let json: Value = serde_json::from_str(&blkmq(&line)).expect("JSON");
        let job = |job: &Value| {
            let figures = [&job["read"]["total_ios"], &job["write"]["total_ios"]];
            (figures.map(|n| n.as_u64().expect("a count")), job["blkmq"]["verify"].to_string())
        };
        json["jobs"].as_array().expect("jobs").iter().map(job).collect::<Vec<_>>()
    };
    let real = work("bench");
    assert_eq!(real.len(), 3);
    assert_eq!(real[0].0, [1024, 1024]);
    assert_eq!(real, work("sim"));
}

/// Regression test: a comparison showed bfq to be identical to none, without an explanation.
#[test]
fn a_run_says_that_bfq_serves_jobs_that_begin_together_as_one() {
    let notes = |scheduler: &str, options: &str| {
        let line = format!(
            "sim --scheduler={scheduler} --device=null --size=64k --output-format=json --name=db --rw=randread \
             --name=scan --rw=read {options}"
        );
        let report: Value = serde_json::from_str(&blkmq(&line)).expect("JSON");
        report["blkmq"]["notes"].to_string().contains("bfq merges the queues of db and scan")
    };
    assert!(notes("none,bfq", "") && notes("bfq", "--startdelay=100ms"));
    for options in ["--startdelay=300ms", "--stonewall", "--wait_for=db", "--rw=write", "--prio=3"]
    {
        assert!(!notes("bfq", options), "{options}");
    }
    assert!(!notes("bfq", "--group=g --cgroup=g"));
    assert!(!notes("none,mq-deadline", "") && !notes("bfq:queue_merge=0", ""));
}

#[test]
fn a_run_says_that_weights_have_no_effect_under_its_scheduler() {
    let line = "sim --device null --rw=randread --number_ios=10 --group a:weight=300 --cgroup=a \
        --scheduler none,bfq";
    let output = blkmq(line);
    let notes = output.matches("does not share by group").count();
    assert_eq!(notes, 1, "{output}");
}
