//! `serve-attacks`: the latency of a client while another one is hostile (`docs/spec/nbd.md`, section 6).
//!
//! A fio with one read at a time is measured alone, and then beside each attack, which lasts as long as fio runs.
//! Hostile clients do not count their replies; `crates/server/tests` checks that the server keeps its limits. The
//! attacks run on one thread, which also takes one of the processors.
//!
//! An attack is repeated on a second server, with which the client shares only the processors. The difference is the
//! cost of the attack inside the client's server.
//!
//! Hostile clients speak the subset of NBD that a [`Client`] needs to write, flush and read: EXPORT_NAME and simple
//! replies. No option is negotiated and no library is involved, so a client ends immediately, with an error, when its
//! server is killed.

use crate::Result;
use crate::fio::{Figures, Fio};
use crate::nbd::Server;
use crate::shell::Cmd;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const HELP: &str = "usage: cargo xtask serve-attacks [SECONDS [NAME]]

  SECONDS   each of the measurements, two for an attack, runs for so long (5)
  NAME      only the attacks with this in their name, beside the two without an attack";

/// The device of the victim, whose reads take a tenth of a millisecond.
const DEVICE: &str = "flash,preset=sata";
/// The device of the default export, which the hostile clients open. The victim has its own device, so that the server
/// is measured: `serve-isolation` measures how a scheduler divides one device.
const OTHER: &str = "--device=memory,size=64,discard=1 --scheduler=none --export=victim,size=64m --export=,device=2 --log=error";
const VICTIM: &str = "--rw=randread --bs=4k --iodepth=1 --size=64m --norandommap --time_based";
/// A server that stops reading or sending does not stop an attack.
const PATIENCE: Duration = Duration::from_millis(20);

/// A hostile client's habit.
struct Attack {
    name: &'static str,
    /// One round of it, a few milliseconds. An error usually is the server's defence, and ends the round.
    round: fn(&Path, &mut Kept) -> Result<()>,
}

/// Connections that an attack leaves open, the oldest first.
type Kept = VecDeque<UnixStream>;

/// No attack: the price of two busy processors.
const COMPUTING: Attack = Attack { name: "two processes that compute", round: compute };

const ATTACKS: [Attack; 10] = [
    Attack { name: "300 connections without a byte, renewed", round: silent },
    Attack { name: "130 half handshakes, renewed", round: half_handshakes },
    Attack { name: "64 options a connection, LIST among them", round: options },
    Attack { name: "connections that begin and are cut off", round: cut_off },
    Attack { name: "1,000 invalid requests at a time", round: invalid },
    Attack { name: "64 reads of 1 MiB whose replies are not taken", round: deaf },
    Attack { name: "a payload of 64 MiB that is refused", round: refused },
    Attack { name: "64 KiB writes without a pause", round: writes },
    Attack { name: "connections that write 4 MiB each, without a pause", round: short_writers },
    Attack { name: "64 MiB zeroed and trimmed, 16 times, and gone", round: ranges },
];

/// `cargo xtask serve-attacks`, see [`HELP`].
///
/// # Errors
/// If the server or fio fails. Figures are printed, and no figure is an error.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let (seconds, name) = match args {
        [] => (5, ""),
        [seconds] if seconds != "--help" => (seconds.parse()?, ""),
        [seconds, name] => (seconds.parse()?, name.as_str()),
        _ => {
            println!("{HELP}");
            return Ok(());
        }
    };
    let chosen = ATTACKS.iter().filter(|attack| attack.name.contains(name));
    let chosen: Vec<&Attack> = chosen.collect();
    if chosen.is_empty() {
        return Err(format!("no attack has {name:?} in its name").into());
    }
    crate::shell::build()?;
    measure(seconds, &chosen, true).map(drop)
}

/// A second of each attack.
///
/// # Errors
/// As [`main`], and if a read of the victim takes half a second: then it waits for a hostile client, not for a
/// processor.
pub(crate) fn test_size() -> Result<()> {
    let longest = measure(1, &Vec::from_iter(&ATTACKS), false)?;
    let bound = 500_000_000;
    if longest < bound { Ok(()) } else { Err(format!("a read took {longest} ns").into()) }
}

