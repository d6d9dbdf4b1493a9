//! The flash device's presets against what was published about the drives.

#[path = "common/closed_loop.rs"]
mod closed_loop;
mod common;

use closed_loop::{Job, Measured};
use common::device;

fn run(text: &str, job: Job) -> Measured {
    job.run(&device("flash", text))
}

#[test]
fn calibrate() {
    for preset in ["sata", "sata-dc", "nvme-tlc", "nvme-mlc", "low-latency"] {
        println!("== {preset}");
        let text = format!("preset={preset},size=2048,submit_queues=1");
        for depth in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
            let r = run(&text, Job::random(100, depth, 20_000));
            println!("read qd{depth}: {} iops {} ns", r.iops, r.read_ns);
        }
        for depth in [1, 2, 4, 8, 16, 32] {
            let r = run(&text, Job::random(0, depth, 20_000));
            println!("write qd{depth}: {} iops {} ns", r.iops, r.write_ns);
        }
        for reads in [100, 0] {
            let r = run(&text, Job::sequential(reads, 32, 16_000));
            println!("sequential reads {reads}: {} MB/s", r.mbps);
        }
        let text = format!("{text},preconditioned=2");
        for (reads, depth) in [(0, 128), (70, 16), (70, 128), (50, 1), (50, 8), (50, 16), (50, 32)] {
            let r = run(&text, Job::random(reads, depth, 300_000));
            println!("steady mix {reads} qd{depth}: {r:?}");
        }
    }
}
