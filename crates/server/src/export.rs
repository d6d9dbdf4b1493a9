//! [`Export`]: a disk, or a region of it, as seen by clients, with the settings of an export as a disk of a virtual
//! machine ([`VhostUser`]) or as a block device of this machine ([`Ublk`]).

use crate::allow::{Allow, Gate};
use crate::disk::{Disk, Seen};
use crate::locked;
use blkmq::core::{Class, IoPrio};
use blkmq::engine::GroupSpec;
use blkmq::{
    AlignedBuf, ChangeError, EditError, GroupError, GroupGuard, GroupOptions, IoMax, Owner,
    Promise, SECTOR_SIZE, Zeroing,
};
use blkmq_nbd::{BASE_ALLOCATION, BlockSizes, ExportInfo, Limits, TransmissionFlags};
use blkmq_ublk::control::UblkError;
use std::fmt;
use std::ops::{Deref, Range};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The description of an export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// The name; the empty name is the default export.
    pub name: String,
    /// A text for users.
    pub description: String,
    /// The index of its disk among those of the server.
    pub disk: usize,
    /// The region of the disk; `None` for the whole disk.
    pub region: Option<Region>,
    /// Whether clients are refused writes.
    pub read_only: bool,
    /// The weight, 1 to 1000, under schedulers that share by weight.
    pub weight: u32,
    /// The limits, under every scheduler.
    pub max: IoMax,
    /// The floor and ceiling, under schedulers that keep them: mclock.
    pub promise: Promise,
    /// The priority class of its I/Os, for schedulers with classes: mq-deadline, and bfq within a group.
    pub class: Class,
    /// The point at which a write completes.
    pub cache: Cache,
    /// The socket on which it is a disk of a virtual machine; `None` if it only serves NBD clients.
    pub vhost_user: Option<VhostUser>,
    /// The block device of this machine on the export; `None` if there is none.
    pub ublk: Option<Ublk>,
    /// The clients that may use it. For other clients the export does not exist. `None` for all clients of the server.
    pub allow: Option<Allow>,
}

/// The point at which a write completes, in QEMU's terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cache {
    /// When the device has the data: a FLUSH, or FUA on the write, makes it durable.
    #[default]
    Writeback,
    /// When the data is durable: every write has FUA, for clients that never flush.
    Writethrough,
}

/// A range of a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its first byte.
    pub offset: u64,
    /// Its length in bytes; `None` up to the end of the disk.
    pub size: Option<u64>,
}

impl Region {
    /// The bytes of the region on a disk of `bytes` bytes.
    fn on(&self, bytes: u64) -> Range<u64> {
        let end = self.size.map_or(Some(bytes), |size| self.offset.checked_add(size));
        self.offset..end.unwrap_or(u64::MAX)
    }
}

/// The reason why an export is impossible.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// No disk has this number.
    #[error("there is no disk {0}")]
    NoDisk(usize),
    /// Two exports have this name.
    #[error("two exports are called '{0}'")]
    Name(String),
    /// The name contains control characters, or is too long.
    #[error(
        "{0:?} is no name for an export; accepted: up to {MOST_NAME} bytes of text without control characters"
    )]
    Forbidden(String),
    /// The region is empty, or ends beyond the disk, whose size in bytes is given.
    #[error("the region {}..{} is not in a disk of {size} bytes", .0.start, .0.end, size = .1)]
    Region(Range<u64>, u64),
    /// The region is not aligned to this many bytes.
    #[error(
        "the region {}..{} must begin and end at multiples of {block} bytes", .0.start, .0.end, block = .1
    )]
    Unaligned(Range<u64>, u32),
    /// A socket for virtual machines cannot be added while the server runs.
    #[error("an export with a socket for virtual machines begins with the server")]
    VhostUser,
    /// Its block device is refused.
    #[error("ublk {0}: {1}")]
    Ublk(u32, String),
    /// The group was refused.
    #[error("{0}")]
    Group(EditError<GroupError>),
}

