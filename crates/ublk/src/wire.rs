//! The bytes of commands, parameters and descriptors. All numbers have the byte order of the machine.
//!
//! This module performs no I/O: `control.rs` and `queues` send these bytes.

use std::ops::Range;

/// Bytes of a sector, the unit of all positions and lengths.
pub const SECTOR: u32 = 512;
/// The most tags of a queue.
pub const MOST_DEPTH: u16 = 4096;

/// Encodes an ioctl number: the direction bits, the size, the letter `u`, and the number of the command.
const fn command(direction: u32, size: u32, number: u32) -> u32 {
    direction << 30 | size << 16 | (b'u' as u32) << 8 | number
}
const READ: u32 = 2;
const READ_WRITE: u32 = 3;

/// A command to `/dev/ublk-control`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// Gets the [`Info`] of a device.
    GetInfo,
    /// Creates a device.
    Add,
    /// Deletes a device, and waits until nothing refers to it.
    Delete,
    /// Starts a device once every tag has been fetched.
    Start,
    /// Stops a device.
    Stop,
    /// Sets the [`Params`] of a device.
    SetParams,
    /// Gets the [`Params`] of a device.
    GetParams,
    /// Begins the recovery of a device that a process has left behind: its tags can be fetched again.
    StartRecovery,
    /// Ends the recovery once every tag has been fetched: the device gets its requests back.
    EndRecovery,
    /// Gets the features of the kernel, 8 bytes.
    GetFeatures,
    /// Changes the size of a device, in sectors, while it is served. Kernels from 6.16 on have it.
    UpdateSize,
}

impl Control {
    /// The direction of its buffer, its number and its name.
    const fn facts(self) -> (u32, u32, &'static str) {
        match self {
            Self::GetInfo => (READ, 0x02, "GET_DEV_INFO"),
            Self::Add => (READ_WRITE, 0x04, "ADD_DEV"),
            Self::Delete => (READ_WRITE, 0x05, "DEL_DEV"),
            Self::Start => (READ_WRITE, 0x06, "START_DEV"),
            Self::Stop => (READ_WRITE, 0x07, "STOP_DEV"),
            Self::SetParams => (READ_WRITE, 0x08, "SET_PARAMS"),
            Self::GetParams => (READ, 0x09, "GET_PARAMS"),
            Self::StartRecovery => (READ_WRITE, 0x10, "START_USER_RECOVERY"),
            Self::EndRecovery => (READ_WRITE, 0x11, "END_USER_RECOVERY"),
            Self::GetFeatures => (READ, 0x13, "GET_FEATURES"),
            Self::UpdateSize => (READ_WRITE, 0x15, "UPDATE_SIZE"),
        }
    }

    /// The opcode in the kernel's interface.
    #[must_use]
    pub const fn opcode(self) -> u32 {
        let (direction, number, _) = self.facts();
        command(direction, 32, number)
    }

    /// The name for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.facts().2
    }
}

/// Passes a free tag to the kernel, which completes the command with the tag's first request.
pub const FETCH: u32 = command(READ_WRITE, 16, 0x20);
/// Answers the request of a tag; the kernel completes the command with the tag's next request.
pub const COMMIT_AND_FETCH: u32 = command(READ_WRITE, 16, 0x21);

/// The bytes of a control command that follow the head of its entry. `address` and `length` describe a buffer of this
/// process.
#[must_use]
pub fn control_bytes(device: u32, address: u64, length: u16, data: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    put(&mut bytes, 0, &device.to_ne_bytes());
    // No queue.
    put(&mut bytes, 4, &u16::MAX.to_ne_bytes());
    put(&mut bytes, 6, &length.to_ne_bytes());
    put(&mut bytes, 8, &address.to_ne_bytes());
    put(&mut bytes, 16, &data.to_ne_bytes());
    bytes
}

