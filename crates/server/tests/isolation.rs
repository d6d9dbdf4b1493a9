//! The time of a modelled device is the time that a client sees.
//!
//! Shares and latencies under load are measured with real clients (`cargo xtask serve-isolation`): they depend on the
//! machine.

use crate::rig::serve_on;
use blkmq_server::{Bounds, Export};

/// A worker slept in whole milliseconds, so that every I/O of a faster device took one.
#[test]
fn an_io_of_50_microseconds_takes_less_than_a_millisecond() {
    let device = "null,size=16,irqmode=2,completion_nsec=50000";
    let rig = serve_on(device, &[Export::new("disk", 0)], Bounds::default());
    let mut client = rig.client("disk");
    let clock = rig.server.disks()[0].service().clock();
    let times = (0..500).map(|_| {
        let begun = clock.now();
        client.read(0, 512).expect("it is there");
        (clock.now() - begun).0
    });
    let mut times: Vec<u64> = times.collect();
    times.sort_unstable();
    // One of the shorter ones: a busy machine delays many of them, and never shortens one.
    let tenth = times[times.len() / 10];
    assert!((50_000..1_000_000).contains(&tenth), "{tenth} ns");
}
