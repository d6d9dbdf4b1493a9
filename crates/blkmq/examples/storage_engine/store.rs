//! The store: a log with group commit, sorted runs, and a thread that merges them. First its checksummed blocks, and a
//! client that reads and writes them.
//!
//! - **The log** is a ring of blocks. One thread takes all waiting records and acknowledges them together: a group of
//!   one block is one FUA write, a larger group is writes in one plug and a flush. The checksum of a block depends on
//!   that of the block before it, so recovery ends at the first missing block, even if an earlier lap has left blocks
//!   behind it.
//! - **A run** is sorted and never changed. When half of the log is used, the records in memory become a run, while
//!   puts wait.
//! - **The manifest** names the runs and the beginning of the log. It is one block, stored in two places alternately.
//!   PREFLUSH makes its runs durable before it, and FUA makes the manifest durable; only then are the blocks that it
//!   gives up used again.
//! - **Compaction** merges all runs, in a thread with its own client and group, so that I/Os held back by its ceiling
//!   take no credit from other clients.
//!
//! Left out: deletions, scans, an index on disk (the index in memory is built when the store is opened), incremental
//! merging.

use blkmq::prelude::*;
use blkmq::{GroupGuard, GroupOptions, IoMax};
use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::thread::{self, JoinHandle};

/// An error of any kind.
pub type Failure = Box<dyn Error + Send + Sync>;
/// Records by their keys.
type Records = BTreeMap<String, String>;

const BLOCK: usize = 4096;
/// Sectors of a block.
const SECTORS: u64 = 8;
/// Bytes of a block's header: its checksum, and the number of bytes used.
const HEADER: usize = 16;

/// Makes a block of `bytes`, which begin with room for a header, and a checksum that depends on `seed`. Returns both.
fn seal(mut bytes: Vec<u8>, seed: u64) -> (AlignedBuf, u64) {
    let used = bytes.len() as u64;
    assert!(bytes.len() <= BLOCK, "it has room for them");
    bytes.resize(BLOCK, 0);
    bytes[8..HEADER].copy_from_slice(&used.to_le_bytes());
    let sum = checksum(seed, &bytes[8..]);
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
    (bytes.into(), sum)
}

/// Returns the bytes in a block, and its checksum; `None` if it was written incompletely, or with another seed.
fn unseal(block: &[u8], seed: u64) -> Option<(&[u8], u64)> {
    let [sum, used] = Vec::from_iter(words(&block[..HEADER]))[..] else { return None };
    (sum == checksum(seed, &block[8..])).then_some((block.get(HEADER..used as usize)?, sum))
}

/// FNV-1a, which suffices to find a block that a power cut has left incomplete.
fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(seed ^ 0xcbf2_9ce4_8422_2325, step)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
}

/// Appends a record to the last block, or to a new one.
fn append(blocks: &mut Vec<Vec<u8>>, key: &str, value: &str) {
    let lens = [key, value].map(|text| (text.len() as u16).to_le_bytes());
    let record = [&lens.concat(), key.as_bytes(), value.as_bytes()].concat();
    match blocks.last_mut() {
        Some(block) if block.len() + record.len() <= BLOCK => block.extend(record),
        _ => blocks.push([vec![0; HEADER], record].concat()),
    }
}

/// The records of a block, in the order in which they were appended.
fn records(mut bytes: &[u8]) -> impl Iterator<Item = (String, String)> {
    std::iter::from_fn(move || {
        let ([a, b, c, d], rest) = bytes.split_first_chunk()?;
        let (key, rest) = rest.split_at_checked(u16::from_le_bytes([*a, *b]).into())?;
        let (value, rest) = rest.split_at_checked(u16::from_le_bytes([*c, *d]).into())?;
        bytes = rest;
        Some((String::from_utf8(key.to_vec()).ok()?, String::from_utf8(value.to_vec()).ok()?))
    })
}

/// The client of one thread, and the group and the priority class of its I/Os.
struct Disk {
    client: Client<AlignedBuf>,
    group: GroupId,
    class: IoPrio,
}

impl Disk {
    fn new(service: &Service<AlignedBuf>, group: GroupId, class: Class) -> Result<Self, Failure> {
        let class = IoPrio::new(class, 0).ok_or("0 is a level")?;
        Ok(Self { client: service.client()?, group, class })
    }

    fn read(&mut self, number: u64) -> Result<Vec<u8>, Failure> {
        self.push(Io::read(Sectors(number * SECTORS), AlignedBuf::new(BLOCK)))?;
        let mut block = Err(IoError::POISONED);
        self.client.wait(1, 1, |done| block = done.result.map(|()| done.payload.into()));
        Ok(block?)
    }