impl Export {
    /// An export of the whole disk number `disk`, for reading and writing, with weight 100 and no limits.
    #[must_use]
    pub fn new(name: &str, disk: usize) -> Self {
        Self {
            name: name.to_owned(),
            description: String::new(),
            disk,
            region: None,
            read_only: false,
            weight: 100,
            max: IoMax::default(),
            promise: Promise::default(),
            class: Class::None,
            cache: Cache::default(),
            vhost_user: None,
            ublk: None,
            allow: None,
        }
    }

    /// The name of its group, which must be unique among the exports of its disk: see [`GroupSpec::name_for`].
    ///
    /// # Errors
    /// If the export cannot have this name.
    pub fn group(&self) -> Result<String, ExportError> {
        let name = &self.name;
        if name.len() > MOST_NAME || name.contains(char::is_control) {
            return Err(ExportError::Forbidden(name.clone()));
        }
        Ok(GroupSpec::name_for(name))
    }
}

/// The maximum length of a name in NBD, in bytes.
const MOST_NAME: usize = 4096;

/// The shift of the priority in the number of an owner. No server has more than 2^24 exports over its lifetime.
const PRIORITY: u32 = 24;

/// An export in service.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) disk: usize,
    /// The number of the export, from 1: the owner of those of its I/Os that have the export's priority.
    pub(crate) number: u32,
    /// The first byte on the disk.
    pub(crate) start: u64,
    /// The announcement to clients, valid while the device is writable and keeps its size; see [`info`](Self::info).
    pub(crate) info: ExportInfo,
    /// Whether it ends where its device does.
    ends_with_disk: bool,
    of_disk: Arc<Seen>,
    pub(crate) group: GroupGuard<AlignedBuf>,
    /// The maximum length in bytes of an I/O of each kind; 0 if the disk does not support it.
    pub(crate) discard: u64,
    pub(crate) zeroes: u64,
    pub(crate) zeroing: Zeroing,
    /// The number of connections that have agreed on it.
    connections: AtomicUsize,
    /// Whether buffers for reads are cleared first, because the disk does not fill them.
    pub(crate) clears: bool,
    /// The priority of its I/Os.
    pub(crate) ioprio: IoPrio,
    pub(crate) cache: Cache,
    /// Whether it has been removed from the server. Its connections notice this at their next request.
    withdrawn: AtomicBool,
    /// The clients that may use it.
    pub(crate) allow: Gate,
    /// The block device of this machine on the export.
    pub(crate) ublk: Option<Ublk>,
}

/// The exports of a running server. They are looked up once for each connection, under a mutex.
#[derive(Debug)]
pub(crate) struct Catalog {
    table: Mutex<Arc<Table>>,
    /// Removed exports that may still have connections. Workers must not drop the last reference to one: that removes
    /// its group, which waits for other changes of the device.
    removed: Mutex<Vec<Arc<Served>>>,
}

impl Catalog {
    pub(crate) fn new(exports: &[Export], disks: &[Disk]) -> Result<Self, ExportError> {
        let mut table = Table::default();
        exports.iter().try_for_each(|export| table.add(export, disks))?;
        Ok(Self { table: Mutex::new(Arc::new(table)), removed: Mutex::default() })
    }

    /// Returns, for each of `exports` that cannot be served together with those before it, its index and the reason.
    pub(crate) fn check(exports: &[Export], disks: &[Disk]) -> Vec<(usize, ExportError)> {
        let mut table = Table::default();
        let refused = |(at, export)| table.add(export, disks).err().map(|error| (at, error));
        exports.iter().enumerate().filter_map(refused).collect()
    }

    /// The present exports.
    pub(crate) fn now(&self) -> Arc<Table> {
        Arc::clone(&locked(&self.table))
    }

    /// Adds an export. A removed export of the same name must have no connection left.
    pub(crate) fn add(
        &self,
        export: &Export,
        disks: &[Disk],
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), ExportError> {
        self.sweep(goes_on);
        // Not under the mutex, which workers take: a new group may change the scheduler, which waits for the device.
        let number = Arc::make_mut(&mut locked(&self.table)).number(export)?;
        let served = Table::served(export, disks, number, goes_on)?;
        Arc::make_mut(&mut locked(&self.table)).push(served)
    }

