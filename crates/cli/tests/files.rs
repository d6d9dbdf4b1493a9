//! Runs on files named by `filename`: they get the I/O, and are laid out as in fio.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

fn blkmq(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_blkmq")).args(args).output().expect("the binary starts")
}

/// A path for one test, in cargo's folder for integration tests.
fn path(name: &str) -> (PathBuf, String) {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&path);
    let text = path.to_str().expect("a UTF-8 path").to_owned();
    (path, text)
}

/// The report of a run; `None` if io_uring is unavailable.
fn report(test: &str, line: &str) -> Option<Value> {
    let args = format!("bench --scheduler=mq-deadline --output-format=json {line}");
    let output = blkmq(&Vec::from_iter(args.split_whitespace()));
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("io_uring is not available here") || errors.contains("io_uring lacks") {
        println!("skipped {test}: {errors}");
        return None;
    }
    assert!(output.status.success(), "{line}: {errors}");
    let text = String::from_utf8(output.stdout).expect("text");
    Some(serde_json::from_str(&text).expect("JSON"))
}

/// The run of a file that did not exist was reported at "406k IOPS", on the null device.
#[test]
fn a_file_is_laid_out_and_its_data_is_what_was_written() {
    let test = "a_file_is_laid_out_and_its_data_is_what_was_written";
    let (path, name) = path("laid-out");
    let jobs = format!(
        "--filename={name} --ioengine=libaio --direct=1 --bs=4k --size=256k --offset=64k --verify=crc32c"
    );
    let Some(written) = report(test, &format!("{jobs} --name=w --rw=randwrite --do_verify=0"))
    else {
        return;
    };
    assert_eq!(written["jobs"][0]["write"]["total_ios"], 64);
    let bytes = std::fs::read(&path).expect("it was laid out");
    assert_eq!(bytes.len(), (256 + 64) << 10);
    let heads = bytes[64 << 10..].chunks(4096).map(|block| &block[..2]);
    let mut heads = Vec::from_iter(heads);
    heads.dedup();
    assert_eq!(heads.len(), 1, "every block begins with the header of a verified one");
    // A second command finds the data where the first one has put it.
    let read = report(test, &format!("{jobs} --name=w --rw=read")).expect("as before");
    assert_eq!(read["jobs"][0]["error"], 0);
    // A file that is long enough keeps its length.
    report(test, &format!("--filename={name} --size=4k --rw=read --direct=1")).expect("as before");
    assert_eq!(std::fs::metadata(&path).expect("it is there").len(), (256 + 64) << 10);
    std::fs::remove_file(&path).expect("it was there");
}

/// Regression test: the message named an option that the user had not given.
#[test]
fn a_file_that_cannot_be_made_is_named_as_the_user_wrote_it() {
    let (_, name) = path("no-folder");
    let output =
        blkmq(&["bench", &format!("--filename={name}/x"), "--size=1m", "--rw=read", "--name=a"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains(&format!("filename={name}/x: ")), "{error}");
    assert!(!error.contains("--device"), "{error}");
}

#[test]
fn each_file_gets_its_share_and_is_verified() {
    let test = "each_file_gets_its_share_and_is_verified";
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().display();
    let jobs = format!(
        "--directory={place} --ioengine=libaio --direct=1 --bs=4k --size=256k --nrfiles=4 --iodepth=8 --verify=crc32c"
    );
    let Some(written) = report(test, &format!("{jobs} --name=w --numjobs=2 --rw=randwrite")) else {
        return;
    };
    for job in 0..2 {
        assert_eq!(written["jobs"][job]["write"]["total_ios"], 64);
        assert_eq!(written["jobs"][job]["blkmq"]["verify"]["verified"], 256 << 10);
        for file in 0..4 {
            let path = folder.path().join(format!("w.{job}.{file}"));
            let bytes = std::fs::read(path).expect("it was laid out");
            assert_eq!(bytes.len(), 64 << 10);
            assert!(bytes.chunks(4096).all(|block| block[..2] == bytes[..2]), "all are written");
        }
    }
    // A second command has one of the files at another position on its device, and still finds its data.
    let one =
        format!("--filename={place}/w.1.3 --direct=1 --bs=4k --name=w --rw=read --verify=crc32c");
    assert_eq!(report(test, &one).expect("as before")["jobs"][0]["error"], 0);
    // Data of one block in place of another is detected, in whichever file it is.
    let path = folder.path().join("w.0.2");
    let mut bytes = std::fs::read(&path).expect("it is there");
    bytes.copy_within(0..4096, 8192);
    std::fs::write(&path, bytes).expect("it can be written");
    let all = format!("bench --scheduler=none --name=w --rw=read {jobs}");
    let output = blkmq(&Vec::from_iter(all.split_whitespace()));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("job 'w'"), "{errors}");
}

#[test]
fn a_dry_run_lays_out_nothing() {
    let (path, name) = path("dry");
    let line =
        format!("bench --dry-run --filename={name} --size=1m --ioengine=io_uring --direct=1");
    let output = blkmq(&Vec::from_iter(line.split_whitespace()));
    // Long lines are wrapped, commands after a backslash.
    let text = String::from_utf8_lossy(&output.stdout).replace("\\\n", "");
    let text = Vec::from_iter(text.split_whitespace()).join(" ");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains(&format!("uring:{name},size=1048576b")), "{text}");
    assert!(text.contains("is laid out before the first run: 1048576 bytes"), "{text}");
    assert!(!path.exists());
}

#[test]
fn a_job_file_comes_from_standard_input() {
    use std::io::Write;
    let mut child = Command::new(env!("CARGO_BIN_EXE_blkmq"))
        .args(["bench", "--dry-run", "-"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"[piped]\nname=other\nrw=randread\n").expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("[other]\nrw=randread\n"));
}
