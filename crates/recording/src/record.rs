//! The record to which every format is converted. Names of tenants and volumes become small numbers, in order of
//! appearance; [`Stamps`] are the resolution and the order of the times of a trace; [`Layout`] places many volumes on
//! one device.
//!
//! A [`Writer`] writes records in the formats of other programs: fio's iologs, CSV, and MQSim's.

use blkmq_core::{Class, IoPrio, Op};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// The longest plausible I/O, in bytes: 1 GiB. A greater length indicates a wrong unit or a damaged row.
pub const MOST_LENGTH: u64 = 1 << 30;

/// An I/O of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Nanoseconds from the first record's arrival. Negative where a trace is not in order.
    pub arrival: i64,
    /// The operation.
    pub op: Op,
    /// First byte within the volume.
    pub offset: u64,
    /// Length in bytes, at most [`MOST_LENGTH`]; 0 only for a flush.
    pub length: u64,
    /// The tenant: an index into [`Reader::tenants`](crate::Reader::tenants).
    pub tenant: u32,
    /// The volume: an index into [`Reader::volumes`](crate::Reader::volumes).
    pub volume: u32,
    /// The priority; has no class if the trace has none.
    pub prio: IoPrio,
    /// Nanoseconds from arrival to completion, or `None` if the trace lacks them.
    pub latency: Option<u64>,
}

impl Record {
    /// A record of this range in bytes, tenant and volume, without an arrival, a priority or a latency.
    pub(crate) fn of(op: Op, (offset, length): (u64, u64), (tenant, volume): (u32, u32)) -> Self {
        let prio = IoPrio::default();
        Self { arrival: 0, op, offset, length, tenant, volume, prio, latency: None }
    }
}

/// A record as the format gives it, behind its stamp in nanoseconds since the format's own zero. The arrival is not
/// known yet; a flush may have a range.
pub(crate) type Row = (u64, Record);

/// The event of blktrace and blkparse that counts as the arrival of an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Event {
    /// `Q`: an I/O enters the queue.
    #[default]
    Queued,
    /// `D`: a request goes to the driver.
    Issued,
}

/// The most tenants, and the most volumes, of a trace. Each costs about 100 bytes.
pub const MOST_NAMES: usize = 1 << 17;

/// A table of names.
#[derive(Debug, Default)]
pub struct Names {
    ids: BTreeMap<Box<[u8]>, u32>,
    names: Vec<String>,
    /// A cache of recent lookups, indexed by a few bits of the name's hash: a trace uses few names at a time, and a
    /// tree takes several comparisons. [`NONE`] marks a free slot. Names that are not UTF-8 are not cached.
    recent: Vec<u32>,
    /// The number of I/Os whose name found no room, and shares the number of another.
    shared: u64,
}

const RECENT: usize = 1 << 12;
const NONE: u32 = u32::MAX;

impl Names {
    /// The number of `name`, or `None` if it is new and the table is full. O(1) for recent names, else O(log n).
    pub(crate) fn id(&mut self, name: &[u8]) -> Option<u32> {
        if self.recent.is_empty() {
            self.recent = vec![NONE; RECENT];
        }
        let slot = hash(name) as usize % RECENT;
        let recent = self.recent[slot];
        if self.names.get(recent as usize).is_some_and(|known| known.as_bytes() == name) {
            return Some(recent);
        }
        let id = match self.ids.get(name) {
            Some(id) => *id,
            None if self.names.len() >= MOST_NAMES => return None,
            None => {
                let id = self.names.len() as u32;
                self.ids.insert(name.into(), id);
                self.names.push(String::from_utf8_lossy(name).into_owned());
                id
            }
        };
        if self.name(id).as_bytes() == name {
            self.recent[slot] = id;
        }
        Some(id)
    }

    /// The number of `name`. If the table is full, a new name shares the number that its hash selects, which is
    /// counted.
    pub(crate) fn id_or_shared(&mut self, name: &[u8]) -> u32 {
        self.id(name).unwrap_or_else(|| {
            self.shared += 1;
            hash(name) % MOST_NAMES as u32
        })
    }

    /// Returns the number of I/Os with names beyond [`MOST_NAMES`], which share the numbers of other names.
    #[must_use]
    pub fn shared(&self) -> u64 {
        self.shared
    }

    /// The name with this number; empty if there is none.
    #[must_use]
    pub fn name(&self, id: u32) -> &str {
        self.names.get(id as usize).map_or("", String::as_str)
    }

    /// The number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns whether there are no names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

/// Hashes eight bytes at a time. A collision only costs another comparison.
fn hash(name: &[u8]) -> u32 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let (eights, rest) = name.as_chunks::<8>();
    let last = rest.iter().fold(name.len() as u64, |value, byte| value << 8 | u64::from(*byte));
    let step = |hash: u64, value: u64| (hash.rotate_left(5) ^ value).wrapping_mul(ODD);
    let hash = eights.iter().fold(0, |hash, eight| step(hash, u64::from_le_bytes(*eight)));
    (step(hash, last) >> 32) as u32
}

