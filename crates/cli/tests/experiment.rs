//! `blkmq experiment`: results do not depend on which process ran which points, and answers are as known in advance.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

fn blkmq(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blkmq"));
    command.arg("experiment").args(words).current_dir(folder).env("COLUMNS", "100");
    command
}

fn shown(folder: &Path, words: &[&str]) -> String {
    let output = blkmq(folder, words).output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

fn refused(folder: &Path, words: &[&str]) -> (Option<i32>, String) {
    let output = blkmq(folder, words).output().expect("it starts");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn bytes(folder: &Path, out: &str) -> Vec<Vec<u8>> {
    let file = |name| std::fs::read(folder.join(out).join(name)).expect("a result");
    ["runs.jsonl", "runs.csv"].map(file).to_vec()
}

fn study(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("studies").join(name)
}

/// A grid of 5 schedulers, 4 settings and 10 seeds.
const GRID: &str = r#"
    options = { device = "cloud", size = "2m" }
    job = [{ name = "r", rw = "randread" }, { name = "w", rw = "randwrite", bs = "32k" }]
    [grid]
    scheduler = ["none", "mq-deadline", "kyber", "bfq", "mclock"]
    "r.iodepth" = [1, 4, 16, 64]
    seed = "1..10"
"#;

#[test]
fn killed_resumed_and_sharded_ones_are_equal_to_the_byte() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("grid.toml"), GRID).expect("it can be written");
    let text = shown(folder.path(), &["grid.toml", "--out=whole"]);
    assert!(text.contains("200 of 200 points"), "{text}");
    let whole = bytes(folder.path(), "whole");
    assert_eq!(whole[0].iter().filter(|byte| **byte == b'\n').count(), 200);

    // Killed as soon as some points are done, repeatedly, until one process reaches the end.
    let rows = || {
        let text = std::fs::read(folder.path().join("killed/shard-1-of-1.jsonl"));
        text.unwrap_or_default().iter().filter(|byte| **byte == b'\n').count()
    };
    let mut kills = 0;
    loop {
        let mut command = blkmq(folder.path(), &["grid.toml", "--out=killed", "--threads=1"]);
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        let before = rows();
        let ended = loop {
            if let Some(status) = child.try_wait().expect("a child") {
                break Some(status);
            }
            if rows() > before + 30 {
                break None;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        };
        match ended {
            Some(status) => {
                assert!(status.success(), "{status}");
                break;
            }
            None => {
                child.kill().expect("it runs");
                child.wait().expect("it is killed");
                kills += 1;
            }
        }
    }
    assert!(kills > 0, "no run was killed");
    assert_eq!(bytes(folder.path(), "killed"), whole);

    for shard in ["3/3", "1/3", "2/3"] {
        let shard = format!("--shard={shard}");
        let early = refused(folder.path(), &["merge", "--out=parts"]);
        assert_ne!(early.0, Some(0), "{early:?}");
        shown(folder.path(), &["grid.toml", "--out=parts", &shard]);
    }
    let merged = shown(folder.path(), &["merge", "--out=parts"]);
    assert_eq!(bytes(folder.path(), "parts"), whole);
    assert_eq!(merged.replace("parts/", "whole/"), text);
}

/// The answers, which are the same for other seeds.
#[test]
fn questions_with_a_known_answer_are_answered() {
    let folder = tempfile::tempdir().expect("a folder");
    for seeds in ["1..8", "101..108"] {
        let answer = |name: &str| {
            let text = std::fs::read_to_string(study(name)).expect("a study");
            assert!(text.contains("\"1..8\""), "{text}");
            let (file, out) = (format!("{seeds}-{name}"), format!("--out={name}-{seeds}"));
            std::fs::write(folder.path().join(&file), text.replace("1..8", seeds)).expect("room");
            shown(folder.path(), &[&file, &out])
        };
        let disk = answer("reader-beside-writers.toml");
        assert!(disk.contains("\nreader.read_p99: bfq is best, -"), "{disk}");
        assert!(disk.contains("\nwriters.write_p99: none is best; worse: bfq\n"), "{disk}");
        let flash = answer("eight-streams.toml");
        assert!(flash.contains("\nstreams.iops: no difference\n"), "{flash}");
        let floor = answer("floor.toml");
        assert!(floor.contains("\nsmall.iops: b:weight=10,reserve_iops=200 is best, "), "{floor}");
        assert!(floor.contains("reserve_iops=200     200  "), "200 in a second: {floor}");
        let cost = "\nlarge.iops: b:weight=10 is best; worse: b:weight=10,reserve_iops=200\n";
        assert!(floor.contains(cost), "{floor}");
    }
}

#[test]
fn traces_are_points_and_their_contents_count() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = |step: u64| -> String {
        let row = |at: u64| {
            format!("{},read,{},4096,a,v,none,\n", at * 100_000, at * step % 9_999 * 4096)
        };
        (0..500)
            .map(row)
            .fold("time_ns,op,offset,size,tenant,volume,class,latency_ns\n".into(), |all, row| {
                all + &row
            })
    };
    let put =
        |name: &str, text: String| std::fs::write(folder.path().join(name), text).expect("room");
    put("a.csv", trace(7));
    put("b.csv", trace(1));
    let text = "program = 'replay'\noptions = { device = 'disk', think = true }\n[grid]\ntrace = ['a.csv', 'b.csv']\n\
                scheduler = ['none', 'mq-deadline']\nseed = '1..5'\n";
    put("replays.toml", text.into());
    let first = shown(folder.path(), &["replays.toml"]);
    assert!(
        first.contains("trace  figure") && first.contains("trace a.csv, a.read_p99"),
        "{first}"
    );
    let before = bytes(folder.path(), "replays");
    shown(folder.path(), &["replays.toml"]);
    assert_eq!(bytes(folder.path(), "replays"), before);
    // A different trace under the same name is a different point.
    put("b.csv", trace(13));
    let output = blkmq(folder.path(), &["replays.toml"]).output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("10 of 20 points are in replays already"), "{errors}");
    assert!(errors.contains("10 rows in replays are of no point of the study"), "{errors}");
}

