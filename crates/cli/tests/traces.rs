//! Traces end to end. The files of `--trace` contain the events that the run counted; `cargo xtask interop` checks that
//! blkparse and btt read them. `blkmq trace` and `blkmq replay` read other programs' traces, and `blkmq replay` the
//! logs of `--elevator-log`.

use blkmq_lab::trace::record::{Act, Record, category, records};
use serde_json::Value;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::{Command, Output};

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

/// The I/Os of each tenant under one scheduler, from the table of a replay.
fn ios(text: &str, tenant: &str, scheduler: &str) -> f64 {
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut found = rows.filter(|row| row.len() > 4 && row[1] == tenant && row[2] == scheduler);
    found.next().unwrap_or_else(|| panic!("{tenant} under {scheduler} in {text}"))[3]
        .parse()
        .expect("a count")
}

/// Two tenants that have more to do than a device can.
fn two_tenants(rows: usize) -> String {
    let mut text = String::from("time_ns,op,offset,size,tenant,volume,class,latency_ns\n");
    let mut place: u64 = 1;
    for i in 0..rows {
        place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let offset = (place >> 44) * 4096;
        writeln!(text, "{i},read,{offset},4096,{},v,none,", ["a", "b"][i % 2]).expect("memory");
    }
    text
}

#[test]
fn two_tenants_of_a_trace_keep_their_weights_under_mclock() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("two.csv").display().to_string();
    std::fs::write(&path, two_tenants(120_000)).expect("it can be written");
    let options = [
        "--scheduler=mclock,none",
        "--weight=a=300",
        "--weight=b=100",
        "--runtime=10s",
        "--device=cloud",
        "--iodepth=32",
    ];
    let text = shown("replay", &[&[path.as_str()], options.as_slice()].concat());
    let ratio = ios(&text, "a", "mclock") / ios(&text, "b", "mclock");
    assert!((2.7..3.3).contains(&ratio), "{ratio}: {text}");
    let equal = ios(&text, "a", "none") / ios(&text, "b", "none");
    assert!((0.8..1.25).contains(&equal), "{equal}: {text}");
}

#[test]
fn what_is_converted_and_back_tells_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(file("a.csv"), two_tenants(20_000)).expect("it can be written");
    let info = shown("trace", &["info", &file("a.csv")]);
    assert!(info.contains("20000"), "{info}");
    for form in ["csv", "iolog2", "iolog3", "mqsim"] {
        let (to, output) = (format!("--to={form}"), format!("--output={}", file(form)));
        assert_eq!(shown("trace", &["convert", &file("a.csv"), &to, &output]), "");
        // MQSim's rows do not reveal their unit.
        let format = if form == "mqsim" { "--format=mqsim" } else { "--skip-bad=0" };
        let again = shown("trace", &["info", &file(form), format]);
        let line =
            |text: &str| text.lines().find(|it| it.starts_with("working set")).map(String::from);
        assert_eq!(line(&again), line(&info), "{form}");
    }
}

/// Each task has its own options.
#[test]
fn an_option_of_the_other_task_is_refused() {
    for (words, expected) in [
        ("trace info x.csv --to=csv", "--to is an option of convert, not of info"),
        ("trace info x.csv --output=y", "--output is an option of convert, not of info"),
        ("trace convert x.csv --page=y", "--page is an option of info, not of convert"),
    ] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_blkmq"));
        let output = program.args(words.split(' ')).output().expect("it starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && errors.contains(expected), "{errors}");
    }
}

/// The lines of a log of I/Os: time in microseconds, operation, offset and length.
fn logged(path: &str) -> Vec<(u64, String, u64, u64)> {
    let text = std::fs::read_to_string(path).expect("a log");
    let words = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let ios = words.filter(|words| words.len() == 5);
    ios.map(|it| (number(it[0]), it[2].into(), number(it[3]), number(it[4]))).collect()
}

const REPLAYED: [(u64, &str, u64, u64); 6] = [
    (0, "read", 0, 4096),
    (2000, "write", 1_048_576, 16_384),
    (2000, "read", 8192, 4096),
    (5000, "trim", 0, 4096),
    (9000, "read", 12_800, 512),
    (12_000, "write", 40_960, 8192),
];

