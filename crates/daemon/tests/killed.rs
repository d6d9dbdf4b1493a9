//! Virtual disks of a server that is killed: the next server takes over the requests in flight.

use crate::guest::{Ask, Guest, IN, OUT, SIZE};
use crate::serve::serve;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

const QUEUES: u16 = 2;
/// Requests in flight in each queue; 100 in total.
const PLACES: u16 = 50;
const BYTES: u32 = 4096;

/// The number of kills; `BLKMQ_KILLS` overrides it.
fn kills() -> u32 {
    std::env::var("BLKMQ_KILLS").map_or(20, |text| text.parse().expect("a number"))
}

fn served(folder: &Path) -> Child {
    let at = |name: &str| folder.join(name).display().to_string();
    let (child, lines) = serve(&[
        &format!("--device=uring:{},size=16m", at("disk.img")),
        "--scheduler=mq-deadline",
        &format!("--export=gold,vhost-user={},queues={QUEUES}", at("gold.sock")),
        &format!("--listen=unix:{}", at("nbd.sock")),
    ]);
    assert!(lines.last().is_some_and(|line| line.starts_with("SIGTERM")), "{lines:?}");
    child
}

fn sector(queue: u16, place: u16) -> u64 {
    u64::from(queue * SIZE + place) * 8
}

/// The byte that a round writes at a place, different from that of the previous rounds.
fn byte(round: u32, queue: u16, place: u16) -> u8 {
    (round * 7) as u8 ^ (queue * 128 + place) as u8
}

/// Takes the available answers, or waits for some. Each request must be answered once.
fn count(answers: Vec<(u16, u32, u8)>, answered: &mut [u32]) {
    for (place, _, status) in answers {
        assert_eq!(status, 0, "the request at place {place}");
        answered[usize::from(place)] += 1;
    }
}

#[test]
fn a_killed_server_loses_no_request_of_a_guest_and_answers_none_twice() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let mut server = served(folder.path());
    let socket = folder.path().join("gold.sock");
    let mut guest = Guest::start(&socket, QUEUES, 0);
    // The numbers of rounds in which no, some and all requests had been answered.
    let mut found = [0; 3];
    for round in 0..kills() {
        for queue in 0..QUEUES {
            for place in 0..PLACES {
                guest.set_data(queue, place, &[byte(round, queue, place); BYTES as usize]);
                let ask = Ask { kind: OUT, ioprio: 0, sector: sector(queue, place), len: BYTES };
                guest.offer(queue, place, ask, 512);
            }
            guest.kick(queue);
        }
        // Up to 1 ms after the kick: before, during and after the writes.
        std::thread::park_timeout(Duration::from_micros(u64::from(round * 37 % 100) * 10));
        server.kill().expect("it runs");
        server.wait().expect("it was started here");
        let mut answered = [[0; PLACES as usize]; QUEUES as usize];
        for (queue, answered) in (0..QUEUES).zip(&mut answered) {
            count(guest.answers(queue), answered);
        }
        let before: u32 = answered.as_flattened().iter().sum();
        let all = u32::from(QUEUES * PLACES);
        found[usize::from(before > 0) + usize::from(before == all)] += 1;
        server = served(folder.path());
        guest.reconnect(&socket);
        for (queue, answered) in (0..QUEUES).zip(&mut answered) {
            guest.kick(queue);
            while answered.contains(&0) {
                count(guest.wait(queue), answered);
            }
        }
        let once = answered.as_flattened().iter().all(|count| *count == 1);
        assert!(once, "round {round}: each is answered once: {answered:?}");
        for queue in 0..QUEUES {
            for place in 0..PLACES {
                let ask = Ask { kind: IN, ioprio: 0, sector: sector(queue, place), len: BYTES };
                assert_eq!(guest.carry_out(queue, ask), (BYTES + 1, 0), "round {round}");
                let expected = byte(round, queue, place);
                let data = guest.data(queue, 0, BYTES as usize);
                assert!(data.iter().all(|it| *it == expected), "round {round}: place {place}");
            }
        }
    }
    println!("answered before the kill: none {}, some {}, all {}", found[0], found[1], found[2]);
    server.kill().expect("it runs");
    server.wait().expect("it was started here");
}