#[test]
fn studies_that_cannot_be_run_are_refused_before_the_first_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let refuses = |text: &str, says: &str| {
        std::fs::write(folder.path().join("bad.toml"), text).expect("room");
        let (code, errors) = refused(folder.path(), &["bad.toml"]);
        assert!(code == Some(2) && errors.contains(says), "{text}: {code:?} {errors}");
        assert!(!folder.path().join("bad").exists(), "{text}: a folder was made");
    };
    refuses("grid = 1", "bad.toml: line 1: ");
    refuses("\n\nbogus = 1\n[grid]\nseed=[1]", "line 3: unknown field `bogus`");
    refuses("[grid]\nscheduler=['none','nosuch']\nrw=['read']", "scheduler=nosuch: ");
    refuses("[grid]\nscheduler=['none,bfq']\nrw=['read']", "2 runs in one point");
    refuses(
        "[options]\nscheduler='bfq'\nwrite_lat_log='x'\nrw='read'\n[grid]\nseed=[1]",
        "write_*_log: of a single run",
    );
    refuses(
        "[options]\nscheduler='bfq'\noutput='x'\nrw='read'\n[grid]\nseed=[1]",
        "output: of a single run",
    );
    refuses("[options]\nshowcmd=true\nrw='read'\n[grid]\nseed=[1]", "an option prints something");
    refuses("program='replay'\ntrace='none.csv'\n[grid]\nseed=[1]", "none.csv: No such file");
    let text = "[options]\nrw='read'\nsize='1m'\n[grid]\nseed=[1,2]\n[compare]\nmetrics=['x']\naxis='seed'\npair='seed'";
    refuses(text, "both compared and paired");
    let (code, errors) = refused(folder.path(), &["merge", "--shard=1/2"]);
    assert!(code == Some(2) && errors.contains("--shard: not of merge"), "{errors}");
    let (code, errors) = refused(folder.path(), &["bad.toml", "--shard=0/2"]);
    assert!(code == Some(2) && errors.contains("accepted: I/N"), "{errors}");
}