#[test]
fn a_job_replays_a_log_of_ios_as_fio_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let mut text = String::from("fio version 3 iolog\n0 x add\n0 x open\n");
    for (at, op, offset, length) in REPLAYED {
        writeln!(text, "{at} x {op} {offset} {length}").expect("memory");
    }
    std::fs::write(file("log"), text + "12000 x close\n").expect("it can be written");
    let again = |options: &[&str]| {
        let device = "--device=null,irqmode=2,completion_nsec=1000";
        let (read, write) = (format!("--read_iolog={}", file("log")), file("again"));
        let write = format!("--write_iolog={write}");
        let words = [device, "--scheduler=none", "--iodepth=4", "--name=a", &read, &write];
        shown("sim", &[&words, options].concat());
        let ios = logged(&file("again"));
        let times = Vec::from_iter(ios.iter().map(|it| it.0));
        (times, ios.into_iter().map(|(_, op, offset, length)| (op, offset, length)).collect())
    };
    type Ios = Vec<(String, u64, u64)>;
    let ios = |wanted: &dyn Fn(&str) -> bool, place: &dyn Fn(u64) -> u64| -> Ios {
        // The model has no discards, which are omitted with a note.
        let all = REPLAYED.into_iter().filter(|it| it.1 != "trim" && wanted(it.1));
        all.map(|(_, op, offset, length)| (op.into(), place(offset), length)).collect()
    };
    let all = ios(&|_| true, &|place| place);
    let (times, found): (Vec<u64>, Ios) = again(&[]);
    assert_eq!((&times[..], &found), (&[0, 2000, 2000, 9000, 12_000][..], &all));
    // As in fio, neither of these has an effect.
    let idle = ["--loops=3", "--time_based", "--runtime=1s", "--number_ios=2", "--rw=randwrite"];
    assert_eq!(again(&idle), (times, all.clone()));
    let (times, found): (Vec<u64>, Ios) = again(&["--replay_time_scale=200"]);
    assert_eq!((&times[..], found), (&[0, 1000, 1000, 4500, 6000][..], all.clone()));
    let (times, found): (Vec<u64>, Ios) = again(&["--replay_no_stall=1"]);
    assert!(times[4] < 100, "{times:?}");
    assert_eq!(found, all);
    let (_, found): (_, Ios) = again(&["--replay_skip=write,trim"]);
    assert_eq!(found, ios(&|op| op == "read", &|place| place));
    let (_, found): (_, Ios) = again(&["--replay_align=8192"]);
    assert_eq!(found, ios(&|_| true, &|place| place - place % 8192));
    let (_, found): (_, Ios) = again(&["--replay_scale=2"]);
    assert_eq!(found, ios(&|_| true, &|place| place / 2 / 512 * 512));
    assert_eq!(again(&["--replay_redirect=/dev/x"]).1, all);
    // Without a log there is nothing to replay, which is reported.
    let alone = ["--device=null", "--scheduler=none", "--size=64k", "--replay_scale=2"];
    assert!(shown("sim", &alone).contains("no effect without read_iolog"));
}

#[test]
fn a_log_that_does_not_fit_its_job_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let log = "fio version 2 iolog\nx add\nx open\nx read 1099511627776 4096\nx close\n";
    std::fs::write(file("far"), log).expect("it can be written");
    std::fs::write(file("none"), "fio version 2 iolog\nx add\n").expect("it can be written");
    let common = ["--scheduler=none", "--device=null,size=64", "--name=a"];
    for (log, option, why) in [
        ("far", "", "its recording goes up to sector"),
        ("far", "--replay_scale=1048576", ""),
        ("none", "", "no I/O is in it"),
        ("absent", "", "No such file"),
        ("far", "--verify=crc32c", "a trace has no contents; accepted: read_iolog without it"),
        ("far", "--replay_align=100", "accepted: a power of two"),
        ("far", "--replay_skip=reads", "accepted: read, write, trim, sync"),
        ("far", "--replay_time_scale=0", "accepted"),
    ] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_blkmq"));
        let log = format!("--read_iolog={}", file(log));
        let options = common.iter().copied().chain([log.as_str(), option]);
        let options = options.filter(|option| !option.is_empty());
        let output = program.arg("sim").args(options).output().expect("it starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), why.is_empty(), "{log} {option}: {errors}");
        assert!(errors.contains(why), "{log} {option}: {errors}");
    }
}

