//! Files are locked against a second writer. These tests start no process: a forked process holds the locks until it
//! runs another program.

#![cfg(target_os = "linux")]

use crate::common;

use blkmq_buf::AlignedBuf;
use blkmq_uring::{Conflict, OpenError, Permission, UringDevice};
use common::{BLOCK, TempFile};

const SIZE: u64 = 16 * BLOCK as u64;

fn in_use(opened: Result<UringDevice, OpenError>) -> (Conflict, String) {
    let error = opened.expect_err("it is in use");
    let text = error.to_string();
    assert!(error.is_busy());
    match error {
        OpenError::InUse { conflict, .. } => (conflict, text),
        other => panic!("{other}"),
    }
}

#[test]
fn one_writer_at_a_time_and_any_number_of_readers() {
    let test = "one_writer_at_a_time";
    let file = TempFile::new(test, SIZE);
    let path = file.path().display().to_string();
    let again = |options| file.try_open(options);
    let Some(first) = file.open(test, "") else { return };
    let (conflict, text) = in_use(again(""));
    assert_eq!(conflict, Conflict::Used(Permission::Write));
    let told = [path.as_str(), "has it open for writing", "readonly=1", "locking=0"];
    assert!(told.iter().all(|word| text.contains(word)), "{text}");
    in_use(again(",size=1"));
    assert_eq!(file.bytes().len() as u64, SIZE, "it was not extended");
    again(",locking=0").expect("as was asked for");
    let readers = [again(",readonly=1"), again(",readonly=1")].map(|it| it.expect("they share"));
    let second = first.clone();
    drop(first);
    in_use(again(""));
    drop(second);
    again("").expect("the writer has gone, and readers let it write");
    drop(readers);
}

/// The rings hold the file, too; the lock is free as soon as they are gone.
#[test]
fn the_lock_goes_away_with_the_queues() {
    let test = "the_lock_goes_away_with_the_queues";
    let file = TempFile::new(test, SIZE);
    for options in ["", ",fixed=0", ",direct=0", ",hw_queues=4", ",size=1"] {
        for round in 0..20 {
            let Some(device) = file.open(test, options) else { return };
            let queues = device.queues::<AlignedBuf>().expect("small rings");
            drop(device);
            in_use(file.try_open(options));
            drop(queues);
            assert!(file.try_open("").is_ok(), "{options} round {round}");
        }
    }
}
