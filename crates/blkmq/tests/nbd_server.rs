//! The NBD server among the examples, tested byte by byte. `cargo xtask interop` tests it with real clients.

#![cfg(target_os = "linux")]

#[path = "../examples/nbd_server.rs"]
#[expect(dead_code, reason = "its `main` takes arguments")]
mod example;

use example::Server;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

/// NBD's options, and the types of their replies.
const EXPORT_NAME: u32 = 1;
const ABORT: u32 = 2;
const LIST: u32 = 3;
const INFO: u32 = 6;
const GO: u32 = 7;
const STRUCTURED: u32 = 8;
const ACK: u32 = 1;
const ERROR: u32 = 1 << 31;
/// NBD's commands and command flags.
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const ZEROES: u16 = 6;
const FUA: u16 = 1;
const SIZE: u64 = 64 << 20;

/// Runs `clients` against a server for `device`, and stops the server.
pub fn with_server(device: &str, scheduler: Option<&str>, clients: impl FnOnce(&Path)) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    let end = UnixStream::from(OwnedFd::from(listener.try_clone().expect("a descriptor")));
    thread::scope(|scope| {
        let server = scope.spawn(|| Server::new(device, scheduler)?.run(&listener));
        // The server must stop even if an assertion of a client fails.
        let clients = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| clients(&path)));
        end.shutdown(Shutdown::Both).expect("it listens");
        server.join().expect("it does not panic").expect("it serves");
        clients.expect("what the clients saw");
    });
}

struct Client(UnixStream);

impl Client {
    /// Connects and exchanges greetings; negotiates no option.
    fn connect(path: &Path) -> Self {
        let mut new = Self(UnixStream::connect(path).expect("it listens"));
        assert_eq!(new.receive(18), b"NBDMAGICIHAVEOPT\0\x01");
        new.send(&[&[0, 0, 0, 1]]);
        new
    }

    /// Connects and enters the transmission phase with the export of this name.
    fn go(path: &Path, name: &str) -> Self {
        let mut new = Self::connect(path);
        new.option(GO, &go(name, &[]));
        assert_eq!(new.option_reply(GO), (3, facts()));
        assert_eq!(new.option_reply(GO), (ACK, vec![]));
        new
    }

    fn send(&mut self, parts: &[&[u8]]) {
        self.0.write_all(&parts.concat()).expect("the server listens");
    }

    fn receive(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).expect("the server answers");
        bytes
    }

    /// Asserts that the server has closed the connection without sending more.
    fn assert_closed(mut self) {
        let end = self.0.read(&mut [0]);
        assert!(end.as_ref().map_or(true, |len| *len == 0), "{end:?}");
    }

    fn option(&mut self, option: u32, data: &[u8]) {
        let len = data.len() as u32;
        self.send(&[b"IHAVEOPT", &option.to_be_bytes(), &len.to_be_bytes(), data]);
    }

    fn option_reply(&mut self, option: u32) -> (u32, Vec<u8>) {
        let header = self.receive(20);
        assert_eq!(header[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
        assert_eq!(header[8..12], option.to_be_bytes());
        let word = |at: usize| u32::from_be_bytes(*header[at..].first_chunk().expect("4 bytes"));
        (word(12), self.receive(word(16) as usize))
    }

    /// Sends a command; its cookie is the bitwise complement of its offset.
    fn request(&mut self, (flags, command): (u16, u16), offset: u64, len: u32, data: &[u8]) {
        self.send(&[
            &0x2560_9513_u32.to_be_bytes(),
            &flags.to_be_bytes(),
            &command.to_be_bytes(),
            &(!offset).to_be_bytes(),
            &offset.to_be_bytes(),
            &len.to_be_bytes(),
            data,
        ]);
    }

    /// Receives a reply; returns its error and the offset of its request.
    fn reply(&mut self) -> (u32, u64) {
        let header = self.receive(16);
        assert_eq!(header[..4], 0x6744_6698_u32.to_be_bytes());
        let word = u32::from_be_bytes(*header[4..].first_chunk().expect("4 bytes"));
        (word, !u64::from_be_bytes(*header[8..].first_chunk().expect("8 bytes")))
    }

    /// Sends a command without data, and returns the error in its reply.
    fn call(&mut self, command: u16, offset: u64, len: u32) -> u32 {
        self.request((0, command), offset, len, &[]);
        let (error, place) = self.reply();
        assert_eq!(place, offset);
        error
    }

    fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        self.request((flags, WRITE), offset, data.len() as u32, data);
        self.reply().0
    }

    fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        assert_eq!(self.call(READ, offset, len), 0);
        self.receive(len as usize)
    }
}