    /// Removes the export `name`. Returns whether it existed.
    pub(crate) fn remove(&self, name: &str) -> bool {
        let mut table = locked(&self.table);
        let at = table.exports.iter().position(|export| export.info.name == name);
        let Some(removed) = at.map(|at| Arc::make_mut(&mut table).exports.remove(at)) else {
            return false;
        };
        drop(table);
        removed.withdrawn.store(true, Ordering::Relaxed);
        locked(&self.removed).push(removed);
        self.sweep(&|| false);
        true
    }

    /// Removes the groups of removed exports without connections. Those on a device that is being changed are left for
    /// the next call once `goes_on` returns false.
    pub(crate) fn sweep(&self, goes_on: &dyn Fn() -> bool) {
        let mut removed = locked(&self.removed);
        removed.retain_mut(|export| {
            // A reader may briefly hold an older table, and with it the export.
            let Some(export) = Arc::get_mut(export) else { return true };
            let busy = Err(EditError::Change(ChangeError::Busy));
            export.group.remove_while(goes_on) == busy
        });
    }
}

/// All exports of a server at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    exports: Vec<Arc<Served>>,
    /// The number of the export added last.
    last: u32,
}

impl Table {
    fn add(&mut self, export: &Export, disks: &[Disk]) -> Result<(), ExportError> {
        let number = self.number(export)?;
        self.push(Self::served(export, disks, number, &|| true)?)
    }

    /// A number for the export if its name is free.
    fn number(&mut self, export: &Export) -> Result<u32, ExportError> {
        self.check_name(&export.name)?;
        self.last += 1;
        Ok(self.last)
    }