/// The bytes of [`FETCH`] or [`COMMIT_AND_FETCH`] for a tag, with the result of its last request and the address of its
/// buffer.
#[must_use]
pub fn io_bytes(queue: u16, tag: u16, result: i32, address: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    put(&mut bytes, 0, &queue.to_ne_bytes());
    put(&mut bytes, 2, &tag.to_ne_bytes());
    put(&mut bytes, 4, &result.to_ne_bytes());
    put(&mut bytes, 8, &address.to_ne_bytes());
    bytes
}

fn put(bytes: &mut [u8], at: usize, number: &[u8]) {
    bytes[at..at + number.len()].copy_from_slice(number);
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the range has N bytes")
}

/// Opcodes are encoded as ioctl numbers. All kernels from 6.3 on have this.
pub const CMD_IOCTL_ENCODE: u64 = 1 << 6;

/// A device outlives the process that serves it, and waits for another process.
pub const USER_RECOVERY: u64 = 1 << 3;
/// The next process also gets the requests that the previous one had not answered.
pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;

/// The size of a device can be changed.
pub const UPDATE_SIZE: u64 = 1 << 10;

/// A device that has not started, or has stopped.
pub const STATE_DEAD: u16 = 0;
/// A device that is served, or whose process has just ended.
pub const STATE_LIVE: u16 = 1;

/// The description of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Info {
    /// The number of queues.
    pub queues: u16,
    /// The tags of each queue.
    pub depth: u16,
    /// The state, such as [`STATE_LIVE`].
    pub state: u16,
    /// The most bytes of data in a request.
    pub max_bytes: u32,
    /// The device number, as in `/dev/ublkbN`.
    pub device: u32,
    /// The pid of the process that serves the device, or -1.
    pub pid: i32,
    /// The features of the device.
    pub flags: u64,
}

impl Info {
    /// The length in bytes.
    pub const LEN: usize = 64;

    /// Encodes the description.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        put(&mut bytes, 0, &self.queues.to_ne_bytes());
        put(&mut bytes, 2, &self.depth.to_ne_bytes());
        put(&mut bytes, 4, &self.state.to_ne_bytes());
        put(&mut bytes, 8, &self.max_bytes.to_ne_bytes());
        put(&mut bytes, 12, &self.device.to_ne_bytes());
        put(&mut bytes, 16, &self.pid.to_ne_bytes());
        put(&mut bytes, 24, &self.flags.to_ne_bytes());
        bytes
    }

    /// Returns whether this, as the kernel reports it, agrees with `wanted`: it may have fewer queues and further
    /// features, but no other difference.
    #[must_use]
    pub fn keeps(&self, wanted: &Self) -> bool {
        self.depth == wanted.depth
            && self.max_bytes == wanted.max_bytes
            && self.flags & wanted.flags == wanted.flags
            && (1..=wanted.queues).contains(&self.queues)
    }

    /// Decodes a description.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            queues: u16::from_ne_bytes(get(bytes, 0)),
            depth: u16::from_ne_bytes(get(bytes, 2)),
            state: u16::from_ne_bytes(get(bytes, 4)),
            max_bytes: u32::from_ne_bytes(get(bytes, 8)),
            device: u32::from_ne_bytes(get(bytes, 12)),
            pid: i32::from_ne_bytes(get(bytes, 16)),
            flags: u64::from_ne_bytes(get(bytes, 24)),
        }
    }
}

/// The parameters include size and blocks.
const BASIC: u32 = 1;
/// The parameters include discards and zeroes.
const DISCARD: u32 = 2;

/// The device is read-only.
pub const READ_ONLY: u32 = 1;
/// The device rotates.
pub const ROTATIONAL: u32 = 2;
/// A write is durable only after a flush.
pub const VOLATILE_CACHE: u32 = 4;
/// A write can request durability (FUA).
pub const FUA: u32 = 8;

