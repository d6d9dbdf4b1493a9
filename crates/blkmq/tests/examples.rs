//! The examples run and check themselves, and what two of them show is right: the scheduler keeps the contract
//! of schedulers, and the device that of devices.

#[path = "../examples/callbacks.rs"]
mod callbacks;
#[path = "../examples/copy.rs"]
#[allow(dead_code, reason = "its `main` takes arguments")]
mod copy;
#[path = "../examples/embed.rs"]
mod embed;
#[path = "../examples/own_device.rs"]
mod own_device;
#[path = "../examples/own_scheduler.rs"]
mod own_scheduler;
#[path = "../examples/storage_engine.rs"]
mod storage_engine;
#[path = "../examples/tokio.rs"]
mod tokio_tasks;

use blkmq::core::{IoMeta, Op};
use blkmq::sched::{At, Pick};
use blkmq::testkit::{self, scheduler::Driver};
use own_device::Ram;

#[test]
fn embed_runs() {
    embed::main().expect("nothing fails on the null device");
}

/// A file of 3 MiB and a block, each of whose words says where it is.
#[test]
fn copy_copies_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let words = (0..(3 << 20 | 4096) / 8_u64).flat_map(u64::to_le_bytes);
    std::fs::write(path("from"), Vec::from_iter(words)).expect("there is room");
    let open = |text: &str| blkmq::open(&format!("uring:{}", path(text).display()));
    let from = match open("from,readonly=1") {
        Err(error) if error.is_unavailable() => {
            eprintln!("skipped copy_copies_a_file: {error}");
            return;
        }
        opened => opened.expect("it is there"),
    };
    let to = open("to,size=4").expect("it is made");
    assert_eq!(copy::copy(&from, &to).expect("nothing fails"), 3 << 20 | 4096);
    let small = blkmq::open("memory,size=1").expect("memory");
    let refused = copy::copy(&from, &small).expect_err("it does not fit").to_string();
    assert!(refused.contains("do not fit into 1048576"), "{refused}");
    drop(to);
    let written = std::fs::read(path("to")).expect("it is there");
    let original = std::fs::read(path("from")).expect("it is there");
    assert!(written[..original.len()] == original[..]);
}

#[test]
fn copy_runs() {
    let memory = || blkmq::open("memory,size=5").expect("memory");
    assert_eq!(copy::copy(&memory(), &memory()).expect("nothing fails"), 5 << 20);
}

#[test]
fn callbacks_runs() {
    callbacks::main().expect("nothing fails on the null device");
}

#[test]
fn tokio_runs() {
    tokio_tasks::main().expect("nothing fails on the null device");
}

#[test]
fn storage_engine_loses_nothing_that_it_acknowledged() {
    storage_engine::main().expect("its disk keeps what was flushed");
}

#[test]
fn own_scheduler_runs() {
    own_scheduler::main().expect("nothing fails on the null device");
}

#[test]
fn own_device_runs_and_gives_back_what_was_written() {
    own_device::main().expect("pages come back as written");
}

#[test]
fn own_scheduler_keeps_the_contract() {
    for seed in 0..100 {
        let outcome = testkit::scheduler::conformance(&own_scheduler::FACTORY, seed);
        assert!(outcome.picked > 0, "seed {seed}: nothing was picked");
    }
}

#[test]
fn own_scheduler_caps_writes_and_lets_reads_pass() {
    let mut driver = Driver::of(&own_scheduler::FACTORY, 16, "writes=2");
    let insert = |driver: &mut Driver, op, n: u64| -> Vec<_> {
        let meta = |nth| IoMeta::new(op, nth * 64, 8);
        (0..n).map(|nth| driver.insert_meta(meta(nth), At::Tail).expect("a free slot")).collect()
    };
    let writes = insert(&mut driver, Op::Write, 3);
    let reads = insert(&mut driver, Op::Read, 3);
    // In turns, and only reads once two writes are at the device.
    for expected in [reads[0], writes[0], reads[1], writes[1], reads[2]] {
        assert_eq!(driver.pick(), Pick::Issue(expected));
    }
    assert_eq!(driver.pick(), Pick::WaitCompletion);
    driver.complete(writes[0]);
    assert_eq!(driver.pick(), Pick::Issue(writes[2]));
    assert_eq!(driver.pick(), Pick::Empty);
    driver.requeue(writes[1]);
    assert_eq!(driver.pick(), Pick::Issue(writes[1]));
    driver.drain();
}

#[test]
fn own_device_conforms() {
    for seed in 0..20 {
        let outcome =
            testkit::device::conformance(Ram::shape(), vec![Box::new(Ram::zeroed())], seed);
        assert_eq!(outcome.failed, 0, "seed {seed}");
        let held = testkit::device::abandonment(Ram::shape(), vec![Box::new(Ram::zeroed())], seed);
        assert!(held > 0, "seed {seed}: nothing was inside");
    }
}