    /// Writes numbered blocks and waits for them. Adjacent blocks merge in the plug.
    fn write(
        &mut self,
        blocks: impl IntoIterator<Item = (u64, AlignedBuf)>,
        flags: IoFlags,
    ) -> Result<(), Failure> {
        for (number, block) in blocks {
            if self.client.in_flight() == self.client.depth() {
                self.wait(1)?;
            }
            self.push(Io::write(Sectors(number * SECTORS), block).with(flags))?;
        }
        self.wait(u32::MAX)
    }

    /// Makes all completed writes durable. After an error they never will be, even if a later flush succeeds.
    fn flush(&mut self) -> Result<(), Failure> {
        self.push(Io::flush())?;
        self.wait(1)
    }

    /// Writes one block durably, after all completed writes have become durable. It is outside of the compaction's
    /// group, whose ceiling would delay the foreground.
    fn write_manifest(&mut self, number: u64, block: AlignedBuf) -> Result<(), Failure> {
        let io = Io::write(Sectors(number * SECTORS), block);
        self.client.push(io.with(IoFlags::PREFLUSH | IoFlags::FUA))?;
        self.wait(1)
    }

    fn push(&mut self, io: Io<AlignedBuf>) -> Result<(), Failure> {
        Ok(self.client.push(io.group(self.group).ioprio(self.class))?)
    }

    /// Waits for `least` I/Os, or for all in flight if they are fewer.
    fn wait(&mut self, least: u32) -> Result<(), Failure> {
        let mut outcome = Ok(());
        self.client.wait(least, u32::MAX, |done| outcome = outcome.and(done.result));
        if self.client.lost().is_some() { Err(IoError::POISONED.into()) } else { Ok(outcome?) }
    }
}

/// A sorted run: its first block, and the first key of each block.
struct Run {
    start: u64,
    firsts: Vec<String>,
}

impl Run {
    fn blocks(&self) -> Range<u64> {
        self.start..self.start + self.firsts.len() as u64
    }

    fn read(disk: &mut Disk, number: u64) -> Result<Records, Failure> {
        let block = disk.read(number)?;
        let (bytes, _) = unseal(&block, number).ok_or("a block of a run is damaged")?;
        Ok(records(bytes).collect())
    }
}

/// The blocks of the log, behind the two places of the manifest.
const LOG: Range<u64> = 2..66;
/// The most records in a group. Two groups fit in half of the log.
const GROUP: usize = 16;
/// The number of runs that starts a compaction.
const RUNS: usize = 4;
const POISONED: &str = "no panic happens under this lock";

/// The newest records, and older ones in runs, the newest run first.
#[derive(Default)]
struct Tables {
    memory: Records,
    runs: Vec<Arc<Run>>,
}

/// A number of blocks of the log, and the checksum of the last one.
type Position = (u64, u64);

struct Manifest {
    /// `None` if the last write failed. The manifest may have been written, so no block may be used again.
    number: Option<u64>,
    /// The beginning of the log: earlier records are in runs.
    log: Position,
    /// The runs on disk. A run keeps its blocks until the last table and the last reader have dropped it.
    places: Vec<Weak<Run>>,
}

struct Shared {
    tables: RwLock<Tables>,
    /// Locked while the manifest is written.
    manifest: Mutex<Manifest>,
    /// The number of blocks of the device.
    end: u64,
}

impl Shared {
    /// Writes records as a run, which no manifest names yet.
    fn write_run(&self, disk: &mut Disk, sorted: &Records) -> Result<Arc<Run>, Failure> {
        let mut blocks = Vec::new();
        sorted.iter().for_each(|(key, value)| append(&mut blocks, key, value));
        let first = |block: &Vec<u8>| records(&block[HEADER..]).next().map(|(key, _)| key);
        let run = self.reserve(blocks.iter().filter_map(first).collect())?;
        let sealed = run.blocks().zip(blocks).map(|(at, block)| (at, seal(block, at).0));
        disk.write(sealed, IoFlags::NONE)?;
        Ok(run)
    }