/// The parameters of a device. The sizes of blocks are powers of two, given as exponents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Params {
    /// [`READ_ONLY`], [`ROTATIONAL`], [`VOLATILE_CACHE`] and [`FUA`].
    pub attributes: u32,
    /// The logical block size, as an exponent of two.
    pub logical: u8,
    /// The physical block size, as an exponent of two.
    pub physical: u8,
    /// The optimal length of a request, as an exponent of two.
    pub io_opt: u8,
    /// The minimum length of an efficient request, as an exponent of two.
    pub io_min: u8,
    /// The most sectors of a read or write.
    pub max_sectors: u32,
    /// No request crosses a multiple of this many sectors; 0 if there is no such boundary.
    pub chunk_sectors: u32,
    /// The size of the device in sectors.
    pub sectors: u64,
    /// The granularity of discards in bytes; 0 if discards are not supported.
    pub discard_granularity: u32,
    /// The most sectors of a discard; 0 if discards are not supported.
    pub max_discard_sectors: u32,
    /// The most sectors of a write of zeroes; 0 if it is not supported.
    pub max_zeroes_sectors: u32,
}

impl Params {
    /// The length in bytes of both groups of parameters with their head.
    pub const LEN: usize = 60;

    /// Encodes the parameters.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        // The kernel refuses a group of discards without a granularity.
        let has_ranges = self.max_discard_sectors > 0 || self.max_zeroes_sectors > 0;
        let types = if has_ranges { BASIC | DISCARD } else { BASIC };
        put(&mut bytes, 0, &(Self::LEN as u32).to_ne_bytes());
        put(&mut bytes, 4, &types.to_ne_bytes());
        put(&mut bytes, 8, &self.attributes.to_ne_bytes());
        put(&mut bytes, 12, &[self.logical, self.physical, self.io_opt, self.io_min]);
        put(&mut bytes, 16, &self.max_sectors.to_ne_bytes());
        put(&mut bytes, 20, &self.chunk_sectors.to_ne_bytes());
        put(&mut bytes, 24, &self.sectors.to_ne_bytes());
        if has_ranges {
            put(&mut bytes, 44, &self.discard_granularity.to_ne_bytes());
            put(&mut bytes, 48, &self.max_discard_sectors.to_ne_bytes());
            put(&mut bytes, 52, &self.max_zeroes_sectors.to_ne_bytes());
            // The most ranges of a discard: the driver accepts one.
            put(&mut bytes, 56, &1_u16.to_ne_bytes());
        }
        bytes
    }

    /// Decodes parameters.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            attributes: u32::from_ne_bytes(get(bytes, 8)),
            logical: bytes[12],
            physical: bytes[13],
            io_opt: bytes[14],
            io_min: bytes[15],
            max_sectors: u32::from_ne_bytes(get(bytes, 16)),
            chunk_sectors: u32::from_ne_bytes(get(bytes, 20)),
            sectors: u64::from_ne_bytes(get(bytes, 24)),
            discard_granularity: u32::from_ne_bytes(get(bytes, 44)),
            max_discard_sectors: u32::from_ne_bytes(get(bytes, 48)),
            max_zeroes_sectors: u32::from_ne_bytes(get(bytes, 52)),
        }
    }
}

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Fills the buffer from the disk.
    Read,
    /// Writes the buffer to the disk.
    Write,
    /// Makes completed writes durable.
    Flush,
    /// Declares the data unneeded.
    Discard,
    /// Zeroes the range.
    WriteZeroes {
        /// Whether the range stays allocated.
        no_hole: bool,
    },
    /// An operation that was not announced.
    Other(u8),
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// The operation.
    pub op: Op,
    /// Whether the data must be durable before the answer (FUA).
    pub fua: bool,
    /// The first sector.
    pub sector: u64,
    /// The number of sectors.
    pub sectors: u32,
}

/// The bounds of requests. The kernel respects the parameters of a device, but nothing relies on that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowed {
    /// The size of the disk in bytes.
    pub bytes: u64,
    /// The most bytes of a read or write.
    pub most: u32,
    /// Whether the device supports discards.
    pub discards: bool,
    /// Whether the device is read-only.
    pub is_read_only: bool,
}

impl Descriptor {
    /// The length in bytes.
    pub const LEN: usize = 24;

