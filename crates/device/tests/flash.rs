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
#[test]
fn calibrate_env() {
    let text = std::env::var("FT").unwrap();
    println!("{text}");
    let d = device("flash", &text);
    println!("{:?}", d.notes);
    for job in std::env::var("FJ").unwrap().split(';') {
        let p: Vec<u64> = job.split(',').skip(1).map(|x| x.parse().unwrap()).collect();
        let d = device("flash", &text);
        let j = if job.starts_with('r') { Job::random(p[0], p[1] as u32, p[2]) } else { Job::sequential(p[0], p[1] as u32, p[2]) };
        let m = j.run(&d);
        let s = d.flash().unwrap().stats();
        println!("{job}: iops {} mbps {} r {} w {} wa {} {:?}", m.iops, m.mbps, m.read_ns, m.write_ns, s.write_amplification_permille(), s);
    }
}