fn blkmq(line: &str, more: &[&str]) -> Output {
    let args = line.split_whitespace();
    Command::new(env!("CARGO_BIN_EXE_blkmq")).args(args).args(more).output().expect("it starts")
}

fn shown(line: &str, more: &[&str]) -> String {
    let output = blkmq(line, more);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{line}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

fn log(name: &str, command: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.log"));
    let path = path.to_str().expect("a UTF-8 path").to_owned();
    let line = "--scheduler=mq-deadline:fifo_batch=4 --rw=randrw --numjobs=2 --iodepth=16 --size=1m --offset=4m";
    shown(&format!("{command} {line}"), &["--elevator-log", &path]);
    path
}

#[test]
fn logs_of_both_times_are_replayed_without_a_difference() {
    for command in ["bench", "sim --device null,irqmode=2,hw_queue_depth=2"] {
        let path = log(&command[..3], command);
        for scheduler in
            [&[][..], &["--scheduler=mq-deadline"], &["--scheduler=mq-deadline:fifo_batch=4"]]
        {
            let text = shown("replay", &[&[path.as_str()], scheduler].concat());
            assert!(text.contains("elevator 0 (mq-deadline fifo_batch=4): "), "{text}");
            assert!(text.contains("answers, all the same"), "{text}");
        }
    }
}

#[test]
fn another_scheduler_or_another_option_is_a_simulation() {
    let path = log("other", "sim");
    for scheduler in ["none", "mq-deadline:fifo_batch=1"] {
        let option = format!("--scheduler={scheduler}");
        let text = shown("replay", &[&path, &option]);
        assert!(text.contains(&format!("I/Os arrive again; simulated with {scheduler}")), "{text}");
        assert!(
            text.lines().any(|line| line.starts_with("sectors passed between picks")),
            "{text}"
        );
        let slow = "--device=null,irqmode=2,completion_nsec=9000000,hw_queue_depth=1";
        let other = shown("replay", &[&path, &option, slow]);
        assert_ne!(text, other, "the device matters");
    }
    let small = blkmq("replay", &[&path, "--scheduler=none", "--device=null,size=1"]);
    let message = String::from_utf8_lossy(&small.stderr).into_owned();
    assert!(
        small.status.code() == Some(2) && message.contains("accepted: a larger one"),
        "{message}"
    );
}

#[test]
fn requests_are_counted_by_priority() {
    let path = log("priorities", "sim --prioclass=3 --prio=5");
    for scheduler in [&[][..], &["--scheduler=bfq"]] {
        let text = shown("replay", &[&[path.as_str()], scheduler].concat());
        let has = |name: &str| text.lines().any(|line| line.starts_with(name));
        assert!(has("  reads, idle 5 ") && has("  others, idle 5 "), "{text}");
    }
}

/// A log with one changed answer: exit code 1, and the output shows the call and those before it.
#[test]
fn a_changed_answer_is_shown() {
    let path = log("changed", "sim --device null,irqmode=2,hw_queue_depth=2");
    let mut bytes = std::fs::read(&path).expect("it was written");
    // Options are stored at the beginning, as text and a signed number: fifo_batch=4 becomes 2.
    let at = bytes.windows(10).position(|it| it == b"fifo_batch").expect("the option is there");
    let at = bytes[at + 10..]
        .windows(10)
        .position(|it| it == b"fifo_batch")
        .map_or(at, |more| at + 10 + more);
    assert_eq!(bytes[at + 10], 8);
    bytes[at + 10] = 4;
    std::fs::write(&path, bytes).expect("it can be written");
    let output = blkmq("replay", &[&path]);
    assert_eq!(output.status.code(), Some(1));
    let (text, errors) = (output.stdout, output.stderr);
    let (text, errors) = (String::from_utf8_lossy(&text), String::from_utf8_lossy(&errors));
    assert!(errors.contains("is answered differently"), "{errors}");
    assert!(text.contains("(recorded)") && text.contains("(replayed)"), "{text}");
}