    fn served(
        export: &Export,
        disks: &[Disk],
        number: u32,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Arc<Served>, ExportError> {
        let disk = disks.get(export.disk).ok_or(ExportError::NoDisk(export.disk))?;
        Ok(Arc::new(Served::new(export, disk, number, goes_on)?))
    }

    /// Puts an export in service, unless its name has been taken since.
    fn push(&mut self, served: Arc<Served>) -> Result<(), ExportError> {
        self.check_name(&served.info.name)?;
        self.exports.push(served);
        Ok(())
    }

    fn check_name(&self, name: &str) -> Result<(), ExportError> {
        match self.exports.iter().any(|other| other.info.name == name) {
            true => Err(ExportError::Name(name.to_owned())),
            false => Ok(()),
        }
    }

    /// The export of this name. If there is only one export, the empty name stands for it, too.
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Served>> {
        self.get_of(name, |_| true)
    }

    /// Like [`get`](Self::get), for a client for which only exports accepted by `may` exist.
    pub(crate) fn get_of(&self, name: &str, may: impl Fn(&Served) -> bool) -> Option<&Arc<Served>> {
        let mut visible = self.exports.iter().filter(|export| may(export));
        if name.is_empty()
            && let (Some(only), None) = (visible.next(), visible.next())
        {
            return Some(only);
        }
        self.exports.iter().find(|export| export.info.name == name && may(export))
    }

    /// Returns whether any export has access rules.
    pub(crate) fn has_rules(&self) -> bool {
        self.exports.iter().any(|export| !export.allow.is_open())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Served> {
        self.exports.iter().map(|export| &**export)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.exports.iter().map(|export| &export.info.name[..])
    }
}

impl Served {
    /// The owner of its I/Os with this priority. The processes of a guest are unknown, but a scheduler that serves
    /// processes in turn, each with its priority, must not take different processes for one.
    pub(crate) fn owner(&self, ioprio: IoPrio) -> Owner {
        if ioprio == self.ioprio {
            return Owner(self.number);
        }
        let priority = (ioprio.class() as u32) << 3 | u32::from(ioprio.level());
        Owner(self.number | priority << PRIORITY)
    }

    /// The number of connections that have agreed on it.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns whether its clients cannot change the device at present.
    pub(crate) fn is_read_only(&self) -> bool {
        self.info.flags.contains(TransmissionFlags::READ_ONLY) || self.of_disk.is_read_only()
    }

    /// Its length in bytes, which may grow.
    pub(crate) fn bytes(&self) -> u64 {
        if self.ends_with_disk { self.of_disk.bytes() - self.start } else { self.info.size }
    }

    /// The description for a client that connects now.
    pub(crate) fn info(&self) -> ExportInfo {
        let mut info = ExportInfo { size: self.bytes(), ..self.info.clone() };
        if self.is_read_only() {
            info.flags = read_only(info.flags);
        }
        info
    }

    /// Returns whether the export has been removed.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.withdrawn.load(Ordering::Relaxed)
    }

    fn new(
        export: &Export,
        disk: &Disk,
        number: u32,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Self, ExportError> {
        let limits = &disk.device().shape().limits;
        let (bytes, block) = (disk.seen().bytes(), limits.logical_block_size);
        let region = export.region.as_ref().map_or(0..bytes, |region| region.on(bytes));
        if region.start >= region.end || region.end > bytes {
            return Err(ExportError::Region(region, bytes));
        }
        if !region.start.is_multiple_of(block.into()) || !region.end.is_multiple_of(block.into()) {
            return Err(ExportError::Unaligned(region, block));
        }
        let Export { weight, max, promise, .. } = *export;
        let options = GroupOptions { weight, max, promise, ..GroupOptions::default() };
        let group = disk.service().add_group_while(&export.group()?, &options, goes_on);
        let in_bytes = |sectors: u32| u64::from(sectors) * u64::from(SECTOR_SIZE);
        let (discard, zeroes) =
            (in_bytes(limits.max_discard_sectors), in_bytes(limits.max_write_zeroes_sectors));
        let zeroing = disk.device().zeroing();
        let flags = flags(limits.rotational, discard > 0, zeroes > 0 && zeroing.is_fast);
        let flags = if export.read_only { read_only(flags) } else { flags };
        Ok(Self {
            disk: export.disk,
            number,
            start: region.start,
            info: ExportInfo {
                name: export.name.clone(),
                description: export.description.clone(),
                size: region.end - region.start,
                flags,
                blocks: block_sizes(block),
                contexts: vec![BASE_ALLOCATION.to_owned()],
            },
            group: group.map_err(ExportError::Group)?,
            ends_with_disk: export.region.as_ref().is_none_or(|region| region.size.is_none()),
            of_disk: Arc::clone(disk.seen()),
            discard,
            zeroes,
            zeroing,
            connections: AtomicUsize::new(0),
            clears: !disk.device().moves_data(),
            ioprio: ioprio(export.class),
            cache: export.cache,
            withdrawn: AtomicBool::new(false),
            allow: Gate::new(export.allow.clone()),
            ublk: export.ublk,
        })
    }
}

/// A counted connection to an export.
#[derive(Debug)]
pub(crate) struct Seat(Arc<Served>);

impl Seat {
    /// Counts a connection to `export`, or returns `None` if it has `most` already.
    pub(crate) fn take(export: &Arc<Served>, most: usize) -> Option<Self> {
        let more = |count: usize| (count < most).then_some(count + 1);
        let taken = export.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| Self(Arc::clone(export)))
    }
}

impl Deref for Seat {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.0
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The middle level of the class, which Linux gives to processes that only request a class.
fn ioprio(class: Class) -> IoPrio {
    match class {
        Class::None => IoPrio::default(),
        class => IoPrio::new(class, 4).expect("there are levels 0 to 7"),
    }
}

/// The transmission flags. Every export supports flushes and FUA, and a FLUSH on any connection covers all of them,
/// since all use one queue (`docs/spec/nbd.md`, section 4.1).
fn flags(rotational: bool, discards: bool, fast_zeroes: bool) -> TransmissionFlags {
    use TransmissionFlags as F;
    let always =
        F::SEND_FLUSH | F::SEND_FUA | F::CAN_MULTI_CONN | F::SEND_CACHE | F::SEND_WRITE_ZEROES;
    let chosen =
        [(rotational, F::ROTATIONAL), (discards, F::SEND_TRIM), (fast_zeroes, F::SEND_FAST_ZERO)];
    chosen.iter().filter(|(is, _)| *is).fold(always, |all, (_, flag)| all | *flag)
}

/// The flags of an export that cannot be written.
fn read_only(flags: TransmissionFlags) -> TransmissionFlags {
    use TransmissionFlags as F;
    flags.with(F::READ_ONLY).without(F::SEND_TRIM | F::SEND_WRITE_ZEROES | F::SEND_FAST_ZERO)
}

fn block_sizes(block: u32) -> BlockSizes {
    let preferred = block.max(BlockSizes::DEFAULT.preferred());
    let sizes = BlockSizes::DEFAULT
        .with_preferred(preferred)
        .and_then(|sizes| sizes.with_min(block))
        .and_then(|sizes| sizes.with_max_payload(Limits::default().payload));
    sizes.expect("a logical block is a power of two, and small")
}

/// The maximum number of queues of a disk.
pub const MOST_QUEUES: u16 = 64;

/// An export as a disk of a virtual machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VhostUser {
    /// The socket to which the front end connects. It has the permissions of the server's sockets.
    pub path: PathBuf,
    /// The number of queues available to a guest, 1 to [`MOST_QUEUES`].
    pub queues: u16,
    /// The treatment of the priorities that the guest assigns to its requests.
    pub guest_ioprio: GuestIoprio,
}

impl VhostUser {
    /// Uses the socket at `path`, with four queues, ignoring priorities of the guest.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, queues: 4, guest_ioprio: GuestIoprio::default() }
    }
}

