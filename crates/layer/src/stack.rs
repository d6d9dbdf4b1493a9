//! [`Stack`]: a layer in front of its legs, from which a queue can be made; and the shape of a device made of others:
//! no leg receives a request that it cannot serve.

#![forbid(unsafe_code)]

use crate::codecs::{CHECKED, CHECKED_STORED, Checksum, Key, KeyError, crypt};
use crate::kind::Kind;
use crate::lent::Part;
use crate::mirror::{Given, Mirror, MirrorError, Only, assemble};
use crate::queue::{Layers, lane, queue};
use crate::stripe::{Concat, Stripe};
use crate::{Coded, Findings, Layer};
use blkmq_buf::IoBuf;
use blkmq_core::{Finding, Limits, Nanos, SECTOR_SIZE};
use blkmq_engine::{BlockDevice, DeviceQueues, DeviceShape, Join, WriteCache};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A device made of other devices.
#[derive(Clone, Debug)]
pub struct Stack<D> {
    kind: Kind,
    legs: Vec<D>,
    /// The sectors used of each leg. Empty for a mirror.
    used: Vec<u64>,
    shape: DeviceShape,
    notes: Vec<String>,
    /// The key of an encrypted device.
    key: Option<Key>,
    findings: Findings,
    /// Set while a mirror has a queue: a second one would write to the same records.
    is_taken: Arc<AtomicBool>,
}

/// Why devices do not form a stack.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// There are no devices.
    #[error("a layer without devices; accepted: one or more")]
    NoLegs,
    /// A chunk of a stripe is not in whole blocks of a leg.
    #[error(
        "a chunk of {chunk} bytes is not in whole blocks of {block}, as one of the devices has; \
         accepted: a multiple of them"
    )]
    Chunk {
        /// Bytes in a chunk.
        chunk: u64,
        /// The block of the leg in bytes.
        block: u32,
    },
    /// A leg has no room for a chunk or a block.
    #[error("device {leg} of the layer has less than {least} bytes; accepted: more")]
    Small {
        /// The number of the leg, from 0 on.
        leg: usize,
        /// The bytes that it must have.
        least: u64,
    },
    /// The leg has no sectors of 512 bytes, which checksums need.
    #[error(
        "blocks of {block} bytes have no room for checksums; accepted: a device with sectors of \
         512 bytes"
    )]
    Block {
        /// The block of the leg in bytes.
        block: u32,
    },
    /// A file is not a key.
    #[error("{0}")]
    Key(KeyError),
    /// The devices do not form a mirror.
    #[error("{0}")]
    Mirror(MirrorError),
    /// The legs together are longer than a device can be.
    #[error("the devices of the layer have 2^64 bytes or more in all")]
    Large,
}

impl<D: BlockDevice<Part>> Stack<D> {
    /// A layer of this kind in front of `legs`. For a mirror, these are the legs that are present, and their records
    /// are read here.
    ///
    /// # Errors
    /// If the legs do not suit the layer.
    pub fn new(kind: Kind, legs: Vec<D>) -> Result<Self, StackError> {
        if legs.is_empty() {
            return Err(StackError::NoLegs);
        }
        let shapes = Vec::from_iter(legs.iter().map(BlockDevice::shape));
        let mut shape = of(&shapes);
        let mut notes = Vec::new();
        if let Kind::Crypt { block, .. } = kind {
            as_blocks(&mut shape.limits, block, block);
            shape.limits.max_write_zeroes_sectors = 0;
        }
        let block = shape.limits.logical_block_size / SECTOR_SIZE;
        let unit = match kind {
            Kind::Stripe { chunk } if !chunk.is_multiple_of(block) => {
                let chunk = u64::from(chunk) * u64::from(SECTOR_SIZE);
                return Err(StackError::Chunk { chunk, block: shape.limits.logical_block_size });
            }
            Kind::Checksum if block > 1 => {
                return Err(StackError::Block { block: shape.limits.logical_block_size });
            }
            Kind::Stripe { chunk } => chunk,
            Kind::Concat | Kind::Crypt { .. } | Kind::Mirror { .. } => block,
            Kind::Checksum => CHECKED_STORED as u32 / SECTOR_SIZE,
        };
        let key = match &kind {
            Kind::Crypt { key, .. } => Some(Key::read(key).map_err(StackError::Key)?),
            _ => None,
        };
        let (all, used) = match wishes(&kind) {
            Some(given) => {
                (mirrored(given, &legs, &mut notes).map_err(StackError::Mirror)?, Vec::new())
            }
            None => joined(&kind, unit.into(), &shapes, &mut notes)?,
        };
        shape.limits.capacity = all;
        if kind == Kind::Checksum {
            let (plain, stored) = (CHECKED as u32, CHECKED_STORED as u32);
            shape.limits.capacity =
                all / u64::from(stored / SECTOR_SIZE) * u64::from(plain / SECTOR_SIZE);
            as_blocks(&mut shape.limits, plain, stored);
        }
        for note in legs.iter().flat_map(BlockDevice::notes) {
            if !notes.contains(note) {
                notes.push(note.clone());
            }
        }
        if let Some(device) = join(&kind, &legs, &used) {
            shape = device.shape();
        } else if let Kind::Stripe { .. } = kind {
            // A long request goes to all legs.
            let most = shape.limits.max_sectors.saturating_mul(legs.len() as u32);
            shape.limits.max_sectors = most.min(u32::MAX >> 9) / block * block;
        }
        Ok(Self {
            kind,
            legs,
            used,
            shape,
            notes,
            key,
            findings: Findings::default(),
            is_taken: Arc::default(),
        })
    }

