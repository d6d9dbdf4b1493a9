//! The latency of a modelled device is the latency that a client sees.
//!
//! Shares and latencies under load depend on the machine, and are measured with real clients (`cargo xtask
//! serve-isolation`).

use crate::rig::serve_on;
use blkmq::core::Class;
use blkmq_nbd::{Command, CommandFlags};
use blkmq_server::{Bounds, Export, Region};

/// Regression test: a worker slept in whole milliseconds, so that every I/O of a faster device took one.
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
    // A short one: a busy machine delays many I/Os, but never speeds one up.
    let tenth = times[times.len() / 10];
    assert!((50_000..1_000_000).contains(&tenth), "{tenth} ns");
}

/// The device serves one request at a time, in 5 ms. Reads of a real-time export that arrive after 64 others, and
/// follow them on the disk, are served before most of them.
#[test]
fn a_real_time_export_is_served_first() {
    let export = |name: &str, offset, class| {
        let region = Some(Region { offset, size: Some(8 << 20) });
        Export { region, class, ..Export::new(name, 0) }
    };
    let exports = [export("idle", 0, Class::Idle), export("urgent", 8 << 20, Class::Realtime)];
    let device = "null,size=16,irqmode=2,completion_nsec=5000000,hw_queue_depth=1";
    let rig = serve_on(device, &exports, Bounds::default());
    let service = rig.server.disks()[0].service();
    // All of them are in the scheduler.
    service.set_attribute("queue/nr_requests", "128").expect("it can be changed");
    let clock = service.clock();
    let (mut idle, mut urgent) = (rig.client("idle"), rig.client("urgent"));
    let send = |client: &mut crate::client::Client, count: u64| {
        for at in 0..count {
            client.send(Command::Read, CommandFlags::NONE, at << 16, 512, &[]);
        }
    };
    send(&mut idle, 64);
    // The first ones have reached the device.
    idle.answer().1.expect("it is there");
    send(&mut urgent, 8);
    let last = |mut client: crate::client::Client, count| {
        std::thread::spawn(move || {
            (0..count).for_each(|_| drop(client.answer().1.expect("it is there")));
            clock.now()
        })
    };
    let [idle, urgent] = [last(idle, 63), last(urgent, 8)].map(|it| it.join().expect("answers"));
    assert!(urgent < idle, "{} ns later than all others", (urgent - idle).0);
}
