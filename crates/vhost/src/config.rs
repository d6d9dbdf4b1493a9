//! The disk as the guest sees it: its configuration, 96 bytes that the guest reads, and feature bits, by their names in
//! the virtio specification and the vhost-user protocol; and the guest's [requests](request).

/// The length of the configuration in bytes.
pub const SIZE: usize = 96;
/// The offset of the byte that says whether the disk has a write-back cache. The guest may write it.
pub const WRITEBACK: usize = 32;
/// The maximum number of data segments of a request: as many as fit a ring of 128 without indirect descriptors.
pub const SEGMENTS: u32 = 126;
/// Bytes of a sector, the unit of virtio-blk.
pub const SECTOR: u64 = 512;

/// A disk as the guest sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskConfig {
    /// The size in bytes.
    pub bytes: u64,
    /// Whether the disk is read-only.
    pub is_read_only: bool,
    /// The logical block size in bytes, a power of two from 512 on.
    pub block: u32,
    /// The maximum length of a discard in bytes; 0 if discards are not supported.
    pub discard: u64,
    /// The maximum length of a write of zeroes in bytes.
    pub zeroes: u64,
    /// The number of queues.
    pub queues: u16,
    /// The name, of which the guest gets the first 20 bytes.
    pub name: String,
}

impl DiskConfig {
    /// The features that the disk offers.
    #[must_use]
    pub fn features(&self) -> u64 {
        use virtio as f;
        let always = f::SEG_MAX
            | f::BLK_SIZE
            | f::FLUSH
            | f::TOPOLOGY
            | f::CONFIG_WCE
            | f::MQ
            | f::INDIRECT_DESC
            | f::EVENT_IDX
            | f::PROTOCOL_FEATURES
            | f::VERSION_1;
        let chosen = [
            (self.is_read_only, f::RO),
            (self.discard > 0 && !self.is_read_only, f::DISCARD),
            (!self.is_read_only, f::WRITE_ZEROES),
        ];
        chosen.iter().filter(|(is, _)| *is).fold(always, |all, (_, bit)| all | bit)
    }

    /// Encodes the configuration for a cache in the mode `is_writeback`.
    #[must_use]
    pub fn bytes(&self, is_writeback: bool) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        let sectors = |bytes: u64| u32::try_from(bytes / SECTOR).unwrap_or(u32::MAX).to_le_bytes();
        let block = (self.block / SECTOR as u32).to_le_bytes();
        put(0, &(self.bytes / SECTOR).to_le_bytes());
        put(12, &SEGMENTS.to_le_bytes());
        put(20, &self.block.to_le_bytes());
        // The minimum and the optimal size of an I/O, in blocks.
        put(26, &1_u16.to_le_bytes());
        put(WRITEBACK, &[is_writeback.into()]);
        put(34, &self.queues.to_le_bytes());
        // The maximum sectors and segments of a discard, and its alignment in sectors.
        put(36, &sectors(self.discard));
        put(40, &1_u32.to_le_bytes());
        put(44, &block);
        // The same for zeroes, which may deallocate.
        put(48, &sectors(self.zeroes));
        put(52, &1_u32.to_le_bytes());
        put(56, &[1]);
        bytes
    }

    /// The name as the guest requests it: 20 bytes, padded with zeroes.
    #[must_use]
    pub fn id(&self) -> [u8; 20] {
        let mut id = [0; 20];
        let len = self.name.len().min(id.len());
        id[..len].copy_from_slice(&self.name.as_bytes()[..len]);
        id
    }
}

/// Features of the device and its rings, negotiated with the guest's driver.
pub mod virtio {
    /// The configuration has the maximum number of data segments of a request.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The disk is read-only.
    pub const RO: u64 = 1 << 5;
    /// The configuration has the logical block size.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// The disk supports flushes.
    pub const FLUSH: u64 = 1 << 9;
    /// The configuration has the physical block size and the optimal sizes of I/Os.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// The guest may switch between write-back and write-through.
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// The disk has several queues.
    pub const MQ: u64 = 1 << 12;
    /// The disk supports discards.
    pub const DISCARD: u64 = 1 << 13;
    /// The disk supports writes of zeroes.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// A descriptor may point to a table of descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Each side announces the index at which it wants to be notified.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// Protocol features can be negotiated. A bit of vhost-user, which drivers do not see.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// Version 1 of virtio: little-endian, any division of requests into descriptors.
    pub const VERSION_1: u64 = 1 << 32;
}

/// Features of the protocol, negotiated with the front end.
pub mod protocol {
    /// The back end has several queues.
    pub const MQ: u64 = 1 << 0;
    /// A message can request an acknowledgement, which says whether it succeeded.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The back end may send messages, too.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// The back end provides the configuration of the device.
    pub const CONFIG: u64 = 1 << 9;
    /// The record of requests in flight is in shared memory that the front end keeps.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// The device can be reset.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Memory regions are added and removed one by one.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
}

/// The requests of virtio-blk: a header of 16 bytes, data, and a byte for the status.
///
/// Version 1 of virtio allows any division into descriptors, so a header is gathered from as many as it has.
pub mod request {
    use super::SECTOR;
    use crate::memory::Memory;
    use crate::ring::{Chain, RingError};

    /// The length in bytes of a header, and of the range of a discard or a write of zeroes.
    pub const HEADER: usize = 16;
    const ID: u64 = 20;
    const RANGE: usize = 16;
    /// The flag of a write of zeroes that may deallocate.
    const UNMAP: u32 = 1;

