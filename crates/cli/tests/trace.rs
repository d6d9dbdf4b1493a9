//! `--trace`: the files contain the events that the run counted. `cargo xtask interop` checks that blkparse and btt
//! read them.

use blkmq_lab::trace::record::{Act, Record, category, records};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// A run of `blkmq` with a trace: its counters, and the records of each file.
struct Traced {
    counters: Value,
    notes: String,
    files: Vec<Vec<u8>>,
}

fn run(name: &str, line: &str) -> Traced {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("the folder for temporary files can be written");
    let prefix = folder.join("t");
    let output = Command::new(env!("CARGO_BIN_EXE_blkmq"))
        .args(line.split_whitespace())
        .args(["--output-format=json", "--trace"])
        .arg(&prefix)
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let file = |cpu: u32| std::fs::read(folder.join(format!("t.blktrace.{cpu}"))).ok();
    Traced {
        counters: json["jobs"][0]["blkmq"].clone(),
        notes: json["blkmq"]["notes"].to_string(),
        files: (0..).map_while(file).collect(),
    }
}

impl Traced {
    fn all(&self) -> Vec<Record<'_>> {
        let all = self.files.iter().flat_map(|bytes| records(bytes));
        all.map(|record| record.expect("written here")).collect()
    }

    fn count(&self, act: Act) -> u64 {
        self.all().iter().filter(|record| record.act() == Some(act)).count() as u64
    }

    fn counted(&self, name: &str) -> u64 {
        self.counters[name].as_u64().expect(name)
    }

    fn merges(&self) -> u64 {
        let merges = self.counters["merges"].as_object().expect("an object");
        merges.values().filter_map(Value::as_u64).sum()
    }

    /// Checks the equalities that hold for every run.
    fn check(&self) {
        let [submitted, splits] = ["submitted", "splits"].map(|name| self.counted(name));
        assert_eq!(self.count(Act::Queue), submitted - splits);
        assert_eq!(self.count(Act::Split), splits);
        assert_eq!(self.count(Act::Complete), self.counted("requests_completed"));
        assert_eq!(self.count(Act::Issue), self.counted("dispatches"));
        assert_eq!(self.count(Act::Requeue), self.counted("requeues"));
        let joined = self.count(Act::BackMerge) + self.count(Act::FrontMerge);
        assert_eq!(joined, self.merges());
        assert_eq!(self.count(Act::GetRequest), submitted - self.merges());
        assert_eq!(self.count(Act::Plug), self.count(Act::Unplug));
        for bytes in &self.files {
            let file: Vec<_> = records(bytes).map(|record| record.expect("one")).collect();
            assert!(file.iter().map(|record| record.time).is_sorted());
            assert!(file.iter().zip(1..).all(|(record, sequence)| record.sequence == sequence));
        }
    }
}

#[test]
fn a_simulation_with_merges_requeues_and_cuts_is_all_there() {
    for scheduler in ["none", "mq-deadline"] {
        let device = "null,irqmode=2,completion_nsec=50000,hw_queue_depth=4,requeue=3:20:0:50";
        let line = format!(
            "sim --scheduler {scheduler} --device {device} --rw=randrw --numjobs=3 --iodepth=8 \
             --iodepth_batch_submit=4 --size=1m"
        );
        let traced = run(&format!("requeues-{scheduler}"), &line);
        traced.check();
        assert_eq!(traced.files.len(), 3);
        assert!(traced.count(Act::Requeue) > 0);
        let again = run(&format!("requeues-{scheduler}-again"), &line);
        assert_eq!(traced.files, again.files, "the same seed, the same trace");
    }
    let line = "sim --scheduler mq-deadline --device null,max_sectors=64 --rw=write --bs=256k --size=4m --iodepth=2";
    let traced = run("cuts", line);
    traced.check();
    let cut = traced.all().into_iter().find(|record| record.act() == Some(Act::Split));
    let cut = cut.expect("256 KiB are too long");
    assert_eq!((cut.sector, cut.bytes, cut.payload), (0, 32 << 10, &64u64.to_be_bytes()[..]));
    let line = "sim --scheduler mq-deadline --device null --rw=write --numjobs=4 --iodepth=32 \
                --iodepth_batch_submit=16 --size=1m --offset_increment=1m";
    let traced = run("merges", line);
    traced.check();
    assert!(traced.merges() > 100);
}

#[test]
fn a_bench_is_traced_too_and_names_its_jobs() {
    let line = "bench --scheduler mq-deadline --device memory,size=64 --size=1m --iodepth=16 --name=first --rw=write \
                --numjobs=2 --offset_increment=1m --name=second --rw=randread --stonewall";
    let traced = run("bench", line);
    traced.check();
    assert_eq!(traced.files.len(), 3);
    let all = traced.all();
    let names: Vec<_> = all
        .iter()
        .filter(|record| record.has(category::NOTIFY))
        .map(|record| (record.pid, record.payload.split(|byte| *byte == 0).next()))
        .collect();
    let expected = [(1, Some(&b"first"[..])), (2, Some(b"first")), (3, Some(b"second"))];
    assert_eq!(names, expected);
    let reads = all.iter().filter(|record| record.has(category::READ));
    assert!(reads.clone().count() > 0 && reads.clone().all(|record| record.pid == 3));
}

#[test]
fn what_does_not_fit_is_counted() {
    let traced = run("missed", "bench --scheduler none --rw=randread --size=1m --trace_events=100");
    assert_eq!(traced.all().len(), 101, "and a name");
    // Q, P, U, G, I, D and C for each of 256 I/Os.
    let missed = 7 * 256 - 100;
    assert!(traced.notes.contains(&format!("{missed} events are missing")), "{}", traced.notes);
}

/// Files left by an earlier trace of the same name would be read as part of this one.
#[test]
fn an_earlier_trace_is_replaced_whole() {
    let line = "sim --scheduler none --rw=randread --size=64k --numjobs";
    assert_eq!(run("replaced", &format!("{line}=4")).files.len(), 4);
    let traced = run("replaced", &format!("{line}=2"));
    assert_eq!(traced.files.len(), 2);
    traced.check();
}