/// The export information in the reply to GO: its size, and all flags that the server knows.
fn facts() -> Vec<u8> {
    let flags = 1 | 4 | 8 | 32 | 64 | 256_u16;
    [&[0, 0], &SIZE.to_be_bytes()[..], &flags.to_be_bytes()].concat()
}

/// The data of a GO or INFO option.
fn go(name: &str, infos: &[u16]) -> Vec<u8> {
    let (len, count) = (name.len() as u32, infos.len() as u16);
    let infos: Vec<u8> = infos.iter().flat_map(|info| info.to_be_bytes()).collect();
    [&len.to_be_bytes(), name.as_bytes(), &count.to_be_bytes(), &infos].concat()
}

const DEVICE: &str = "memory,size=64,discard=1";

#[test]
fn what_is_written_is_read_back() {
    with_server(DEVICE, None, |path| {
        let (mut one, mut other) = (Client::go(path, ""), Client::go(path, "weight=300"));
        // Longer than the pool's buffers, and than a socket's buffer.
        let long: Vec<u8> = (0..5_u32 << 20).map(|at| (at >> 9) as u8).collect();
        assert_eq!(one.write(0, 512, &long), 0);
        assert_eq!(one.call(FLUSH, 0, 0), 0);
        assert!(other.read(512, long.len() as u32) == long);
        assert_eq!(other.write(FUA, 1024, &[7; 512]), 0);
        assert_eq!(one.read(512, 1536), [&long[..512], &[7; 512], &long[1024..1536]].concat());
        assert_eq!((one.call(TRIM, 1024, 512), one.call(ZEROES, 4096, 1 << 20)), (0, 0));
        assert_eq!(other.read(1024, 512), [0; 512]);
        assert_eq!(other.read(4096, 1 << 20), vec![0; 1 << 20]);
        assert_eq!(one.call(ZEROES, 0, SIZE as u32), 0);
        one.request((FUA, ZEROES), 0, 512, &[]);
        one.request((FUA, TRIM), 512, 512, &[]);
        one.request((FUA, FLUSH), 1024, 0, &[]);
        let mut replies = [one.reply(), one.reply(), one.reply()];
        replies.sort_unstable();
        assert_eq!(replies, [(0, 0), (0, 512), (0, 1024)]);
        // The server closes this connection and continues with the other.
        one.request((0, DISC), 0, 0, &[]);
        one.assert_closed();
        assert_eq!(other.read(512, 512), [0; 512]);
    });
}

#[test]
fn a_request_that_makes_no_sense_has_its_number_and_the_next_one_is_understood() {
    with_server(DEVICE, Some("bfq"), |path| {
        let mut client = Client::go(path, "");
        assert_eq!(client.call(READ, 7, 512), 22);
        assert_eq!(client.call(READ, 0, (32 << 20) + 512), 22);
        assert_eq!(client.call(9, 0, 512), 22);
        assert_eq!(client.call(TRIM, u64::MAX - 511, 512), 22);
        assert_eq!(client.write(0, 512, &[1; 100]), 22);
        assert_eq!(client.write(0, SIZE - 512, &[1; 1024]), 28);
        assert_eq!(client.call(READ, SIZE, 512), 22);
        assert_eq!(client.read(SIZE - 512, 512), [0; 512]);
    });
    let bad = "memory,size=64,badblocks=+8-8";
    with_server(bad, None, |path| {
        let mut client = Client::connect(path);
        client.option(EXPORT_NAME, b"");
        // The flags lack TRIM, and 124 zeroes follow them.
        assert_eq!(client.receive(134)[8..10], (1 | 4 | 8 | 64 | 256_u16).to_be_bytes());
        assert_eq!((client.call(READ, 4096, 512), client.call(TRIM, 0, 512)), (5, 95));
        assert_eq!(client.read(0, 512), [0; 512]);
    });
}

