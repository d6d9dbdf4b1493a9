//! Opens a mirror: reads the records of its legs, and decides which legs have its contents.

#![forbid(unsafe_code)]

use super::records::{Found, MAX_LEGS, Member, Places, Record, record_io};
use super::{Planted, is_planted};
use crate::OwnIo;
use crate::lent::Part;
use crate::queue;
use blkmq_buf::AlignedBuf;
use blkmq_core::{Instant, IoError, IoFlags, Nanos, Op, SECTOR_SIZE};
use blkmq_engine::BlockDevice;
use std::hash::{BuildHasher, Hasher, RandomState};

/// How long opening a mirror waits for its records.
const PATIENCE: Instant = Instant::from_nanos(Nanos::from_secs(60).0);

/// Why devices do not form a mirror.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MirrorError {
    /// No device has a record.
    #[error(
        "no device has a record of a mirror; accepted: create=1, which makes a mirror of the \
         contents of device 0, with none missing"
    )]
    NoRecords,
    /// A device has no record, although others have one.
    #[error(
        "device {leg} has no record of the mirror; accepted: replace=1, which copies the mirror \
         to it"
    )]
    NoRecord {
        /// The number of the device, from 0 on.
        leg: usize,
    },
    /// A device belongs to another mirror than an earlier one.
    #[error(
        "device {leg} is of another mirror than the ones before; accepted: devices of one mirror, \
         or a device whose last 64 KiB are zeroes, with replace=1"
    )]
    Foreign {
        /// The number of the device.
        leg: usize,
    },
    /// Another device has taken the place of this one.
    #[error(
        "device {leg} was replaced by another; accepted: that one, or a device whose last 64 KiB \
         are zeroes, with replace=1"
    )]
    Replaced {
        /// The number of the device.
        leg: usize,
    },
    /// The devices are not in the order in which the mirror was made.
    #[error("device {leg} is number {number} of the mirror; accepted: their order")]
    Order {
        /// The number of the device here.
        leg: usize,
        /// Its number in the mirror.
        number: usize,
    },
    /// The mirror has another number of devices.
    #[error(
        "{given} devices of a mirror of {accepted}; accepted: {accepted}, with [missing] in the \
         place of each that is"
    )]
    Count {
        /// The number of devices given, including missing ones.
        given: usize,
        /// The number of devices of the mirror.
        accepted: usize,
    },
    /// Two devices were each written to without the other.
    #[error(
        "devices {one} and {other} were each written without the other; accepted: [missing] in the \
         place of one, or zeroes in its last 64 KiB, with replace=1"
    )]
    Diverged {
        /// The number of one.
        one: usize,
        /// The number of the other.
        other: usize,
    },
    /// No present device has the contents of the mirror.
    #[error(
        "no device that is here has the contents of the mirror; accepted: one that was in step \
         with it"
    )]
    Behind,
    /// A record of a later version.
    #[error("the record of device {leg} has version {version}; accepted: 1")]
    Later {
        /// The number of the device.
        leg: usize,
        /// The version.
        version: u32,
    },
    /// A device has no room for the mirror and its records.
    #[error("device {leg} has not room for {least} sectors and records; accepted: more")]
    Small {
        /// The number of the device.
        leg: usize,
        /// The sectors that it must have.
        least: u64,
    },
    /// A record cannot be read or written.
    #[error(
        "the record of device {leg}: {error}; accepted: [missing] in its place, if others have the \
         contents"
    )]
    Record {
        /// The number of the device.
        leg: usize,
        /// The error of the device.
        error: IoError,
    },
    /// The system refuses resources for the queues of a device.
    #[error("{0}")]
    Queues(String),
    /// A queue of the mirror exists already.
    #[error("a queue of the mirror exists already; accepted: one at a time")]
    Busy,
}

/// The user's choices about a mirror.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Given {
    pub(crate) create: bool,
    pub(crate) replace: bool,
    /// The missing legs, a bit for each number.
    pub(crate) missing: u8,
}

/// A mirror that can be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Assembly {
    pub(crate) members: Vec<Member>,
    /// The initial state. Its legs in step may include missing ones.
    pub(crate) record: Record,
    /// The legs in step that are present, a bit each.
    pub(crate) in_step: u8,
    /// The state differs from the records, which must be written before anything else is done.
    pub(crate) has_changed: bool,
}

