//! Any messages of a front end, one after the other: an answer or an error, and a configuration that can be read.

#![no_main]

use blkmq_vhost::config::DiskConfig;
use blkmq_vhost::message::{HEADER, Header, Received};
use blkmq_vhost::session::{Next, Session};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let disk = DiskConfig {
        bytes: 1 << 20,
        is_read_only: false,
        block: 512,
        discard: 1 << 20,
        zeroes: 1 << 20,
        queues: 2,
        name: "fuzz".to_owned(),
    };
    let mut session = Session::new(disk, true);
    let mut rest = bytes;
    while let Some((head, behind)) = rest.split_first_chunk::<HEADER>() {
        let Ok(header) = Header::parse(*head) else { return };
        let Some((payload, behind)) = behind.split_at_checked(header.size) else { return };
        rest = behind;
        match session.handle(Received { header, payload: payload.to_vec(), fds: Vec::new() }) {
            Ok(Next::Drain(queue)) => drop(session.stop(queue)),
            Ok(Next::DrainAll) => drop(session.reset()),
            Ok(Next::Go(_)) | Err(_) => {}
        }
    }
});
