//! Schedulers, weights, limits and depths change while clients read back what they wrote.

use crate::client::Client;
use crate::rig::{NoProgram, serve};
use blkmq_nbd::{Command, CommandFlags};
use blkmq_server::Export;
use blkmq_server::control::{Answer, ExportSettings, Request, call};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const CHANGES: usize = 200;
const EXPORTS: [&str; 2] = ["one", "two"];

#[test]
fn no_io_notices_200_changes() {
    let exports = (0..).zip(EXPORTS).map(|(at, name)| {
        let region = blkmq_server::Region { offset: at * (8 << 20), size: Some(8 << 20) };
        Export { region: Some(region), ..Export::new(name, 0) }
    });
    let mut rig = serve(&exports.collect::<Vec<_>>());
    let socket = rig.socket.with_extension("control");
    rig.server.control(&socket, Box::new(NoProgram)).expect("the path is free");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients = EXPORTS.map(|name| {
            let (mut client, is_over) = (rig.client(name), &is_over);
            scope.spawn(move || {
                let mut rounds = 0;
                while !is_over.load(Ordering::Relaxed) {
                    round(&mut client, rounds);
                    rounds += 1;
                }
                rounds
            })
        });
        {
            // If a change fails, the clients end, too.
            let _over = Over(&is_over);
            for n in 0..CHANGES {
                change(&socket, n);
            }
        }
        for client in clients {
            assert!(client.join().expect("every read was right") > 0);
        }
    });
    rig.check_at_rest();
}

/// Tells the clients to end, on drop.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// 16 writes at a time, then 16 reads of the same blocks.
fn round(client: &mut Client, round: u64) {
    let none = CommandFlags::NONE;
    let at = |n: u64| (round * 16 + n) % 2048 * 4096;
    let data = |n: u64| vec![(round * 16 + n) as u8; 4096];
    for n in 0..16 {
        client.send(Command::Write, none, at(n), 4096, &data(n));
    }
    for _ in 0..16 {
        assert_eq!(client.answer().1, Ok(vec![]));
    }
    let reads: Vec<_> =
        (0..16).map(|n| (client.send(Command::Read, none, at(n), 4096, &[]), data(n))).collect();
    for _ in 0..16 {
        let (cookie, answer) = client.answer();
        let (_, data) = reads.iter().find(|(read, _)| *read == cookie).expect("it was asked for");
        assert!(answer.as_ref() == Ok(data), "in round {round}");
    }
}

/// Performs change number `n`. Every second change is one of scheduler.
fn change(socket: &Path, n: usize) {
    let set = |path: &str, value: String| Request::Set { device: 1, path: path.to_owned(), value };
    let export = |settings| Request::Export { name: EXPORTS[n / 8 % 2].to_owned(), settings };
    let max = |max: &str| ExportSettings { max: Some(max.to_owned()), ..ExportSettings::default() };
    let schedulers = ["bfq", "none", "kyber", "auto"];
    let request = match n % 8 {
        1 => export(ExportSettings { weight: Some(1 + n as u32), ..ExportSettings::default() }),
        3 => export(max("wiops=20000 rbps=100000000")),
        5 => set("queue/nr_requests", (16 + n).to_string()),
        7 => export(max("wiops=max rbps=max")),
        _ => set("queue/scheduler", schedulers[n / 2 % 4].to_owned()),
    };
    let answer = call(socket, &request).expect("it answers");
    assert!(matches!(answer, Answer::Done(_)), "{request:?}: {answer:?}");
}
