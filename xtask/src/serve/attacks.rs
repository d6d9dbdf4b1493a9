//! A server beside hostile clients, under endurance, and killed.
//!
//! `serve-attacks`: the latency of a client while another one is hostile (`docs/spec/nbd.md`, section 6). A fio with
//! one read at a time is measured alone, and then beside each attack, which lasts as long as fio runs. Hostile clients
//! do not count their replies; `crates/server/tests` checks that the server keeps its limits. The attacks run on one
//! thread, which also takes one of the processors. An attack is repeated on a second server, with which the client
//! shares only the processors. The difference is the cost of the attack inside the client's server.
//!
//! `serve-soak`: 64 connections with mixed load that connect, disconnect and are killed, and connections that send
//! nothing, for a long time. After each round no connection and no descriptor of theirs may be left, and the memory of
//! the server must not grow.
//!
//! `serve-crash`: a server is killed by SIGKILL while clients write and flush; after a restart, flushed blocks must be
//! there. The check shows that no answer is given before the kernel has the data. The power stays on, so the kernel's
//! own caches survive; the crash tests of the devices check whether FLUSH reaches the device.
//!
//! The clients speak the subset of NBD that a [`Client`] needs to write, flush and read: EXPORT_NAME and simple
//! replies. No option is negotiated and no library is involved, so a client ends immediately, with an error, when its
//! server is killed.

