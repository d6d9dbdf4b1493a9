//! `--elevator-log` and `blkmq replay`, end to end.

use std::path::PathBuf;
use std::process::{Command, Output};

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