    /// The bytes of the disk that the request covers: an empty range for a request without data, or `None` if the
    /// request is not allowed.
    #[must_use]
    pub fn range(&self, allowed: &Allowed) -> Option<Range<u64>> {
        let most = match self.op {
            Op::Flush | Op::Other(_) => return Some(0..0),
            Op::Discard if !allowed.discards => return None,
            Op::Read | Op::Write => allowed.most.into(),
            Op::Discard | Op::WriteZeroes { .. } => u64::MAX,
        };
        let sector = u64::from(SECTOR);
        let (at, len) = (self.sector.checked_mul(sector)?, u64::from(self.sectors) * sector);
        let end = at.checked_add(len)?;
        let is_forbidden = self.op != Op::Read && allowed.is_read_only;
        ((1..=most).contains(&len) && end <= allowed.bytes && !is_forbidden).then_some(at..end)
    }

    /// Decodes a descriptor.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let word = u32::from_ne_bytes(get(bytes, 0));
        let op = match word as u8 {
            0 => Op::Read,
            1 => Op::Write,
            2 => Op::Flush,
            3 => Op::Discard,
            5 => Op::WriteZeroes { no_hole: word & 1 << 15 != 0 },
            other => Op::Other(other),
        };
        Self {
            op,
            fua: word & 1 << 13 != 0,
            sectors: u32::from_ne_bytes(get(bytes, 4)),
            sector: u64::from_ne_bytes(get(bytes, 8)),
        }
    }
}