/// Reads the records of `devices`, and decides which state the mirror is in.
///
/// # Errors
/// If the devices do not form a mirror.
pub(crate) fn assemble(
    given: Given,
    devices: &[&dyn BlockDevice<Part>],
) -> Result<Assembly, MirrorError> {
    let count = devices.len() + given.missing.count_ones() as usize;
    if count > MAX_LEGS {
        return Err(MirrorError::Count { given: count, accepted: MAX_LEGS });
    }
    let numbers = (0..MAX_LEGS).filter(|number| given.missing >> number & 1 == 0);
    let mut members = Vec::new();
    for (number, device) in numbers.zip(devices) {
        let places = Places::of(&device.shape().limits);
        let places = places.ok_or(MirrorError::Small { leg: number, least: 1 })?;
        members.push(Member { number, places, next: 0, found: Found::Nothing });
    }
    let blocks = devices.iter().map(|device| device.shape().limits.logical_block_size);
    let block = u64::from(blocks.max().unwrap_or(SECTOR_SIZE) / SECTOR_SIZE);
    read(&mut members, devices)?;
    decide(given, members, block, &mut || RandomState::new().build_hasher().finish())
}

/// Reads both places of each leg.
fn read(members: &mut [Member], devices: &[&dyn BlockDevice<Part>]) -> Result<(), MirrorError> {
    let mut ios = Vec::new();
    for (leg, member) in members.iter().enumerate() {
        for (copy, sector) in member.places.at.into_iter().enumerate() {
            let bytes = AlignedBuf::new((member.places.sectors * u64::from(SECTOR_SIZE)) as usize);
            let (op, flags) = (Op::Read, IoFlags::SYNC);
            ios.push(OwnIo { leg, op, flags, sector, bytes, cookie: copy as u64 });
        }
    }
    for mut io in carry_out(members, devices, ios)? {
        let member = &mut members[io.leg];
        let found = Record::read(io.bytes.as_mut_slice());
        member.found = match (member.found, found) {
            (Found::Later(version), _) | (_, Found::Later(version)) => Found::Later(version),
            (Found::Record(one), Found::Record(other)) if other.counter <= one.counter => continue,
            (_, Found::Record(other)) => {
                member.next = 1 - io.cookie as usize;
                Found::Record(other)
            }
            (found, Found::Nothing) => found,
        };
    }
    Ok(())
}

/// Carries out I/Os of records. All of them must succeed.
fn carry_out(
    members: &[Member],
    devices: &[&dyn BlockDevice<Part>],
    ios: Vec<OwnIo>,
) -> Result<Vec<OwnIo>, MirrorError> {
    if ios.is_empty() {
        return Ok(ios);
    }
    let mut left = Vec::from_iter(ios.iter().map(|io| io.leg));
    let done = queue::carry_out(devices, ios, PATIENCE);
    let done = done.map_err(|error| MirrorError::Queues(error.to_string()))?;
    let failed = |leg: usize, error| MirrorError::Record { leg: members[leg].number, error };
    let mut all = Vec::new();
    for (io, result) in done {
        result.map_err(|error| failed(io.leg, error))?;
        let at = left.iter().position(|leg| *leg == io.leg);
        left.swap_remove(at.expect("an answer to each I/O"));
        all.push(io);
    }
    match left.first() {
        Some(leg) => Err(failed(*leg, IoError::TIMED_OUT)),
        None => Ok(all),
    }
}

impl Assembly {
    /// A sentence for each leg that is missing or behind.
    pub(crate) fn notes(&self, given: Given) -> impl Iterator<Item = String> {
        let is_behind = |number: &usize| self.in_step >> number & 1 == 0;
        let behind = self.members.iter().map(|member| member.number).filter(is_behind);
        let behind = behind.map(|number| {
            format!(
                "device {number} is behind: it is copied from another while the mirror is in use"
            )
        });
        let missing = (0..MAX_LEGS).filter(move |number| given.missing >> number & 1 == 1);
        let missing = missing.map(|number| {
            format!("device {number} is missing: writes that only it has are missing, too")
        });
        behind.chain(missing)
    }

    /// Writes the records of a mirror whose state differs from them.
    ///
    /// # Errors
    /// If one cannot be written.
    pub(crate) fn settle(&mut self, devices: &[&dyn BlockDevice<Part>]) -> Result<(), MirrorError> {
        let has_changed = std::mem::take(&mut self.has_changed);
        if !has_changed || is_planted(Planted::BeginsSilently) {
            return Ok(());
        }
        self.record.counter += 1;
        // Legs in step first: without their records, the records of the other legs would name no leg that has the
        // contents.
        for is_in_step in [true, false] {
            let of_round = |(_, member): &(usize, &Member)| {
                (self.in_step >> member.number & 1 == 1) == is_in_step
            };
            let legs = self.members.iter().enumerate().filter(of_round);
            let ios = legs.map(|(leg, member)| record_io(leg, member, &self.record, 0));
            carry_out(&self.members, devices, ios.collect())?;
        }
        self.members.iter_mut().for_each(|member| member.next = 1 - member.next);
        Ok(())
    }
}