/// Facts about the stamps of the records so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamps {
    /// The largest power of ten, in nanoseconds and up to a second, that divides all arrivals.
    pub unit: u64,
    /// The number of records with the same arrival as the previous record.
    pub same: u64,
    /// The number of records that arrived earlier than the previous record.
    pub unordered: u64,
    /// The maximum by which a record precedes the latest arrival so far, in nanoseconds.
    pub most_back: u64,
    last: i64,
    latest: i64,
    is_first: bool,
}

const SECOND: u64 = 1_000_000_000;

impl Stamps {
    pub(crate) fn new() -> Self {
        let (same, unordered, most_back) = (0, 0, 0);
        Self { unit: SECOND, same, unordered, most_back, last: 0, latest: 0, is_first: true }
    }

    pub(crate) fn add(&mut self, arrival: i64) {
        if !self.is_first {
            self.same += u64::from(arrival == self.last);
            self.unordered += u64::from(arrival < self.last);
        }
        self.is_first = false;
        self.last = arrival;
        self.latest = self.latest.max(arrival);
        self.most_back = self.most_back.max(self.latest.abs_diff(arrival));
        while self.unit > 1 && !arrival.unsigned_abs().is_multiple_of(self.unit) {
            self.unit /= 10;
        }
    }

    /// Returns whether the stamps are too coarse to give the order and the times of I/Os within a unit: they are whole
    /// milliseconds or coarser, and most equal the previous one.
    #[must_use]
    pub fn is_coarse(&self, records: u64) -> bool {
        self.unit >= 1_000_000 && self.same * 2 > records
    }
}

/// How volumes share a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layout {
    /// Volumes follow each other; each is as long as its last I/O reaches.
    #[default]
    Concat,
    /// Each volume begins at a hash of its number, and wraps around at the end of the device.
    Hash,
}

impl Layout {
    /// The layouts and their names.
    pub const NAMES: [(Self, &'static str); 2] = [(Self::Concat, "concat"), (Self::Hash, "hash")];
}

/// The trace does not fit on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// The volumes are longer than the device.
    #[error(
        "its volumes have {needed} bytes and the device {device}; accepted: a larger device, --layout=hash, or \
         --scale-space below 1"
    )]
    Room {
        /// The sum of the lengths of the volumes, in bytes.
        needed: u64,
        /// The size of the device, in bytes.
        device: u64,
    },
}

/// The placement of the volumes of a trace.
#[derive(Clone, Debug)]
pub struct Placed {
    layout: Layout,
    starts: Vec<u64>,
    device: u64,
}

/// The alignment of volumes, in bytes.
const VOLUME_ALIGN: u64 = 1 << 20;

impl Placed {
    /// Places volumes that end at `ends` bytes on a device of `device` bytes.
    ///
    /// # Errors
    /// If the layout is [`Layout::Concat`] and the volumes are longer than the device.
    pub fn new(layout: Layout, ends: &[u64], device: u64) -> Result<Self, LayoutError> {
        let mut starts = Vec::with_capacity(ends.len());
        let mut at: u64 = 0;
        for (number, end) in ends.iter().enumerate() {
            match layout {
                Layout::Concat => {
                    starts.push(at);
                    at = at.saturating_add(end.next_multiple_of(if ends.len() > 1 {
                        VOLUME_ALIGN
                    } else {
                        1
                    }));
                }
                Layout::Hash => {
                    let hash = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    starts.push(
                        ((u128::from(hash) * u128::from(device / VOLUME_ALIGN)) >> 64) as u64
                            * VOLUME_ALIGN,
                    );
                }
            }
        }
        if layout == Layout::Concat && at > device {
            return Err(LayoutError::Room { needed: at, device });
        }
        Ok(Self { layout, starts, device })
    }

    /// The first byte of `record` on the device. An I/O that would cross the end begins earlier.
    #[must_use]
    pub fn place(&self, record: &Record) -> u64 {
        let start = self.starts.get(record.volume as usize).copied().unwrap_or(0);
        let place = start.saturating_add(record.offset);
        match self.layout {
            Layout::Concat => place,
            Layout::Hash => {
                let place = place % self.device.max(1);
                place.min(self.device.saturating_sub(record.length))
            }
        }
    }
}

/// An output format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// CSV with every field, which can be read back without loss.
    Csv,
    /// fio's iolog version 2, with gaps in microseconds.
    Iolog2,
    /// fio's iolog version 3, with times in microseconds.
    Iolog3,
    /// MQSim's format: reads and writes only.
    Mqsim,
}

