//! Locks against programs of QEMU, and a failing layout of a file, in a process with a limit on file sizes.

#![cfg(target_os = "linux")]

mod files;

use blkmq_uring::UringDevice;
use files::{BLOCK, TempFile, open};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

const SIZE: u64 = 16 * BLOCK as u64;

/// Serializes the tests: between fork and exec, a process started by one test has the files of the others open, and
/// with them their locks.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A word of qemu-io's message about a file that it cannot lock.
const LOCKED: &str = "lock";

/// qemu-io around `path`; `None`, and a line that names the test, if it is not installed.
fn qemu_io(test: &str, path: &Path, args: &[&str]) -> Option<Command> {
    if let Err(e) = Command::new("qemu-io").arg("--version").output() {
        eprintln!("skipped {test}: qemu-io: {e}");
        return None;
    }
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw"]).args(args).arg(path).stdin(Stdio::null());
    Some(command)
}

#[test]
fn qemu_does_not_write_while_a_file_is_open_for_writing_here() {
    let test = "qemu_does_not_write_while_a_file_is_open_for_writing_here";
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let file = TempFile::new(test, SIZE);
    let Some(device) = file.open(test, "") else { return };
    let Some(mut command) = qemu_io(test, file.path(), &["-c", "write 0 4k"]) else { return };
    let said = |command: &mut Command| {
        let output = command.output().expect("it is installed");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let text = said(&mut command);
    assert!(text.contains(LOCKED) && file.bytes() == [0; SIZE as usize], "{text}");
    drop(device);
    let reader = file.open(test, ",readonly=1").expect("it opens");
    let text = said(&mut command);
    assert!(!text.contains(LOCKED), "a reader here lets it write: {text}");
    drop(reader);
    assert_eq!(file.bytes()[..BLOCK], [0xcd; BLOCK], "as qemu-io fills");
}

/// qemu-io reads its commands from a pipe, and has the file open until the pipe is closed.
#[test]
fn a_file_that_qemu_has_open_for_writing_is_refused_here() {
    let test = "a_file_that_qemu_has_open_for_writing_is_refused_here";
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let file = TempFile::new(test, SIZE);
    if file.open(test, "").is_none() {
        return;
    }
    for (args, refuses) in [(&[][..], true), (&["-r"], false)] {
        let Some(mut command) = qemu_io(test, file.path(), args) else { return };
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.expect("it is installed");
        // The prompt appears when the file is open.
        let mut prompt = [0; 7];
        let stdout = child.stdout.as_mut().expect("a pipe");
        std::io::Read::read_exact(stdout, &mut prompt).expect("qemu-io shows its prompt");
        let opened = file.try_open("");
        let reader = file.try_open(",readonly=1");
        drop(child.stdin.take());
        child.wait().expect("it ends with its input");
        match opened {
            Ok(_) => assert!(!refuses, "{args:?}"),
            Err(e) => {
                let text = e.to_string();
                assert!(refuses && text.contains("has it open for writing"), "{args:?}: {text}");
            }
        }
        assert!(reader.is_ok(), "{args:?}: a reader is welcome");
    }
    assert!(file.try_open("").is_ok(), "it has ended");
}

/// If the file system becomes full during the layout, a new file is removed, and an existing one gets its former
/// length. Here a limit on file sizes causes the error, in a separate process.
#[test]
fn what_cannot_be_laid_out_leaves_nothing_behind() {
    let test = "what_cannot_be_laid_out_leaves_nothing_behind";
    if let Ok(path) = std::env::var("BLKMQ_TEST_LAYOUT") {
        let refused = UringDevice::parse(&format!("{path},size=8")).expect_err("beyond the limit");
        println!("refused: {refused}");
        return;
    }
    if open(test, "/nowhere").is_none() {
        return;
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let program = std::env::current_exe().expect("a test is a program");
    let old = TempFile::new(test, SIZE);
    let new = old.path().with_extension("new");
    for path in [&new, old.path()] {
        // The signal would end the process. If it is ignored, the error is EFBIG.
        let script = "ulimit -f 2000 && trap '' XFSZ && exec \"$0\" --exact --nocapture \"$1\"";
        let output = Command::new("sh")
            .args(["-c", script])
            .arg(&program)
            .arg(test)
            .env("BLKMQ_TEST_LAYOUT", path)
            .output()
            .expect("there is a shell");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("refused: cannot extend"), "{said}");
    }
    assert!(!new.exists(), "it was created for this");
    assert_eq!(old.bytes(), [0; SIZE as usize], "it is as it was");
}