/// The mirror that the records describe. `block`: the sectors in a block of the mirror.
pub(super) fn decide(
    given: Given,
    members: Vec<Member>,
    block: u64,
    draw: &mut dyn FnMut() -> u64,
) -> Result<Assembly, MirrorError> {
    let count = members.len() + given.missing.count_ones() as usize;
    let mut records = Vec::new();
    for Member { number: leg, found, .. } in &members {
        match *found {
            Found::Later(version) => return Err(MirrorError::Later { leg: *leg, version }),
            Found::Record(record) => records.push((*leg, record)),
            Found::Nothing => {}
        }
    }
    let Some((_, newest)) = records.iter().max_by_key(|(_, record)| record.counter).copied() else {
        if !given.create || given.missing != 0 {
            return Err(MirrorError::NoRecords);
        }
        return create(members, block, draw);
    };
    check(&records, &newest, count)?;
    let mut record = newest;
    for member in &members {
        let leg = member.number;
        if member.found == Found::Nothing {
            if !given.replace {
                return Err(MirrorError::NoRecord { leg });
            }
            record.legs[leg] = draw();
            record.in_step &= !(1 << leg);
        }
        if member.places.at[0] < record.sectors || !record.sectors.is_multiple_of(block) {
            return Err(MirrorError::Small { leg, least: record.sectors });
        }
    }
    let here = members.iter().fold(0, |here, member| here | 1 << member.number);
    let mut in_step = record.in_step & here;
    if in_step == 0 {
        return Err(MirrorError::Behind);
    }
    if !record.is_clean && !is_planted(Planted::TrustsAll) {
        // The legs may differ in the writes that were in flight.
        in_step = 1 << in_step.trailing_zeros();
    }
    // A leg that is behind must say so before its first byte is changed.
    let has_changed = here != in_step || !record.is_clean;
    if has_changed {
        (record.in_step, record.is_clean) = (in_step, true);
    }
    Ok(Assembly { members, record, in_step, has_changed })
}

/// A new mirror with the contents of the first leg.
fn create(
    members: Vec<Member>,
    block: u64,
    draw: &mut dyn FnMut() -> u64,
) -> Result<Assembly, MirrorError> {
    let room = members.iter().map(|member| member.places.at[0]).min().unwrap_or(0);
    let sectors = room / block * block;
    if sectors == 0 {
        return Err(MirrorError::Small { leg: 0, least: block });
    }
    let mut legs = [0; MAX_LEGS];
    legs[..members.len()].fill_with(&mut *draw);
    let record = Record {
        id: u128::from(draw()) << 64 | u128::from(draw()),
        legs,
        count: members.len() as u8,
        leg: 0,
        in_step: 1,
        is_clean: true,
        counter: 0,
        sectors,
    };
    Ok(Assembly { members, record, in_step: 1, has_changed: true })
}

/// Checks that the records belong to the mirror that `newest` describes.
fn check(records: &[(usize, Record)], newest: &Record, count: usize) -> Result<(), MirrorError> {
    let id = records[0].1.id;
    for (leg, record) in records {
        let (leg, number) = (*leg, usize::from(record.leg));
        if record.id != id {
            return Err(MirrorError::Foreign { leg });
        }
        if usize::from(record.count) != count {
            return Err(MirrorError::Count { given: count, accepted: record.count.into() });
        }
        if number != leg {
            return Err(MirrorError::Order { leg, number });
        }
        if record.legs[leg] != newest.legs[leg] {
            return Err(MirrorError::Replaced { leg });
        }
        // The leg calls itself in step, but the newest record does not: the leg has missed writes. That is in order
        // unless it was itself written to without those legs.
        if record.in_step & 1 << leg == 0 || newest.in_step & 1 << leg != 0 {
            continue;
        }
        let knows = |other: &usize| {
            record.in_step >> other & 1 == 1 && record.legs[*other] == newest.legs[*other]
        };
        let in_step = (0..MAX_LEGS).filter(|other| newest.in_step >> other & 1 == 1);
        if let Some(other) = in_step.into_iter().find(|other| !knows(other)) {
            return Err(MirrorError::Diverged { one: other, other: leg });
        }
    }
    Ok(())
}
