//! A small log-structured key-value store in which every record that `put` has acknowledged survives a power cut.
//!
//! Writers send records to one thread that owns the log. The log thread takes all records that wait (group commit),
//! packs them into blocks, writes the blocks in one plug, so that they merge, makes them durable with one flush, and
//! acknowledges the group. A reader looks up a key in an index in memory and reads one block with a blocking call.
//! After the power cut a scan of the log rebuilds the index, and every record is compared.
//!
//! The disk has a volatile write cache, so the flush is necessary: a power cut can lose data that was not flushed.
//!
//! `cargo run --release --example storage_engine`

use blkmq::core::{Buffer, SECTOR_SIZE};
use blkmq::device::Device;
use blkmq::prelude::*;
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

type Failure = Box<dyn Error + Send + Sync>;
/// For each key, the number of the block that holds its newest record.
type Index = BTreeMap<String, u64>;
/// The records of one block.
type Records = BTreeMap<String, String>;

const WRITERS: u64 = 4;
/// Records that each writer puts into the store.
const PUTS: u64 = 150;
/// The most records in a group. A record fits into one block, and a plug has room for this many blocks.
const GROUP: usize = 32;

/// Fills a store, cuts the power, opens the store again and compares the records.
pub fn main() -> Result<(), Failure> {
    let disk = blkmq::device("memory,size=64,cache_size=8,fua=0")?;
    let service = switch_on(&disk)?;
    let log = fill(&service)?;
    let stats = service.stats();
    // One more record, written but neither flushed nor acknowledged: it may survive the power cut or not.
    let mut late = Block::new(log.next);
    late.append("late", "");
    write(&mut service.client()?, vec![late])?;
    drop(service);
    let lost = disk.memory().expect("it is a memory device").crash(1);

    let service = switch_on(&disk)?;
    let mut reader = service.blocking()?;
    let index = recover(&mut reader)?;
    let all = (0..WRITERS).flat_map(|writer| (0..PUTS).map(move |nth| record(writer, nth)));
    for (key, value) in all {
        let block = *index.get(&key).ok_or_else(|| format!("{key} is lost"))?;
        if look_up(&mut reader, block, &key)?.as_ref() != Some(&value) {
            return Err(format!("{key} has another value").into());
        }
    }
    let late = u64::from(index.contains_key("late"));
    if index.len() as u64 != WRITERS * PUTS + late {
        return Err("there is a record that nobody put".into());
    }
    println!("{} records in {} groups, all there after the power cut", index.len(), log.groups);
    println!("{lost} blocks that were not flushed are lost");
    println!("{} blocks and flushes became {} requests", stats.submitted, stats.completed_requests);
    Ok(())
}

/// Starts a service for the disk.
fn switch_on(disk: &Device) -> Result<Service<Buffer>, Failure> {
    let mut config = disk.config().scheduler(blkmq::scheduler("mq-deadline").expect("built in"));
    // One submitter for the log thread and one for a reader.
    config.submitters = 2;
    Ok(Service::start(config)?)
}

/// The record that a writer puts as its `nth`.
fn record(writer: u64, nth: u64) -> (String, String) {
    (format!("{writer}/{nth}"), format!("{nth:0>width$}", width = (nth * 613 % 3000) as usize))
}

/// Puts all records into the store, and looks one up.
fn fill(service: &Service<Buffer>) -> Result<Log, Failure> {
    let index = Mutex::new(Index::new());
    let (puts, inbox) = channel();
    thread::scope(|scope| {
        let (index, puts) = (&index, puts);
        let log = scope.spawn(move || run_log(service, &inbox, index));
        let write_all = |writer, puts: Sender<Put>| {
            move || (0..PUTS).try_for_each(|nth| put(&puts, record(writer, nth)))
        };
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| scope.spawn(write_all(writer, puts.clone()))).collect();
        // The log thread ends when all senders are dropped.
        drop(puts);
        for writer in writers {
            writer.join().expect("a writer answers with an error and does not panic")?;
        }
        let (key, value) = record(0, PUTS - 1);
        let block = index.lock().expect("no panic happens under this lock")[&key];
        let found = look_up(&mut service.blocking()?, block, &key)?;
        let log = log.join().expect("the log answers with an error and does not panic")?;
        if found == Some(value) { Ok(log) } else { Err(format!("{key} was not written").into()) }
    })
}

/// A record, and the channel on which its durability is reported.
struct Put {
    key: String,
    value: String,
    done: Sender<()>,
}

/// Returns when the record is durable.
fn put(puts: &Sender<Put>, (key, value): (String, String)) -> Result<(), Failure> {
    let (done, is_done) = channel();
    puts.send(Put { key, value, done }).map_err(|_| "the log has failed")?;
    is_done.recv().map_err(|_| "the log has failed".into())
}

/// The position of the log.
#[derive(Default)]
struct Log {
    /// The block to write next.
    next: u64,
    /// The number of groups committed.
    groups: u64,
}

