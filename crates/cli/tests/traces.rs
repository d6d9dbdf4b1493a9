//! `blkmq trace` and `blkmq replay` of other programs' traces, end to end.

use std::fmt::Write;
use std::process::Command;

fn shown(command: &str, more: &[&str]) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_blkmq"));
    let output = program.arg(command).args(more).output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{command} {more:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
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