    /// Makes a layer for each client; `None` if all clients share one.
    fn layers(&self) -> Option<Layers> {
        Some(match self.kind {
            Kind::Mirror { .. } => return None,
            Kind::Stripe { chunk } => {
                let legs = self.legs.len();
                Arc::new(move || Box::new(Stripe::new(chunk, legs)))
            }
            Kind::Crypt { block, .. } => {
                let key = self.key.clone().expect("it was read when the stack was made");
                Arc::new(move || crypt(&key, block as usize))
            }
            Kind::Checksum => {
                let findings = self.findings.clone();
                Arc::new(move || Box::new(Coded(Checksum(findings.clone()))))
            }
            Kind::Concat => {
                let used = self.used.clone();
                Arc::new(move || Box::new(Concat::new(used.iter().copied())))
            }
        })
    }

    fn mirror(&self) -> Result<Box<dyn Layer>, MirrorError> {
        let only = Only::new(&self.is_taken)?;
        let legs = self.dyn_legs();
        // A queue that has ended may have written other records.
        let mut assembly = assemble(wishes(&self.kind).unwrap_or_default(), &legs)?;
        assembly.settle(&legs)?;
        Ok(Box::new(Mirror::new(assembly, self.findings.clone(), only)))
    }

    fn dyn_legs(&self) -> Vec<&dyn BlockDevice<Part>> {
        self.legs.iter().map(|leg| leg as _).collect()
    }
}

impl<D> Stack<D> {
    /// The devices below the layer, in order.
    #[must_use]
    pub fn legs(&self) -> &[D] {
        &self.legs
    }

    /// The legs, mutable. Changes apply to queues that are made later; shape and notes stay.
    pub fn legs_mut(&mut self) -> &mut [D] {
        &mut self.legs
    }

    /// The offset in bytes of the first lost byte, if each leg has shrunk to the length that `bytes` returns.
    pub fn bytes_left(&self, bytes: impl Fn(&D) -> u64) -> u64 {
        let sector = u64::from(SECTOR_SIZE);
        let all = self.shape.limits.capacity * sector;
        match self.kind {
            Kind::Stripe { chunk } => {
                let chunk = u64::from(chunk) * sector;
                let least = self.legs.iter().map(|leg| bytes(leg) / chunk * chunk).min();
                least.unwrap_or(0).saturating_mul(self.legs.len() as u64).min(all)
            }
            Kind::Checksum => {
                let (plain, stored) = (CHECKED as u64, CHECKED_STORED as u64);
                let least = self.legs.iter().map(|leg| bytes(leg) / stored * plain).min();
                least.unwrap_or(0).min(all)
            }
            // Each leg has the whole contents at its start.
            Kind::Mirror { .. } => self.legs.iter().map(bytes).min().unwrap_or(0).min(all),
            Kind::Concat | Kind::Crypt { .. } => {
                let mut left = 0;
                for (leg, used) in self.legs.iter().zip(&self.used) {
                    let has = bytes(leg).min(used * sector);
                    left += has;
                    if has < used * sector {
                        break;
                    }
                }
                left.min(all)
            }
        }
    }

    /// Takes the findings since the last call: one for each block that does not match its checksum, and one for each
    /// event of a mirror. After 64 findings, the rest are only counted. Legs report their own findings.
    pub fn take_findings(&self) -> Vec<Finding> {
        self.findings.take()
    }

    /// The properties that the engine must know.
    #[must_use]
    pub fn shape(&self) -> &DeviceShape {
        &self.shape
    }
}