/// Prints the table; returns the longest latency in nanoseconds. With `compares`, each attack is also made on another
/// server.
fn measure(seconds: u32, attacks: &[&Attack], compares: bool) -> Result<u64> {
    let server = Server::blkmq("attacks", DEVICE, "none", OTHER)?;
    let other = compares.then(|| Server::blkmq("attacks-elsewhere", DEVICE, "none", OTHER));
    let other = other.transpose()?;
    println!(
        "{DEVICE}: {VICTIM}, {seconds} s each\n\n\
         | beside | p50, us | p99, us | the same on another server, p99 | longest, ms | rounds, there |\n\
         | --- | --- | --- | --- | --- | --- |"
    );
    let (alone, _) = beside(&server, None, seconds)?;
    print("nothing", &alone, 0, None);
    let (computing, rounds) = beside(&server, Some((&COMPUTING, &server)), seconds)?;
    print(COMPUTING.name, &computing, rounds, None);
    let mut longest = alone.longest.max(computing.longest);
    for attack in attacks {
        let (seen, rounds) = beside(&server, Some((attack, &server)), seconds)?;
        let elsewhere = other.as_ref().map(|other| beside(&server, Some((attack, other)), seconds));
        print(attack.name, &seen, rounds, elsewhere.transpose()?);
        longest = longest.max(seen.longest);
    }
    Ok(longest)
}

/// Prints a row of the table.
fn print(name: &str, seen: &Figures, rounds: u64, elsewhere: Option<(Figures, u64)>) {
    let (there, rounds_there) = elsewhere.map_or_else(Default::default, |(seen, rounds)| {
        ((seen.p99 / 1000).to_string(), format!(", {rounds}"))
    });
    println!(
        "| {name} | {} | {} | {there} | {:.1} | {rounds}{rounds_there} |",
        seen.p50 / 1000,
        seen.p99 / 1000,
        seen.longest as f64 / 1e6,
    );
}

/// The victim, a client of `server`, beside rounds of an attack on a server, and the number of rounds.
fn beside(
    server: &Server,
    attack: Option<(&Attack, &Server)>,
    seconds: u32,
) -> Result<(Figures, u64)> {
    let options = format!("{VICTIM} --runtime={seconds}");
    let mut victim = Fio::start(&server.uri("victim"), &server.path("victim"), &options)?;
    let Some((attack, target)) = attack else { return Ok((victim.wait()?, 0)) };
    let (mut kept, mut rounds) = (Kept::new(), 0);
    while !victim.is_over()? {
        // The defence of the server is an error here.
        let _ = (attack.round)(&target.path("socket"), &mut kept);
        rounds += 1;
    }
    drop(kept);
    target.connected(0)?;
    Ok((victim.wait()?, rounds))
}

/// Keeps a connection, and closes the oldest if there are more than `most`.
fn keep(kept: &mut Kept, stream: UnixStream, most: usize) {
    kept.push_back(stream);
    if kept.len() > most {
        kept.pop_front();
    }
}

fn connect(socket: &Path) -> Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// A connection of the default export.
fn begin(socket: &Path) -> Result<Client> {
    Ok(Client::begin(connect(socket)?)?)
}

fn compute(_: &Path, _: &mut Kept) -> Result<()> {
    let two = "--name=compute --ioengine=cpuio --cpuload=100 --numjobs=2 --time_based --runtime=1";
    Cmd::new(&format!("fio {two}")).quiet_code().map(drop)
}

fn silent(socket: &Path, kept: &mut Kept) -> Result<()> {
    keep(kept, connect(socket)?, 300);
    Ok(())
}

fn half_handshakes(socket: &Path, kept: &mut Kept) -> Result<()> {
    let mut stream = connect(socket)?;
    stream.read_exact(&mut [0; 18])?;
    stream.write_all(&3_u32.to_be_bytes())?;
    keep(kept, stream, 130);
    Ok(())
}

fn options(socket: &Path, _: &mut Kept) -> Result<()> {
    let mut stream = connect(socket)?;
    stream.read_exact(&mut [0; 18])?;
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    for number in (0..64_u32).map(|n| if n % 2 == 0 { 3 } else { 1000 + n }) {
        bytes.extend(option(number, &[]));
    }
    stream.write_all(&bytes)?;
    // Until the server has answered them all and waits, or has closed the connection.
    while stream.read(&mut [0; 4096])? > 0 {}
    Ok(())
}

fn cut_off(socket: &Path, _: &mut Kept) -> Result<()> {
    let mut client = begin(socket)?;
    client.send(&request(Command::Read, 0, 1 << 20))?;
    Ok(())
}

fn invalid(socket: &Path, kept: &mut Kept) -> Result<()> {
    let mut client = begin(socket)?;
    let beyond = request(Command::Read, u64::MAX, u32::MAX);
    client.send(&beyond.repeat(1000))?;
    for _ in 0..1000 {
        let _ = client.end();
    }
    keep(kept, client.into_stream(), 8);
    Ok(())
}

fn deaf(socket: &Path, kept: &mut Kept) -> Result<()> {
    let mut client = begin(socket)?;
    client.send(&request(Command::Read, 0, 1 << 20).repeat(64))?;
    keep(kept, client.into_stream(), 32);
    Ok(())
}

