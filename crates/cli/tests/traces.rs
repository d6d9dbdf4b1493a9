//! `blkmq trace` and `blkmq replay` of other programs' traces, from one end to the other.

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
        // The rows of MQSim do not tell their unit.
        let format = if form == "mqsim" { "--format=mqsim" } else { "--skip-bad=0" };
        let again = shown("trace", &["info", &file(form), format]);
        let line =
            |text: &str| text.lines().find(|it| it.starts_with("working set")).map(String::from);
        assert_eq!(line(&again), line(&info), "{form}");
    }
}

/// Each task has options of its own.
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