/// The user's choices about a mirror; `None` for other layers.
fn wishes(kind: &Kind) -> Option<Given> {
    match *kind {
        Kind::Mirror { create, replace, missing } => Some(Given { create, replace, missing }),
        _ => None,
    }
}

/// The capacity of a mirror.
fn mirrored<D: BlockDevice<Part>>(
    given: Given,
    legs: &[D],
    notes: &mut Vec<String>,
) -> Result<u64, MirrorError> {
    let dyn_legs = Vec::from_iter(legs.iter().map(|leg| leg as &dyn BlockDevice<Part>));
    let assembly = assemble(given, &dyn_legs)?;
    notes.extend(assembly.notes(given));
    Ok(assembly.record.sectors)
}

/// The legs as one device of their own kind, which cuts requests itself; `None` unless the layer only orders their
/// sectors and the kind has such a device. `used`: the sectors of each leg.
fn join<P, D: BlockDevice<P>>(
    kind: &Kind,
    legs: &[D],
    used: &[u64],
) -> Option<Box<dyn BlockDevice<P>>> {
    let by = match *kind {
        Kind::Concat => Join::Concat,
        Kind::Stripe { chunk } => Join::Stripe { chunk },
        Kind::Crypt { .. } | Kind::Checksum | Kind::Mirror { .. } => return None,
    };
    D::join(&Vec::from_iter(legs.iter().zip(used.iter().copied())), by)
}

/// The capacity of a layer that uses each sector of its legs once, and the sectors of each leg.
fn joined(
    kind: &Kind,
    unit: u64,
    shapes: &[DeviceShape],
    notes: &mut Vec<String>,
) -> Result<(u64, Vec<u64>), StackError> {
    let used = used(kind, unit, shapes)?;
    for (leg, (used, shape)) in used.iter().zip(shapes).enumerate() {
        let rest = shape.limits.capacity - used;
        if rest > 0 {
            notes.push(format!("the last {rest} sectors of device {leg} are left alone"));
        }
    }
    let all = used.iter().try_fold(0_u64, |all, sectors| all.checked_add(*sectors));
    let all = all.filter(|all| *all <= Limits::MAX_CAPACITY).ok_or(StackError::Large)?;
    Ok((all, used))
}

/// The sectors of each leg that are used, in whole `unit`s of sectors.
fn used(kind: &Kind, unit: u64, shapes: &[DeviceShape]) -> Result<Vec<u64>, StackError> {
    let whole = |shape: &DeviceShape| shape.limits.capacity / unit * unit;
    let mut used = Vec::from_iter(shapes.iter().map(whole));
    if let Some(leg) = used.iter().position(|sectors| *sectors == 0) {
        return Err(StackError::Small { leg, least: unit * u64::from(SECTOR_SIZE) });
    }
    if let Kind::Stripe { .. } = kind {
        let least = used.iter().copied().min().unwrap_or(0);
        used.fill(least);
    }
    Ok(used)
}

impl<P: IoBuf, D: BlockDevice<Part> + BlockDevice<P>> BlockDevice<P> for Stack<D> {
    fn shape(&self) -> DeviceShape {
        self.shape
    }