/// The offset of a queue's descriptors in the character device. Queues are a fixed distance apart, whatever their
/// depth.
#[must_use]
pub fn descriptors_at(queue: u16, page: usize) -> u64 {
    let most = usize::from(MOST_DEPTH) * Descriptor::LEN;
    u64::from(queue) * most.next_multiple_of(page) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_numbers_of_the_kernel() {
        use Control as C;
        let table = [
            (C::GetInfo, 0x8020_7502),
            (C::Add, 0xc020_7504),
            (C::Delete, 0xc020_7505),
            (C::Start, 0xc020_7506),
            (C::Stop, 0xc020_7507),
            (C::SetParams, 0xc020_7508),
            (C::GetParams, 0x8020_7509),
            (C::StartRecovery, 0xc020_7510),
            (C::EndRecovery, 0xc020_7511),
            (C::GetFeatures, 0x8020_7513),
            (C::UpdateSize, 0xc020_7515),
        ];
        table.iter().for_each(|(command, number)| assert_eq!(command.opcode(), *number));
        assert_eq!((FETCH, COMMIT_AND_FETCH), (0xc010_7520, 0xc010_7521));
    }

    #[test]
    fn a_control_command_has_its_fields_in_their_places() {
        let bytes = control_bytes(0x0403_0201, 0x1122_3344_5566_7788, 64, 99);
        assert_eq!(bytes[..8], [1, 2, 3, 4, 0xff, 0xff, 64, 0]);
        assert_eq!(bytes[8..16], 0x1122_3344_5566_7788_u64.to_ne_bytes());
        assert_eq!((bytes[16], &bytes[17..]), (99, &[0; 63][..]));
    }

    #[test]
    fn a_command_of_a_tag_has_its_fields_in_their_places() {
        let bytes = io_bytes(0x0201, 0x0403, -19, 0x1122_3344_5566_7788);
        assert_eq!(bytes[..4], [1, 2, 3, 4]);
        assert_eq!(bytes[4..8], (-19_i32).to_ne_bytes());
        assert_eq!(bytes[8..], 0x1122_3344_5566_7788_u64.to_ne_bytes());
    }

    #[test]
    fn a_description_has_its_fields_in_their_places() {
        let info =
            Info { queues: 1, depth: 2, state: 3, max_bytes: 4, device: 5, pid: -1, flags: 6 };
        let bytes = info.to_bytes();
        assert_eq!([0, 2, 4, 6, 8, 12, 24].map(|at| bytes[at]), [1, 2, 3, 0, 4, 5, 6]);
        assert_eq!(bytes[16..24], [255, 255, 255, 255, 0, 0, 0, 0]);
        assert_eq!(Info::from_bytes(&bytes), info);
    }

    #[test]
    fn parameters_have_their_fields_in_their_places() {
        let all = Params {
            attributes: 1,
            logical: 9,
            physical: 12,
            io_opt: 18,
            io_min: 13,
            max_sectors: 2,
            chunk_sectors: 3,
            sectors: 4,
            discard_granularity: 5,
            max_discard_sectors: 6,
            max_zeroes_sectors: 7,
        };
        let bytes = all.to_bytes();
        assert_eq!([0, 4, 8, 16, 20, 24].map(|at| bytes[at]), [60, 3, 1, 2, 3, 4]);
        assert_eq!(bytes[12..16], [9, 12, 18, 13]);
        assert_eq!([40, 44, 48, 52, 56].map(|at| bytes[at]), [0, 5, 6, 7, 1]);
        assert_eq!(Params::from_bytes(&bytes), all);
        let plain = Params { max_discard_sectors: 0, max_zeroes_sectors: 0, ..all }.to_bytes();
        assert_eq!((plain[4], &plain[40..]), (1, &[0; 20][..]));
    }

    #[test]
    fn a_descriptor_is_read_from_its_places() {
        let read = |word: u32| {
            let mut bytes = [0; Descriptor::LEN];
            put(&mut bytes, 0, &word.to_ne_bytes());
            put(&mut bytes, 4, &8_u32.to_ne_bytes());
            put(&mut bytes, 8, &(1_u64 << 33).to_ne_bytes());
            Descriptor::from_bytes(&bytes)
        };
        let it = read(1 | 1 << 13);
        let expected = Descriptor { op: Op::Write, fua: true, sector: 1 << 33, sectors: 8 };
        assert_eq!(it, expected);
        assert!(!read(1).fua);
        let ops = [0, 2, 3, 5, 5 | 1 << 15, 13].map(|word| read(word).op);
        let (keeps, frees) =
            (Op::WriteZeroes { no_hole: true }, Op::WriteZeroes { no_hole: false });
        assert_eq!(ops, [Op::Read, Op::Flush, Op::Discard, frees, keeps, Op::Other(13)]);
    }

    #[test]
    fn a_request_is_inside_of_the_disk_or_refused() {
        let allowed = Allowed { bytes: 1 << 20, most: 4096, discards: true, is_read_only: false };
        let range = |op, sector, sectors, allowed: &Allowed| {
            Descriptor { op, fua: false, sector, sectors }.range(allowed)
        };
        assert_eq!(range(Op::Read, 2040, 8, &allowed), Some(1_044_480..1_048_576));
        assert_eq!(range(Op::Discard, 0, 2048, &allowed), Some(0..1 << 20));
        assert_eq!(range(Op::Flush, u64::MAX, u32::MAX, &allowed), Some(0..0));
        for (sector, sectors) in
            [(0, 0), (0, 9), (2041, 8), (u64::MAX, 1), (u64::MAX >> 9, 8), (0, 1 << 23)]
        {
            assert_eq!(range(Op::Write, sector, sectors, &allowed), None, "{sector} {sectors}");
        }
        assert_eq!(range(Op::Discard, 0, 1 << 23, &allowed), None);
        let fixed = Allowed { discards: false, is_read_only: true, ..allowed };
        let ops = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes { no_hole: true }];
        let ranges = ops.map(|op| range(op, 0, 8, &fixed).is_some());
        assert_eq!(ranges, [true, false, false, false]);
    }

    /// If the distance depended on the queue's own depth, all queues would read the descriptors of the first.
    #[test]
    fn queues_have_a_fixed_distance() {
        assert_eq!([0, 1, 3].map(|queue| descriptors_at(queue, 4096)), [0, 98_304, 294_912]);
        assert_eq!(descriptors_at(1, 65_536), 131_072);
    }
}