    /// The status of a request, as the driver reads it.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Status {
        /// The request has succeeded.
        Ok = 0,
        /// The request has failed, or is impossible.
        IoError = 1,
        /// The disk does not support the request.
        Unsupported = 2,
    }

    /// A request. Offsets and lengths are in bytes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Request {
        /// Reads into the data.
        Read {
            /// The first byte.
            at: u64,
            /// The length.
            len: u64,
        },
        /// Writes the data.
        Write {
            /// The first byte.
            at: u64,
            /// The length.
            len: u64,
        },
        /// Makes completed writes durable.
        Flush,
        /// Returns the name of the disk.
        GetId,
        /// Discards a range.
        Discard {
            /// The first byte.
            at: u64,
            /// The length.
            len: u64,
        },
        /// Zeroes a range.
        WriteZeroes {
            /// The first byte.
            at: u64,
            /// The length.
            len: u64,
            /// Whether the range must stay allocated.
            no_hole: bool,
        },
    }

    /// A request with its priority in the format of Linux's `ioprio`: the class in bits 13 to 15 and the level in bits
    /// 0 to 2. Drivers of other systems send 0.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Asked {
        /// The request, or the status with which it must be refused.
        pub request: Result<Request, Status>,
        /// The priority.
        pub ioprio: u16,
    }

    /// Parses the request of a chain.
    ///
    /// # Errors
    /// If the header is incomplete, or the byte for the status is missing.
    pub fn parse(chain: &Chain, memory: &Memory) -> Result<Asked, RingError> {
        let mut header = [0; HEADER];
        if !chain.read(memory, 0, &mut header) || chain.writable() == 0 {
            return Err(RingError::Request);
        }
        let number = |at: usize| -> [u8; 4] { header[at..at + 4].try_into().expect("four bytes") };
        let (kind, ioprio) = (u32::from_le_bytes(number(0)), u32::from_le_bytes(number(4)));
        let sector = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
        let (out, into) = (chain.readable() - HEADER as u64, chain.writable() - 1);
        let at = sector.checked_mul(SECTOR).ok_or(Status::IoError);
        let whole = |len: u64| {
            let is_whole = len > 0 && len.is_multiple_of(SECTOR);
            if is_whole { Ok(len) } else { Err(Status::IoError) }
        };
        let request = match kind {
            0 => at.and_then(|at| Ok(Request::Read { at, len: whole(into)? })),
            1 => at.and_then(|at| Ok(Request::Write { at, len: whole(out)? })),
            4 => Ok(Request::Flush),
            8 if into >= ID => Ok(Request::GetId),
            8 => Err(Status::IoError),
            11 | 13 => range(chain, memory, out).and_then(|(at, len, flags)| match (kind, flags) {
                (11, 0) => Ok(Request::Discard { at, len }),
                (13, 0 | UNMAP) => Ok(Request::WriteZeroes { at, len, no_hole: flags == 0 }),
                _ => Err(Status::Unsupported),
            }),
            _ => Err(Status::Unsupported),
        };
        // Linux's priorities have 16 bits.
        Ok(Asked { request, ioprio: ioprio as u16 })
    }

    /// Reads the range of a discard or a write of zeroes: first byte, length, flags. The disk announces one range for
    /// each request.
    fn range(chain: &Chain, memory: &Memory, len: u64) -> Result<(u64, u64, u32), Status> {
        let mut bytes = [0; RANGE];
        if len != RANGE as u64 || !chain.read(memory, HEADER as u64, &mut bytes) {
            return Err(Status::IoError);
        }
        let sector = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        let number =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let (sectors, flags) = (u64::from(number(8)), number(12));
        let at = sector.checked_mul(SECTOR).ok_or(Status::IoError)?;
        Ok((at, sectors * SECTOR, flags))
    }

    /// Writes the status of a request. Returns the number of bytes written into guest memory: `data` and the status. If
    /// the driver has removed the memory of the status, the status is lost.
    #[must_use]
    pub fn answer(chain: &Chain, memory: &Memory, status: Status, data: u64) -> u32 {
        let at = chain.writable() - 1;
        if chain.write(memory, at, &[status as u8]) {
            u32::try_from(data + 1).unwrap_or(u32::MAX)
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> DiskConfig {
        let (bytes, discard, zeroes) = (1 << 30, 1 << 20, u64::MAX);
        let name = "a name that is longer than an identifier".to_owned();
        DiskConfig { bytes, is_read_only: false, block: 4096, discard, zeroes, queues: 2, name }
    }

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let bytes = disk().bytes(true);
        let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        assert_eq!(u64::from_le_bytes(bytes[..8].try_into().expect("eight")), 1 << 21);
        assert_eq!([u32_at(12), u32_at(20), u32_at(36), u32_at(48)], [126, 4096, 2048, u32::MAX]);
        assert_eq!((bytes[WRITEBACK], bytes[34], bytes[56]), (1, 2, 1));
        assert_eq!(disk().bytes(false)[WRITEBACK], 0);
        assert_eq!(&disk().id(), b"a name that is longe");
    }

    #[test]
    fn a_disk_that_takes_no_writes_offers_none() {
        let features = DiskConfig { is_read_only: true, ..disk() }.features();
        assert_eq!(features & (virtio::DISCARD | virtio::WRITE_ZEROES), 0);
        assert!(features & virtio::RO != 0 && disk().features() & virtio::RO == 0);
        assert!(disk().features() & virtio::DISCARD != 0);
    }
}