    fn queues(&self) -> io::Result<DeviceQueues<P>> {
        if let Some(device) = join::<P, D>(&self.kind, &self.legs, &self.used) {
            return device.queues();
        }
        if let Some(layers) = self.layers() {
            return Ok(vec![lane(&self.shape, layers, &self.dyn_legs())?]);
        }
        let layer = self.mirror().map_err(io::Error::other)?;
        Ok(vec![queue(&self.shape, layer, &self.dyn_legs())?])
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// The most requests of a layer in flight.
const MAX_DEPTH: u32 = 1024;

/// The shape of a device around legs of these shapes, except its capacity. Its requests have no timeout, because each
/// leg has one for its pieces.
///
/// # Panics
/// If there are no legs.
pub(crate) fn of(legs: &[DeviceShape]) -> DeviceShape {
    let limits = legs.iter().map(|leg| leg.limits).reduce(both).expect("a layer has legs");
    let depths = legs.iter().map(|leg| leg.hw_queue_depth);
    let is_through = legs.iter().all(|leg| leg.cache == WriteCache::Through);
    DeviceShape {
        hw_queues: 1,
        hw_queue_depth: depths.fold(0, u32::saturating_add).clamp(1, MAX_DEPTH),
        shared_tags: false,
        budget: None,
        limits: in_blocks(limits),
        // The queue of a leg without FUA adds a flush behind the write.
        cache: if is_through { WriteCache::Through } else { WriteCache::Back { fua: true } },
        timeout: Nanos(u64::MAX),
    }
}

/// Changes the limits of a leg to those of a layer with blocks of `plain` bytes, each of which takes `stored` bytes of
/// the leg. There are no discards: a discarded block would not hold the layer's encoding of zeroes.
fn as_blocks(limits: &mut Limits, plain: u32, stored: u32) {
    let [plain, stored] = [plain, stored].map(|bytes| bytes / SECTOR_SIZE);
    let whole = |sectors: u32| sectors / stored * plain;
    *limits = Limits {
        logical_block_size: limits.logical_block_size.max(plain * SECTOR_SIZE),
        physical_block_size: limits.physical_block_size.max(plain * SECTOR_SIZE),
        max_sectors: whole(limits.max_sectors).max(plain),
        max_discard_sectors: 0,
        discard_granularity: 0,
        max_write_zeroes_sectors: whole(limits.max_write_zeroes_sectors),
        // The layer's own memory for a request is one range.
        virt_boundary_mask: 0,
        range_alignment: 0,
        ..*limits
    };
    *limits = in_blocks(*limits);
}

fn both(one: Limits, other: Limits) -> Limits {
    Limits {
        logical_block_size: one.logical_block_size.max(other.logical_block_size),
        physical_block_size: one.physical_block_size.max(other.physical_block_size),
        max_sectors: one.max_sectors.min(other.max_sectors),
        max_discard_sectors: one.max_discard_sectors.min(other.max_discard_sectors),
        discard_granularity: one.discard_granularity.max(other.discard_granularity),
        max_write_zeroes_sectors: one.max_write_zeroes_sectors.min(other.max_write_zeroes_sectors),
        max_discard_segments: 1,
        max_segments: one.max_segments.min(other.max_segments),
        max_segment_size: one.max_segment_size.min(other.max_segment_size),
        chunk_sectors: 0,
        virt_boundary_mask: one.virt_boundary_mask | other.virt_boundary_mask,
        range_alignment: one.range_alignment.max(other.range_alignment),
        capacity: 0,
        rotational: one.rotational || other.rotational,
    }
}

/// Rounds lengths to blocks of the leg with the largest block.
fn in_blocks(limits: Limits) -> Limits {
    let block = limits.logical_block_size / SECTOR_SIZE;
    let whole = |sectors: u32| sectors / block * block;
    let unit = limits.discard_granularity;
    Limits {
        max_sectors: whole(limits.max_sectors).max(block),
        max_discard_sectors: whole(limits.max_discard_sectors),
        max_write_zeroes_sectors: whole(limits.max_write_zeroes_sectors),
        max_segment_size: limits.max_segment_size.max(limits.logical_block_size),
        discard_granularity: if unit.is_multiple_of(limits.logical_block_size) { unit } else { 0 },
        max_discard_segments: 1,
        chunk_sectors: 0,
        ..limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_leg_is_asked_for_what_it_cannot_do() {
        let shape = |limits, hw_queue_depth, cache| DeviceShape {
            hw_queues: 4,
            hw_queue_depth,
            shared_tags: true,
            budget: Some(1),
            limits,
            cache,
            timeout: Nanos::from_secs(30),
        };
        let one = Limits { max_sectors: 1001, max_discard_sectors: 64, ..Limits::default() };
        let other = Limits {
            logical_block_size: 4096,
            physical_block_size: 4096,
            max_segments: 7,
            max_discard_sectors: 63,
            discard_granularity: 8192,
            range_alignment: 512,
            chunk_sectors: 64,
            ..Limits::default()
        };
        let cache = WriteCache::Back { fua: false };
        let joined = of(&[shape(one, 16, WriteCache::Through), shape(other, 2000, cache)]);
        assert_eq!((joined.hw_queues, joined.hw_queue_depth), (1, MAX_DEPTH));
        assert_eq!(joined.cache, WriteCache::Back { fua: true });
        let Limits { max_sectors, max_discard_sectors, max_segments, chunk_sectors, .. } =
            joined.limits;
        assert_eq!((max_sectors, max_discard_sectors), (1000, 56));
        assert_eq!((max_segments, chunk_sectors), (7, 0), "the leg's queue divides at chunks");
        assert!(Limits { capacity: 8, ..joined.limits }.validate().is_ok());
        let through = of(&[shape(one, 16, WriteCache::Through)]);
        assert_eq!((through.cache, through.hw_queue_depth), (WriteCache::Through, 16));
    }
}
