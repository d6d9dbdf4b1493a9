//! `blkmq sim` as its users meet it: the same bytes twice, whatever is printed, and the same work as `blkmq bench`.

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
            // The seed itself is in all but CSV.
            assert!(first != run(8), "{device} as {format}: another seed is the same run");
        }
    }
}

#[test]
fn nothing_of_this_machine_or_moment_is_printed() {
    let json: serde_json::Value =
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
    let json: serde_json::Value = serde_json::from_str(&first).expect("JSON");
    assert!(json["blkmq"]["notes"].to_string().contains("10 s of virtual time"), "{json}");
}

/// Jobs, phases, verification and files of jobs mean the same in both times.
#[test]
fn the_work_is_that_of_a_bench() {
    let work = |command: &str| {
        let line = format!(
            "{command} --device=memory,size=16 --scheduler=mq-deadline --bs=4k --size=4m --iodepth=8 \
             --verify=crc32c --output-format=json --name=fill --rw=randwrite --name=check --stonewall \
             --rw=randread --name=paced --rw=write --stonewall --rate_iops=100000 --size=1m"
        );
        let json: serde_json::Value = serde_json::from_str(&blkmq(&line)).expect("JSON");
        let job = |job: &serde_json::Value| {
            let figures = [&job["read"]["total_ios"], &job["write"]["total_ios"]];
            (figures.map(|n| n.as_u64().expect("a count")), job["blkmq"]["verify"].to_string())
        };
        json["jobs"].as_array().expect("jobs").iter().map(job).collect::<Vec<_>>()
    };
    let real = work("bench");
    assert_eq!(real.len(), 3);
    assert_eq!(real[0].0, [0, 1024]);
    assert_eq!(real, work("sim"));
}