    /// Finds blocks for a run.
    fn reserve(&self, firsts: Vec<String>) -> Result<Arc<Run>, Failure> {
        let mut manifest = self.manifest.lock().expect(POISONED);
        let mut others = Vec::from_iter(manifest.places.iter().filter_map(Weak::upgrade));
        others.sort_unstable_by_key(|run| run.start);
        let mut run = Run { start: LOG.end, firsts };
        for other in others.iter().map(|other| other.blocks()) {
            if other.start < run.blocks().end {
                run.start = other.end;
            }
        }
        if run.blocks().end > self.end || manifest.number.is_none() {
            return Err("there is no room for a run".into());
        }
        let run = Arc::new(run);
        manifest.places = others.iter().chain([&run]).map(Arc::downgrade).collect();
        Ok(run)
    }

    /// Changes the runs: on disk, and then for readers. With `log`, the runs contain all records that were in memory.
    fn install(
        &self,
        disk: &mut Disk,
        log: Option<Position>,
        change: impl FnOnce(&mut Vec<Arc<Run>>),
    ) -> Result<(), Failure> {
        let mut manifest = self.manifest.lock().expect(POISONED);
        let number = manifest.number.take().ok_or("a manifest was not written")? + 1;
        let mut runs = self.tables.read().expect(POISONED).runs.clone();
        change(&mut runs);
        manifest.log = log.unwrap_or(manifest.log);
        let head = [0, 0, number, manifest.log.0, manifest.log.1];
        let places = runs.iter().flat_map(|run| [run.start, run.firsts.len() as u64]);
        let bytes = head.into_iter().chain(places).flat_map(u64::to_le_bytes).collect();
        disk.write_manifest(number % 2, seal(bytes, 0).0)?;
        manifest.number = Some(number);
        let mut tables = self.tables.write().expect(POISONED);
        tables.runs = runs;
        if log.is_some() {
            tables.memory.clear();
        }
        Ok(())
    }

    /// Commits the records from `inbox`, group by group.
    fn run_log(
        &self,
        mut disk: Disk,
        inbox: &Receiver<Put>,
        mut log: Position,
        more_runs: &SyncSender<()>,
    ) -> Result<(), Failure> {
        while let Ok(first) = inbox.recv() {
            // Records that arrived during the last commit belong to this group.
            let group = Vec::from_iter([first].into_iter().chain(inbox.try_iter().take(GROUP - 1)));
            let begin = self.manifest.lock().expect(POISONED).log.0;
            if log.0 - begin > (LOG.end - LOG.start) / 2 {
                let memory = self.tables.read().expect(POISONED).memory.clone();
                let run = self.write_run(&mut disk, &memory)?;
                self.install(&mut disk, Some(log), |runs| runs.insert(0, run))?;
                // Waits for a compaction that has fallen behind.
                more_runs.send(()).map_err(|_| "the compaction has failed")?;
            }
            let mut blocks = Vec::new();
            group.iter().for_each(|put| append(&mut blocks, &put.key, &put.value));
            let flags = if blocks.len() == 1 { IoFlags::FUA } else { IoFlags::SYNC };
            let sealed = blocks.into_iter().map(|block| {
                let (at, (block, sum)) = (place_in_log(log.0), seal(block, log.1));
                log = (log.0 + 1, sum);
                (at, block)
            });
            disk.write(sealed, flags)?;
            if flags != IoFlags::FUA {
                disk.flush()?;
            }
            let mut tables = self.tables.write().expect(POISONED);
            for Put { key, value, done } in group {
                tables.memory.insert(key, value);
                // The writer may have stopped waiting.
                let _ = done.send(());
            }
        }
        Ok(())
    }

    /// Merges all runs whenever there are enough of them.
    fn compact(&self, mut disk: Disk, more_runs: &Receiver<()>) -> Result<(), Failure> {
        while more_runs.recv().is_ok() {
            let old = self.tables.read().expect(POISONED).runs.clone();
            if old.len() < RUNS {
                continue;
            }
            let mut merged = Records::new();
            for number in old.iter().rev().flat_map(|run| run.blocks()) {
                merged.append(&mut Run::read(&mut disk, number)?);
            }
            let merged = self.write_run(&mut disk, &merged)?;
            self.install(&mut disk, None, |runs| {
                // Newer runs precede the merged ones.
                runs.truncate(runs.len() - old.len());
                runs.push(merged);
            })?;
        }
        Ok(())
    }
}

/// A record, and the channel that reports that it is durable.
struct Put {
    key: String,
    value: String,
    done: SyncSender<()>,
}

fn place_in_log(number: u64) -> u64 {
    LOG.start + number % (LOG.end - LOG.start)
}

/// An open store. Any thread puts records through it, and reads them through its own [`Reader`].
pub struct Store {
    shared: Arc<Shared>,
    puts: Sender<Put>,
    threads: [JoinHandle<Result<(), Failure>>; 2],
    _group: GroupGuard<AlignedBuf>,
}