fn refused(socket: &Path, _: &mut Kept) -> Result<()> {
    let mut client = begin(socket)?;
    client.send(&request(Command::Write, 0, 64 << 20))?;
    let part = vec![0; 1 << 20];
    (0..64).try_for_each(|_| client.send(&part))?;
    Ok(client.end()?)
}

fn short_writers(socket: &Path, _: &mut Kept) -> Result<()> {
    let mut client = begin(socket)?;
    let data = vec![7; 64 << 10];
    for at in 0..64 {
        client.begin_write(at << 20, &data)?;
    }
    (0..64).try_for_each(|_| Ok(client.end()?))
}

/// On one connection: with one for each round it would be a flood of connections, most of them refused.
fn writes(socket: &Path, kept: &mut Kept) -> Result<()> {
    let mut client = kept.pop_front().map_or_else(|| begin(socket), |it| Ok(Client::resume(it)))?;
    let data = vec![7; 64 << 10];
    for at in 0..16 {
        client.begin_write(at << 20, &data)?;
    }
    (0..16).try_for_each(|_| client.end())?;
    keep(kept, client.into_stream(), 1);
    Ok(())
}

fn ranges(socket: &Path, _: &mut Kept) -> Result<()> {
    let mut client = begin(socket)?;
    let range = |command| request(command, 0, 64 << 20);
    let both = [range(Command::WriteZeroes), range(Command::Trim)].concat();
    client.send(&both.repeat(16))?;
    // Until its patience is at an end.
    (0..32).try_for_each(|_| Ok(client.end()?))
}

/// Sent in front of an option and of a request; see `docs/spec/nbd.md`, section 2.
const OPTION: u64 = 0x4948_4156_454F_5054;
const REQUEST: u32 = 0x2560_9513;

/// A connection to the default export.
pub(super) struct Client(UnixStream);

/// The commands that are used, with their flags in the upper half.
#[derive(Clone, Copy)]
pub(super) enum Command {
    Read = 0,
    Write = 1,
    Flush = 3,
    Trim = 4,
    /// WRITE_ZEROES with the flag NO_HOLE.
    WriteZeroes = 2 << 16 | 6,
}

impl Client {
    /// # Errors
    /// If no server answers, or it has no default export.
    pub(super) fn connect(socket: &Path) -> io::Result<Self> {
        Self::begin(UnixStream::connect(socket)?)
    }

    /// The client on a new connection.
    ///
    /// # Errors
    /// If the server has no default export, or is gone.
    pub(super) fn begin(stream: UnixStream) -> io::Result<Self> {
        let mut client = Self(stream);
        client.take(18)?;
        // Fixed newstyle, no zeroes.
        client.send(&3_u32.to_be_bytes())?;
        // EXPORT_NAME with an empty name.
        client.send(&option(1, &[]))?;
        client.take(10)?;
        Ok(client)
    }

    /// The client of a connection that has begun.
    fn resume(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// The connection, which stays open until it is dropped.
    fn into_stream(self) -> UnixStream {
        self.0
    }

    /// Sends bytes unchanged.
    ///
    /// # Errors
    /// If the server is gone, or the socket is full for longer than its timeout.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    /// Sends a write and waits for no reply.
    ///
    /// # Errors
    /// If the server is gone.
    pub(super) fn begin_write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.request(Command::Write, offset, data.len())?;
        self.0.write_all(data)
    }

    /// Sends a flush and waits for no reply.
    ///
    /// # Errors
    /// If the server is gone.
    pub(super) fn begin_flush(&mut self) -> io::Result<()> {
        self.request(Command::Flush, 0, 0)
    }

    /// Waits for one reply without content.
    ///
    /// # Errors
    /// If the server is gone or reports an error.
    pub(super) fn end(&mut self) -> io::Result<()> {
        let reply = self.take(16)?;
        match reply[4..8] {
            [0, 0, 0, 0] => Ok(()),
            [a, b, c, d] => Err(io::Error::from_raw_os_error(i32::from_be_bytes([a, b, c, d]))),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Reads.
    ///
    /// # Errors
    /// If the server is gone or reports an error.
    pub(super) fn read(&mut self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.request(Command::Read, offset, len)?;
        self.end()?;
        self.take(len)
    }

    fn request(&mut self, command: Command, offset: u64, len: usize) -> io::Result<()> {
        let len = u32::try_from(len).map_err(io::Error::other)?;
        self.send(&request(command, offset, len))
    }

    fn take(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// An option and its data.
pub(super) fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    [&OPTION.to_be_bytes()[..], &number.to_be_bytes(), &len.to_be_bytes(), data].concat()
}

/// The header of a request.
pub(super) fn request(command: Command, offset: u64, len: u32) -> Vec<u8> {
    let (kind, cookie) = ((command as u32).to_be_bytes(), [0; 8]);
    [&REQUEST.to_be_bytes()[..], &kind, &cookie, &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}