/// An export as a block device of this machine, `/dev/ublkbN`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ublk {
    /// The number of the device.
    pub number: u32,
    /// The maximum number of queues, 1 to [`MOST_QUEUES`]; the device has at most one for each processor.
    pub queues: u16,
}

impl Ublk {
    /// Uses the block device with this number, with one queue.
    #[must_use]
    pub fn new(number: u32) -> Self {
        Self { number, queues: 1 }
    }

    /// Checks that this machine supports such devices. Changes nothing.
    ///
    /// # Errors
    /// If the driver is missing or too old, or this process may not use it.
    pub fn check_driver() -> Result<(), UblkError> {
        blkmq_ublk::control::check_driver()
    }
}

/// The treatment of the priorities that a guest assigns to its requests. Linux sends that of the process (`ionice`)
/// with each request, including those of ext4's journal; writes from the page cache have the priority of the kernel's
/// thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GuestIoprio {
    /// Ignored: every request has the class of the export.
    #[default]
    Off,
    /// The guest may lower the priority of its requests and order them among each other. No request gets a better class
    /// than the export; an export without a class counts as best-effort.
    Clamp,
    /// The priorities are accepted unchanged.
    Trust,
}

impl GuestIoprio {
    /// The priority of an I/O to an export with the priority `export`, for which the guest requests `asked`.
    pub(crate) fn apply(self, asked: u16, export: IoPrio) -> IoPrio {
        let asked = IoPrio::from_bits(asked);
        let class = asked.class();
        let best = match export.class() {
            Class::None => Class::BestEffort,
            class => class,
        };
        match self {
            Self::Off => export,
            _ if class == Class::None => export,
            Self::Trust => asked,
            Self::Clamp if class >= best => asked,
            Self::Clamp => IoPrio::new(best, 0).expect("there is a level 0"),
        }
    }
}

impl FromStr for GuestIoprio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "clamp" => Ok(Self::Clamp),
            "trust" => Ok(Self::Trust),
            _ => Err(format!("'{text}' is no use of priorities; accepted: off, clamp, trust")),
        }
    }
}

impl fmt::Display for GuestIoprio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Clamp => "clamp",
            Self::Trust => "trust",
        })
    }
}