impl Store {
    /// Opens the store on the device of `service`, or makes one.
    pub fn open(service: &Service<AlignedBuf>) -> Result<Self, Failure> {
        let mut disk = Disk::new(service, GroupId::ROOT, Class::BestEffort)?;
        let end = service.queue().plan().device.limits.capacity / SECTORS;
        let (tables, manifest, log) = recover(&mut disk)?;
        // A tenth of the weight of other groups, under schedulers that share by weight, and a ceiling under every
        // scheduler.
        let max = IoMax { wbps: Some(20 << 20), ..IoMax::default() };
        let options = GroupOptions { weight: 10, max, ..GroupOptions::default() };
        let group = service.add_group("compaction", &options)?;
        let idle = Disk::new(service, group.id(), Class::Idle)?;
        let shared = Arc::new(Shared { tables: tables.into(), manifest: manifest.into(), end });
        let (logging, compacting) = (Arc::clone(&shared), Arc::clone(&shared));
        // The compaction may fall 32 runs behind.
        let ((puts, inbox), (more_runs, wake)) = (channel(), sync_channel(32));
        let threads = [
            thread::spawn(move || logging.run_log(disk, &inbox, log, &more_runs)),
            thread::spawn(move || compacting.compact(idle, &wake)),
        ];
        Ok(Self { shared, puts, threads, _group: group })
    }

    /// Stores a record. Returns when it is durable.
    pub fn put(&self, key: &str, value: &str) -> Result<(), Failure> {
        if key.len() + value.len() > 4000 {
            return Err("a record fits into a block".into());
        }
        let (done, is_done) = sync_channel(1);
        let put = Put { key: key.into(), value: value.into(), done };
        self.puts.send(put).map_err(|_| "the log has failed")?;
        is_done.recv().map_err(|_| "the log has failed".into())
    }

    /// A reader for a thread.
    pub fn reader(&self, service: &Service<AlignedBuf>) -> Result<Reader, Failure> {
        let disk = Disk::new(service, GroupId::ROOT, Class::BestEffort)?;
        Ok(Reader { shared: Arc::clone(&self.shared), disk })
    }

    /// Ends the log, and thereby the compaction.
    pub fn close(self) -> Result<(), Failure> {
        drop(self.puts);
        self.threads.into_iter().try_for_each(|it| it.join().map_err(|_| "it has panicked")?)
    }
}

/// Reads the runs of the newest manifest, and then the log.
fn recover(disk: &mut Disk) -> Result<(Tables, Manifest, Position), Failure> {
    let (mut tables, mut newest) = (Tables::default(), Vec::new());
    for place in 0..2 {
        let block = disk.read(place)?;
        newest = newest.max(unseal(&block, 0).map_or(Vec::new(), |(it, _)| words(it).collect()));
    }
    // Without a manifest, the store is new.
    newest.resize(newest.len().max(3), 0);
    for place in newest[3..].chunks_exact(2) {
        let (start, mut firsts) = (place[0], Vec::new());
        for number in start..start + place[1] {
            firsts.extend(Run::read(disk, number)?.into_keys().next());
        }
        tables.runs.push(Arc::new(Run { start, firsts }));
    }
    let (number, begin) = (Some(newest[0]), (newest[1], newest[2]));
    let places = tables.runs.iter().map(Arc::downgrade).collect();
    let mut log = begin;
    for _ in LOG {
        let block = disk.read(place_in_log(log.0))?;
        let Some((bytes, sum)) = unseal(&block, log.1) else { break };
        tables.memory.extend(records(bytes));
        log = (log.0 + 1, sum);
    }
    // After a kill, the blocks that were read may still be in a cache, and later blocks are useless if these are lost.
    disk.flush()?;
    Ok((tables, Manifest { number, log: begin, places }, log))
}

/// Looks records up.
pub struct Reader {
    shared: Arc<Shared>,
    disk: Disk,
}

impl Reader {
    /// Returns the newest value of `key`.
    pub fn get(&mut self, key: &str) -> Result<Option<String>, Failure> {
        let runs = {
            let tables = self.shared.tables.read().expect(POISONED);
            if let Some(value) = tables.memory.get(key) {
                return Ok(Some(value.clone()));
            }
            tables.runs.clone()
        };
        for run in runs {
            let behind = run.firsts.partition_point(|first| &**first <= key) as u64;
            if behind > 0
                && let Some(value) = Run::read(&mut self.disk, run.start + behind - 1)?.remove(key)
            {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }
}