impl Form {
    /// The formats and their names.
    pub const NAMES: [(Self, &'static str); 4] = [
        (Self::Csv, "csv"),
        (Self::Iolog2, "iolog2"),
        (Self::Iolog3, "iolog3"),
        (Self::Mqsim, "mqsim"),
    ];
}

/// Writes records.
pub struct Writer<W> {
    form: Form,
    out: W,
    /// Whether the iolog has opened each volume.
    opened: Vec<bool>,
    last: i64,
    left_out: u64,
}

/// The longest file name that fio reads.
const MOST_NAME: usize = 255;

impl<W: Write> Writer<W> {
    /// Creates a writer to `out`, which should be buffered.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn new(form: Form, mut out: W) -> io::Result<Self> {
        match form {
            Form::Csv => writeln!(out, "time_ns,op,offset,size,tenant,volume,class,latency_ns")?,
            Form::Iolog2 => writeln!(out, "fio version 2 iolog")?,
            Form::Iolog3 => writeln!(out, "fio version 3 iolog")?,
            Form::Mqsim => {}
        }
        Ok(Self { form, out, opened: Vec::new(), last: 0, left_out: 0 })
    }

    /// Writes a record. Arrivals before the first record are clamped to it.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn write(&mut self, record: &Record, tenants: &Names, volumes: &Names) -> io::Result<()> {
        let arrival = record.arrival.max(0);
        match self.form {
            Form::Csv => self.csv(record, tenants, volumes),
            Form::Iolog2 | Form::Iolog3 => self.iolog(record, arrival, volumes),
            Form::Mqsim => match record.op {
                Op::Read | Op::Write => {
                    let (sector, sectors) = (record.offset / 512, record.length.div_ceil(512));
                    let kind = u32::from(record.op == Op::Read);
                    let volume = record.volume;
                    writeln!(self.out, "{arrival} {volume} {sector} {sectors} {kind}")
                }
                _ => {
                    self.left_out += 1;
                    Ok(())
                }
            },
        }
    }

    fn csv(&mut self, record: &Record, tenants: &Names, volumes: &Names) -> io::Result<()> {
        let Record { arrival, offset, length, latency, .. } = *record;
        let op = match record.op {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::WriteZeroes => "zeroes",
        };
        let class = match record.prio.class() {
            Class::None => "none",
            Class::Realtime => "rt",
            Class::BestEffort => "be",
            Class::Idle => "idle",
        };
        let tenant = clean(tenants.name(record.tenant), &[',', '"', '\n', '\r']);
        let volume = clean(volumes.name(record.volume), &[',', '"', '\n', '\r']);
        let latency = latency.map(|it| it.to_string()).unwrap_or_default();
        let arrival = arrival.max(0);
        writeln!(self.out, "{arrival},{op},{offset},{length},{tenant},{volume},{class},{latency}")
    }

    fn iolog(&mut self, record: &Record, arrival: i64, volumes: &Names) -> io::Result<()> {
        let action = match record.op {
            Op::Read => "read",
            Op::Write | Op::WriteZeroes => "write",
            Op::Discard => "trim",
            Op::Flush => "sync",
        };
        let mut file = clean(volumes.name(record.volume), &[' ', '\t', '\n', '\r']);
        if file.is_empty() {
            file = "trace".into();
        }
        while file.len() > MOST_NAME {
            file.pop();
        }
        let stamp =
            if self.form == Form::Iolog3 { format!("{} ", arrival / 1_000) } else { String::new() };
        let number = record.volume as usize;
        if self.opened.len() <= number {
            self.opened.resize(number + 1, false);
        }
        if !self.opened[number] {
            self.opened[number] = true;
            writeln!(self.out, "{stamp}{file} add\n{stamp}{file} open")?;
        }
        let wait = (arrival / 1_000 - self.last / 1_000).max(0);
        if self.form == Form::Iolog2 && wait > 0 {
            writeln!(self.out, "{file} wait {wait} 0")?;
        }
        self.last = self.last.max(arrival);
        writeln!(self.out, "{stamp}{file} {action} {} {}", record.offset, record.length)
    }

    /// Ends the output, and returns the number of records that the format cannot express.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn finish(mut self) -> io::Result<u64> {
        self.out.flush()?;
        Ok(self.left_out)
    }
}

/// Replaces characters that the format does not allow with `_`.
fn clean(name: &str, bad: &[char]) -> String {
    name.chars().map(|it| if bad.contains(&it) { '_' } else { it }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trace of a file system has more files than the table can hold.
    #[test]
    fn names_without_a_place_share_and_are_counted() {
        let mut names = Names::default();
        for number in 0..MOST_NAMES as u32 {
            assert_eq!(names.id_or_shared(&number.to_le_bytes()), number);
        }
        assert_eq!((names.id(b"another"), names.shared()), (None, 0));
        let shared = names.id_or_shared(b"another");
        assert!((shared as usize) < MOST_NAMES);
        assert_eq!((names.id_or_shared(b"another"), names.shared()), (shared, 2));
    }

    /// Names that are not UTF-8 may be displayed alike.
    #[test]
    fn names_differ_by_their_bytes() {
        let mut names = Names::default();
        let all =
            [&b"\xff"[..], b"\xfe", "\u{fffd}".as_bytes(), b"", b"a", b"a long name of 24 bytes."];
        for _ in 0..2 {
            for (number, name) in all.iter().enumerate() {
                assert_eq!(names.id(name), Some(number as u32));
            }
        }
        assert_eq!(
            (names.name(0), names.name(2), names.name(5)),
            ("\u{fffd}", "\u{fffd}", "a long name of 24 bytes.")
        );
    }
}