/// Commits the records from `inbox`, group by group.
fn run_log(
    service: &Service<Buffer>,
    inbox: &Receiver<Put>,
    index: &Mutex<Index>,
) -> Result<Log, Failure> {
    let mut client = service.client()?;
    let mut log = Log::default();
    while let Ok(first) = inbox.recv() {
        // Records that arrived during the last commit belong to this group.
        let group: Vec<Put> = [first].into_iter().chain(inbox.try_iter().take(GROUP - 1)).collect();
        let mut blocks = vec![Block::new(log.next)];
        let mut places = Index::new();
        for Put { key, value, .. } in &group {
            if !blocks.last_mut().expect("there is a first one").append(key, value) {
                let mut block = Block::new(log.next + blocks.len() as u64);
                assert!(block.append(key, value), "a record fits into an empty block");
                blocks.push(block);
            }
            places.insert(key.clone(), log.next + blocks.len() as u64 - 1);
        }
        log.next += blocks.len() as u64;
        log.groups += 1;
        write(&mut client, blocks)?;
        // A flush covers only completed writes, and `write` has waited for its writes.
        push(&mut client, Io::new(Op::Flush, 0, 0, 0, Buffer::default()))?;
        finish(&mut client)?;
        index.lock().expect("no panic happens under this lock").append(&mut places);
        for put in group {
            // The writer may have stopped waiting.
            let _ = put.done.send(());
        }
    }
    Ok(log)
}

/// Writes consecutive blocks and waits for them. They are not durable yet.
fn write(client: &mut Client<Buffer>, blocks: Vec<Block>) -> Result<(), Failure> {
    for block in blocks {
        let sector = block.number * u64::from(SECTORS);
        push(client, Io::new(Op::Write, sector, SECTORS, block.number, block.seal()))?;
    }
    Ok(finish(client)?)
}

/// Pushes an I/O. The error of a refused I/O becomes text, because the error holds the buffer, which cannot go to
/// another thread.
fn push(client: &mut Client<Buffer>, io: Io<Buffer>) -> Result<(), Failure> {
    Ok(client.push(io).map_err(|error| error.to_string())?)
}

/// Waits for all I/Os in flight.
fn finish(client: &mut Client<Buffer>) -> IoResult {
    let (all, mut outcome) = (client.outstanding(), Ok(()));
    client.wait(all, all, |done| outcome = outcome.and(done.result));
    outcome
}

/// Scans the log up to the first block that was never written completely, and rebuilds the index.
fn recover(reader: &mut Blocking<Buffer>) -> Result<Index, Failure> {
    let mut index = Index::new();
    for number in 0.. {
        let Some(records) = read(reader, number)? else { break };
        index.extend(records.into_keys().map(|key| (key, number)));
    }
    Ok(index)
}

/// Returns the value of `key` in block `number`.
fn look_up(
    reader: &mut Blocking<Buffer>,
    number: u64,
    key: &str,
) -> Result<Option<String>, Failure> {
    Ok(read(reader, number)?.and_then(|mut records| records.remove(key)))
}

/// Reads the records of block `number`; `None` if it is not a block of the log.
fn read(reader: &mut Blocking<Buffer>, number: u64) -> Result<Option<Records>, Failure> {
    let buffer = Buffer::new(vec![0; BLOCK]);
    let (result, buffer) =
        reader.read(Bytes(number * BLOCK as u64), buffer).map_err(|error| error.to_string())?;
    result?;
    Ok(Block::open(number, &buffer.into_inner()))
}

const BLOCK: usize = 4096;
/// Sectors of a block.
const SECTORS: u32 = BLOCK as u32 / SECTOR_SIZE;
/// Bytes of a block's header: checksum, number, and bytes used.
const HEADER: usize = 24;

/// A block of the log that is being filled.
struct Block {
    number: u64,
    bytes: Vec<u8>,
}

impl Block {
    fn new(number: u64) -> Self {
        Self { number, bytes: vec![0; HEADER] }
    }

    /// Appends a record. Returns false if there is no room for it.
    fn append(&mut self, key: &str, value: &str) -> bool {
        let record = [key, value].map(str::as_bytes);
        let fits = self.bytes.len() + record.map(<[u8]>::len).iter().sum::<usize>() + 4 <= BLOCK;
        for part in record.iter().filter(|_| fits) {
            self.bytes.extend((part.len() as u16).to_le_bytes());
            self.bytes.extend_from_slice(part);
        }
        fits
    }

    /// Returns the block as it is written to disk.
    fn seal(mut self) -> Buffer {
        let used = self.bytes.len() as u64;
        self.bytes.resize(BLOCK, 0);
        self.bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        self.bytes[16..24].copy_from_slice(&used.to_le_bytes());
        let sum = checksum(&self.bytes[8..]);
        self.bytes[..8].copy_from_slice(&sum.to_le_bytes());
        Buffer::new(self.bytes)
    }

    /// Returns the records of block `number`; `None` if `bytes` are not that block.
    fn open(number: u64, bytes: &[u8]) -> Option<Records> {
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        if word(0)? != checksum(&bytes[8..]) || word(8)? != number {
            return None;
        }
        let mut rest = bytes.get(HEADER..word(16)? as usize)?;
        let mut text = || {
            let (len, behind) = rest.split_first_chunk()?;
            let (text, behind) = behind.split_at_checked(u16::from_le_bytes(*len).into())?;
            rest = behind;
            String::from_utf8(text.to_vec()).ok()
        };
        Some(std::iter::from_fn(|| Some((text()?, text()?))).collect())
    }
}

/// FNV-1a, which suffices to detect a block that a power cut left incomplete.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