use crate::Result;
use crate::measurement::{Figures, Fio, pause, run_fio};
use crate::serve::Server;
use crate::shell::{Cmd, timed};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
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
pub(crate) fn attacks(args: &[String]) -> Result<()> {
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
/// As [`attacks`], and if a read of the victim takes half a second: then it waits for a hostile client, not for a
/// processor.
pub(crate) fn attacks_at_test_size() -> Result<()> {
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
    fn begin_write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.request(Command::Write, offset, data.len())?;
        self.0.write_all(data)
    }

    /// Sends a flush and waits for no reply.
    ///
    /// # Errors
    /// If the server is gone.
    fn begin_flush(&mut self) -> io::Result<()> {
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
fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    [&OPTION.to_be_bytes()[..], &number.to_be_bytes(), &len.to_be_bytes(), data].concat()
}

/// The header of a request.
fn request(command: Command, offset: u64, len: u32) -> Vec<u8> {
    let (kind, cookie) = ((command as u32).to_be_bytes(), [0; 8]);
    [&REQUEST.to_be_bytes()[..], &kind, &cookie, &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// Processes of fio, each with [`JOBS`] connections, distributed over the exports.
const CLIENTS: usize = 16;
const JOBS: usize = 4;
const EXPORTS: usize = 4;
/// The size of each export in MiB.
const SIZE: usize = 32;
/// The fewest rounds.
const FEWEST: usize = 4;
/// The growth of the server's memory, in KiB, from the first half of the rounds to the second, above which there is a
/// leak: as much as the clients can have in flight. The allocator keeps the memory of the busiest moment.
const GROWTH: u64 = 32 << 10;

/// `cargo xtask serve-soak [MINUTES]`
///
/// # Errors
/// If a client reads other data than it wrote or is refused, or leaves something behind in the server.
pub(crate) fn soak_main(args: &[String]) -> Result<()> {
    let minutes: u64 = args.first().map_or(Ok(10), |minutes| minutes.parse())?;
    crate::shell::build()?;
    soak(Duration::from_secs(60 * minutes), 10_000)
}

/// Rounds until `time` has passed, each with `silent` connections that send nothing.
///
/// # Errors
/// As [`soak_main`].
pub(crate) fn soak(time: Duration, silent: usize) -> Result<()> {
    let exports: String = (0..EXPORTS)
        .map(|at| format!(" --export=e{at},offset={}m,size={SIZE}m", at * SIZE))
        .collect();
    let device = format!("memory,size={}", EXPORTS * SIZE);
    let server = Server::blkmq("soak", &device, "bfq", &format!("{exports} --log=error"))?;
    let descriptors = server.descriptors()?;
    // Memory that was never written is not allocated yet.
    for at in 0..EXPORTS {
        let fill = format!("--rw=write --bs=1m --iodepth=4 --size={SIZE}m");
        run_fio(&server.uri(&format!("e{at}")), &server.path("fio"), &fill)?;
    }
    let (mut spent, mut ios, mut memory) = (Duration::ZERO, 0, Vec::new());
    while spent < time || memory.len() < FEWEST {
        let (done, took) = timed(|| soak_round(&server, memory.len(), silent));
        ios += done?;
        spent += took;
        server.connected(0)?;
        server.closed(descriptors)?;
        memory.push(server.memory()?);
    }
    let most = |part: &[u64]| part.iter().max().copied().unwrap_or(0);
    let (first, second) = memory.split_at(memory.len() / 2);
    let (before, after) = (most(first), most(second));
    println!(
        "{} rounds of {} connections and {silent} without a byte: {ios} I/Os, {descriptors} descriptors before and \
         after each; memory up to {before} KiB in the first half and {after} KiB in the second",
        memory.len(),
        CLIENTS * JOBS
    );
    if after > before + GROWTH { Err("the memory of the server grows".into()) } else { Ok(()) }
}

/// Clients that verify, clients that only generate load, and clients that are killed, beside connections that send
/// nothing.
fn soak_round(server: &Server, number: usize, silent: usize) -> Result<u64> {
    let mut clients = Vec::new();
    for at in 0..CLIENTS {
        let uri = server.uri(&format!("e{}", at % EXPORTS));
        let bs = ["4k", "512", "64k", "4k"][(at + number) % 4];
        // A region of the export for each connection.
        let region = SIZE * EXPORTS / CLIENTS / JOBS;
        let place = format!("--offset={}m", at / EXPORTS * JOBS * region);
        let span = format!("--size={region}m --offset_increment={region}m --numjobs={JOBS}");
        let verify = if at % 2 == 0 { "--verify=crc32c --verify_state_save=0" } else { "" };
        let time = "--time_based --runtime=3 --iodepth=8";
        let options = format!("--rw=randrw --bs={bs} {place} {span} {verify} {time}");
        clients.push(Fio::start(&uri, &server.path(&format!("fio-{at}")), &options)?);
    }
    server.connected((CLIENTS * JOBS) as u64)?;
    for _ in 0..silent {
        // Refused connections are accepted and closed, too.
        drop(UnixStream::connect(server.path("socket"))?);
    }
    pause(0.5)?;
    let mut others = Vec::new();
    for (at, client) in clients.into_iter().enumerate() {
        if at % 4 == number % 4 {
            client.kill()?;
        } else {
            others.push(client);
        }
    }
    others.into_iter().map(|client| Ok(client.wait()?.ios)).sum()
}

/// Bytes of a write.
const BLOCK: usize = 4096;
const BLOCKS: u64 = 16 << 10;
/// Connections that write.
const WRITERS: usize = 4;
/// Writes of each connection between two flushes.
const BATCH: u64 = 8;

/// `cargo xtask serve-crash [TIMES]`
///
/// # Errors
/// If a flushed block is not there after a restart.
pub(crate) fn crash_main(args: &[String]) -> Result<()> {
    let times: u32 = args.first().map_or(Ok(50), |times| times.parse())?;
    crate::shell::build()?;
    let flushed = crashes(times)?;
    println!("serve-crash: killed {times} times; all {flushed} flushed writes are there");
    Ok(())
}

/// The writes of one round.
#[derive(Default)]
struct Written {
    /// By block: the number of the last write that a flush covers.
    flushed: BTreeMap<u64, u64>,
    /// By block: writes that may have been done partly or not at all.
    open: BTreeMap<u64, Vec<u64>>,
    /// The number of the last write.
    last: u64,
}

/// Kills a server `times` times. Returns how many writes were flushed.
///
/// # Errors
/// As [`crash_main`].
pub(crate) fn crashes(times: u32) -> Result<u64> {
    let folder = std::env::temp_dir().join(format!("blkmq-crash-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let file = folder.join("disk");
    File::create(&file)?.set_len(BLOCKS * BLOCK as u64)?;
    let result = crash_rounds(times, &file);
    fs::remove_dir_all(&folder)?;
    result
}

fn crash_rounds(times: u32, file: &Path) -> Result<u64> {
    let device = format!("uring:{}", file.display());
    let start = || start(&device);
    let mut written = Written::default();
    let mut count = 0;
    for round in 0..times {
        let server = start()?;
        // A different moment in each round.
        let delay = f64::from(20 + round * 37 % 100) / 1000.0;
        let kill = format!("sleep {delay}; kill -9 {}", server.pid());
        let mut killer = Cmd::new("sh -c").arg(kill).start(File::create(server.path("kill"))?)?;
        count += write_until_it_ends(&server.path("socket"), &mut written)?;
        killer.wait()?;
        drop(server);
        let server = start()?;
        let lost = lost(&server.path("socket"), &written)?;
        if !lost.is_empty() {
            return Err(format!("round {round}: flushed blocks are lost: {lost:?}").into());
        }
        settle(&server.path("socket"), &mut written)?;
        drop(server);
    }
    if count == 0 { Err("no write was flushed before the end".into()) } else { Ok(count) }
}

/// Starts the server, which waits until the kernel has released the file of the killed one.
fn start(device: &str) -> Result<Server> {
    Server::blkmq("serve-crash", device, "mq-deadline", "--export= --log=error")
}

/// Writes and flushes over several connections, until the server is killed. Returns how many writes were flushed.
fn write_until_it_ends(socket: &Path, written: &mut Written) -> Result<u64> {
    let clients: io::Result<Vec<Client>> = (0..WRITERS).map(|_| Client::connect(socket)).collect();
    // On a busy machine the server may be killed during the handshakes. If the server accepts none, `lost` fails.
    let Ok(mut clients) = clients else { return Ok(0) };
    let mut count = 0;
    loop {
        let mut batch = Vec::new();
        for client in &mut clients {
            for _ in 0..BATCH {
                written.last += 1;
                let number = written.last;
                // Blocks in an order without a pattern, each with many numbers over time.
                let block = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 50;
                written.open.entry(block).or_default().push(number);
                batch.push((block, number));
                if client.begin_write(block * BLOCK as u64, &contents(number)).is_err() {
                    return Ok(count);
                }
            }
        }
        // All writes are answered before the first flush is sent, on any connection: it covers all of them.
        let mut all = clients
            .iter_mut()
            .flat_map(|client| (0..BATCH).map(|_| client.end()).collect::<Vec<_>>());
        if !all.all(|answer| answer.is_ok()) {
            return Ok(count);
        }
        drop(all);
        let flusher = (count / BATCH) as usize % WRITERS;
        if clients[flusher].begin_flush().and_then(|()| clients[flusher].end()).is_err() {
            return Ok(count);
        }
        count += batch.len() as u64;
        for (block, number) in batch {
            written.open.remove(&block);
            written.flushed.insert(block, number);
        }
    }
}

/// A block of a write: its number, over and over.
fn contents(number: u64) -> Vec<u8> {
    number.to_be_bytes().repeat(BLOCK / 8)
}

/// The numbers in a block, each once.
fn numbers(block: &[u8]) -> Vec<u64> {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let mut all: Vec<u64> = block.chunks(8).map(number).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Blocks whose flushed contents are lost, although no later write could have replaced them.
fn lost(socket: &Path, written: &Written) -> Result<Vec<u64>> {
    let mut client = Client::connect(socket)?;
    let mut lost = Vec::new();
    for (block, flushed) in &written.flushed {
        let found = numbers(&client.read(block * BLOCK as u64, BLOCK)?);
        let open = written.open.get(block).map_or(&[][..], Vec::as_slice);
        if !is_intact(&found, *flushed, open) {
            lost.push(*block);
        }
    }
    Ok(lost)
}

/// Returns whether a block may hold the numbers in `found`, if `flushed` was flushed and those in `open` may be there.
fn is_intact(found: &[u64], flushed: u64, open: &[u64]) -> bool {
    found.iter().all(|number| *number == flushed || open.contains(number))
}

/// Writes that were open are overwritten, so that they are not seen in the next round.
fn settle(socket: &Path, written: &mut Written) -> Result<()> {
    let mut client = Client::connect(socket)?;
    let open = std::mem::take(&mut written.open);
    for block in open.into_keys() {
        written.last += 1;
        client.begin_write(block * BLOCK as u64, &contents(written.last))?;
        client.end()?;
        written.flushed.insert(block, written.last);
    }
    client.begin_flush()?;
    Ok(client.end()?)
}

/// The most checks of a value that has to change, 20 ms apart: ten seconds.
const LOOKS: u32 = 500;

impl Server {
    /// Connections that have agreed on an export, if it is `blkmqd`.
    ///
    /// # Errors
    /// If it does not answer.
    pub(crate) fn connections(&self) -> Result<u64> {
        let list = self.ctl("list")?;
        let exports =
            list["list"]["exports"].as_array().ok_or_else(|| format!("no list: {list}"))?;
        Ok(exports.iter().map(|export| export["connections"].as_u64().unwrap_or(u64::MAX)).sum())
    }

    /// Waits until there are `count` connections.
    ///
    /// # Errors
    /// If the number differs after some seconds.
    pub(crate) fn connected(&self, count: u64) -> Result<()> {
        let mut found = 0;
        for _ in 0..LOOKS {
            found = self.connections()?;
            if found == count {
                return Ok(());
            }
            pause(0.02)?;
        }
        Err(format!("{found} connections, expected {count}").into())
    }

    /// Waits until at most `before` descriptors are open: then the requests of disconnected clients are finished, too.
    ///
    /// # Errors
    /// If there are more after some seconds.
    pub(crate) fn closed(&self, before: usize) -> Result<()> {
        let mut found = 0;
        for _ in 0..LOOKS {
            found = self.descriptors()?;
            if found <= before {
                return Ok(());
            }
            pause(0.02)?;
        }
        Err(format!("{found} descriptors, {before} before the clients came").into())
    }

    /// Open descriptors.
    ///
    /// # Errors
    /// If it has ended.
    pub(crate) fn descriptors(&self) -> Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.pid()))?.count())
    }

    /// Memory that is in use, in KiB.
    ///
    /// # Errors
    /// If it has ended.
    pub(super) fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        resident(&status).ok_or_else(|| "no memory in the kernel's accounts".into())
    }
}

/// The KiB in the line `VmRSS`.
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_block_is_found_and_a_replaced_one_is_not_lost() {
        assert_eq!(numbers(&contents(0x0102_0304)), [0x0102_0304]);
        let mut torn = contents(3);
        torn[512..].copy_from_slice(&contents(9)[512..]);
        assert!(is_intact(&numbers(&torn), 3, &[8, 9]));
        assert!(is_intact(&numbers(&contents(3)), 3, &[]));
        assert!(!is_intact(&numbers(&torn), 3, &[8]), "number 9 was never in doubt");
        assert!(!is_intact(&numbers(&[0; BLOCK]), 3, &[9]), "zeroes are older than the flush");
    }

    #[test]
    fn memory_is_that_in_use() {
        let status = "Name:\tblkmq\nVmHWM:\t  99 kB\nVmRSS:\t   4321 kB\n";
        assert_eq!(resident(status), Some(4321));
        assert_eq!(resident("Name:\tblkmq\n"), None);
    }
}