#[test]
fn options_are_answered_until_there_is_an_export() {
    with_server(DEVICE, None, |path| {
        let mut client = Client::connect(path);
        for (option, data) in [(STRUCTURED, &b""[..]), (5, b""), (99, b"four")] {
            client.option(option, data);
            assert_eq!(client.option_reply(option), (ERROR | 1, vec![]));
        }
        client.option(LIST, &[]);
        assert_eq!(client.option_reply(LIST), (2, vec![0; 4]));
        assert_eq!(client.option_reply(LIST), (ACK, vec![]));
        for name in ["other", "weight=x", "weight="] {
            client.option(GO, &go(name, &[]));
            assert_eq!(client.option_reply(GO), (ERROR | 6, vec![]));
        }
        client.option(INFO, &go("weight=1", &[1, 3]));
        assert_eq!(client.option_reply(INFO), (3, facts()));
        let sizes = [512, 4096, 32 << 20].map(u32::to_be_bytes);
        assert_eq!(client.option_reply(INFO), (3, [&[0, 3], sizes.as_flattened()].concat()));
        assert_eq!(client.option_reply(INFO), (ACK, vec![]));
        client.option(ABORT, &[]);
        assert_eq!(client.option_reply(ABORT), (ACK, vec![]));
        // An option that arrives one byte at a time.
        let mut client = Client::connect(path);
        let data = go("weight=1000", &[]);
        let len = (data.len() as u32).to_be_bytes();
        for byte in [b"IHAVEOPT", &GO.to_be_bytes()[..], &len, &data].concat() {
            client.send(&[&[byte]]);
        }
        assert_eq!((client.option_reply(GO).0, client.option_reply(GO).0), (3, ACK));
        assert_eq!(client.read(0, 512), [0; 512]);
    });
}

#[test]
fn a_client_that_has_lost_step_is_closed_and_others_go_on() {
    with_server(DEVICE, None, |path| {
        let mut other = Client::go(path, "");
        let mut client = Client::connect(path);
        client.send(&[b"IHAVENOT", &[0; 8]]);
        client.assert_closed();
        let mut client = Client::connect(path);
        client.option(EXPORT_NAME, b"no such export");
        client.assert_closed();
        let mut client = Client::connect(path);
        client.option(GO, &go("weight=1001", &[]));
        assert_eq!((client.option_reply(GO).0, client.option_reply(GO).0), (3, ACK));
        client.assert_closed();
        let mut client = Client::connect(path);
        client.send(&[b"IHAVEOPT", &GO.to_be_bytes(), &u32::MAX.to_be_bytes()]);
        client.assert_closed();
        let mut client = Client::go(path, "");
        client.send(&[&[0; 28]]);
        client.assert_closed();
        let mut client = Client::go(path, "");
        client.request((0, WRITE), 0, (32 << 20) + 1, &[]);
        client.assert_closed();
        // A client that closes in the middle of a write, and before it receives a reply.
        let mut client = Client::go(path, "");
        client.request((0, READ), 0, 1 << 20, &[]);
        client.request((0, WRITE), 0, 4096, &[1; 100]);
        drop(client);
        assert_eq!(other.read(0, 4096), [0; 4096]);
    });
}

/// The requests of a client that sends many and reads no replies wait in its socket; other clients are served.
#[test]
fn a_client_that_does_not_read_stalls_itself_only() {
    with_server(DEVICE, None, |path| {
        let (mut lazy, mut other) = (Client::go(path, ""), Client::go(path, ""));
        for block in 0..200 {
            lazy.request((0, READ), block << 18, 1 << 18, &[]);
        }
        for round in 0..100 {
            assert_eq!(other.write(0, SIZE - 4096, &[round; 4096]), 0);
            assert_eq!(other.read(SIZE - 4096, 4096), [round; 4096]);
        }
        let mut blocks = [0; 200];
        for _ in 0..200 {
            let (error, place) = lazy.reply();
            assert_eq!((error, lazy.receive(1 << 18)), (0, vec![0; 1 << 18]));
            blocks[(place >> 18) as usize] += 1;
        }
        assert_eq!(blocks, [1; 200]);
    });
}

/// Each connection has its own group, and removes it when it closes.
#[test]
fn clients_come_and_go() {
    with_server(DEVICE, None, |path| {
        for _ in 0..3 {
            let mut clients: Vec<_> = (0..32).map(|_| Client::go(path, "weight=7")).collect();
            // One connection more than the server allows.
            Client(UnixStream::connect(path).expect("it listens")).assert_closed();
            for client in &mut clients {
                assert_eq!(client.read(0, 512), [0; 512]);
            }
            for mut client in clients {
                client.request((0, DISC), 0, 0, &[]);
                client.assert_closed();
            }
        }
    });
}
