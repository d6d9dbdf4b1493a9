//! The parameters of a flash device: their types, the shape and limits derived from them, the figures of real drives as
//! parameters, and the parameters by name, with defaults, help texts, and parsing from pairs.
//!
//! The device's page (`doc/flash.md`) has the sources of the figures, and compares the model with the published results
//! of each drive; `tests/published.rs` checks the comparison. A preset is a list of pairs, too, which is read first. A
//! value that is changed or has no effect is reported in a note; an invalid one is an error.

use super::geometry::{Geometry, Rate, Timing, UNIT};
use super::reclaim::{Preconditioned, Watermarks};
use crate::basics::{self, Basics, parameter};
use crate::{MachineShape, ParamError, Parameter};
use blkmq_core::{Given, Limits, Nanos, PairError, Unit};
use blkmq_engine::{DEFAULT_TIMEOUT, DeviceShape, WriteCache};

/// The final parameters of a flash device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlashParams {
    /// Hardware queues.
    pub submit_queues: u16,
    /// Driver tags per hardware queue.
    pub hw_queue_depth: u32,
    /// Logical block size in bytes.
    pub blocksize: u32,
    /// Size in MiB.
    pub size: u64,
    /// The maximum sectors of a request; 0 for the default.
    pub max_sectors: u32,
    /// Whether the device supports discards.
    pub discard: bool,
    /// The write cache that the device reports.
    pub cache: WriteCache,
    /// The number and size of channels, dies, blocks and pages.
    pub geometry: Geometry,
    /// The times and rates of the device.
    pub timing: Timing,
    /// Whether the link transfers data in both directions at the same time.
    pub link_duplex: bool,
    /// Write buffer in KiB.
    pub buffer_kib: u32,
    /// Whether programs and erases may be suspended for reads.
    pub suspend: bool,
    /// The maximum number of reads that overtake a program or an erase.
    pub reads_first: u32,
    /// The numbers of free blocks at which garbage collection begins and ends.
    pub watermarks: Watermarks,
    /// How the device was written before the first request.
    pub preconditioned: Preconditioned,
    /// Page reads in a million that have to be repeated.
    pub retry_ppm: u32,
    /// The maximum number of repetitions of a page read.
    pub retry_steps: u32,
    /// The seed of retries and of preconditioning.
    pub seed: u64,
    /// The number of arrivals to record; `None` for no log.
    pub log_size: Option<usize>,
    /// The number of spans to record; `None` for no log.
    pub occupancy_size: Option<usize>,
}

impl FlashParams {
    /// The limits of a request. A write may be smaller than a unit of the mapping table, but costs as much as a unit.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let limits = basics::limits(self.blocksize, self.max_sectors, self.discard, self.size);
        let granularity = if self.discard { UNIT } else { 0 };
        Limits { physical_block_size: UNIT, discard_granularity: granularity, ..limits }
    }

    /// The shape of the device for the engine.
    #[must_use]
    pub fn shape(&self) -> DeviceShape {
        DeviceShape {
            hw_queues: self.submit_queues,
            hw_queue_depth: self.hw_queue_depth,
            shared_tags: false,
            budget: None,
            limits: self.limits(),
            cache: self.cache,
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// The number of slots in the write buffer.
    #[must_use]
    pub fn buffer_units(&self) -> u32 {
        self.buffer_kib / (UNIT / 1024)
    }
}

/// A preset: the figures of one drive.
struct Preset {
    name: &'static str,
    /// The maximum number of hardware queues; the default is one for each CPU, up to this number.
    most_queues: u16,
    /// Its parameters, as a user would write them.
    pairs: &'static str,
}

/// The preset used if none is named.
const DEFAULT: &str = "nvme-tlc";

/// All presets, in the order in which messages list them.
const ALL: &[Preset] = &[SATA, SATA_DC, NVME_TLC, NVME_CLIENT, NVME_MLC, LOW_LATENCY];

/// Samsung 870 EVO, 1 TB.
const SATA: Preset = Preset {
    name: "sata",
    most_queues: 1,
    pairs: "hw_queue_depth=32, write_cache=1, fua=0, channels=8, dies_per_channel=2, planes=2, \
            page_size=16384, overprovisioning=9, read_ns=45000, program_ns=400000, erase_ns=3500000, \
            channel_mbps=800, link_mbps=560, link_duplex=0, read_command_ns=10100, write_command_ns=11200, \
            read_latency_ns=9000, write_latency_ns=9000, buffer_kib=262144, buffer_mbps=0, suspend=1, \
            suspend_ns=20000",
};

/// Intel D3-S4610, 480 GB, behind an IBM M1015.
const SATA_DC: Preset = Preset {
    name: "sata-dc",
    most_queues: 1,
    pairs: "hw_queue_depth=32, write_cache=0, fua=1, channels=8, dies_per_channel=2, planes=4, \
            page_size=16384, overprovisioning=14, read_ns=72000, program_ns=1350000, erase_ns=6000000, \
            channel_mbps=400, link_mbps=560, link_duplex=0, read_command_ns=15500, write_command_ns=17000, \
            read_latency_ns=22000, write_latency_ns=42000, buffer_kib=16384, buffer_mbps=0, suspend=1, \
            suspend_ns=40000, reads_first=6",
};

/// Intel SSD DC P4500, 1 TB.
const NVME_TLC: Preset = Preset {
    name: "nvme-tlc",
    most_queues: 32,
    pairs: "hw_queue_depth=256, write_cache=0, fua=1, channels=12, dies_per_channel=2, planes=4, \
            page_size=16384, overprovisioning=15, read_ns=65000, program_ns=2200000, erase_ns=6000000, \
            channel_mbps=533, link_mbps=3250, link_duplex=1, read_command_ns=1500, write_command_ns=2000, \
            read_latency_ns=9500, write_latency_ns=16700, buffer_kib=16384, buffer_mbps=0, suspend=1, \
            suspend_ns=40000",
};

/// Samsung 980 PRO, 1 TB.
const NVME_CLIENT: Preset = Preset {
    name: "nvme-client",
    most_queues: 128,
    pairs: "hw_queue_depth=1023, write_cache=1, fua=1, channels=8, dies_per_channel=4, planes=2, \
            page_size=49152, overprovisioning=40, read_ns=47000, program_ns=1500000, erase_ns=4600000, \
            channel_mbps=1200, link_mbps=7000, link_duplex=1, read_command_ns=1000, write_command_ns=1000, \
            read_latency_ns=17000, write_latency_ns=14200, buffer_kib=16384, buffer_mbps=0, suspend=0, \
            suspend_ns=0, reads_first=1",
};

/// Intel SSD DC P3700, 2 TB.
const NVME_MLC: Preset = Preset {
    name: "nvme-mlc",
    most_queues: 31,
    pairs: "hw_queue_depth=256, write_cache=0, fua=1, channels=18, dies_per_channel=7, planes=2, \
            page_size=16384, pages_per_block=32, overprovisioning=32, read_ns=44000, program_ns=1600000, \
            erase_ns=5000000, channel_mbps=166, link_mbps=2850, link_duplex=1, read_command_ns=2150, \
            write_command_ns=2150, read_latency_ns=5500, write_latency_ns=15000, buffer_kib=32768, \
            buffer_mbps=2000, suspend=0, suspend_ns=0",
};

/// Intel Optane SSD DC P4800X, 375 GB.
const LOW_LATENCY: Preset = Preset {
    name: "low-latency",
    most_queues: 32,
    pairs: "hw_queue_depth=256, write_cache=0, fua=1, channels=7, dies_per_channel=4, planes=1, \
            page_size=4096, pages_per_block=1, overprovisioning=15, read_ns=2500, program_ns=20000, \
            erase_ns=0, channel_mbps=2400, link_mbps=2450, link_duplex=1, read_command_ns=1750, \
            write_command_ns=2000, read_latency_ns=1200, write_latency_ns=4700, buffer_kib=256, \
            buffer_mbps=2050, suspend=0, suspend_ns=0",
};

/// The largest device: 2 TiB, so that units of flash and slots of the buffer fit 32 bits with any spare area.
const MAX_MIB: u64 = 2 << 20;
/// The longest duration of any parameter: a minute.
const MAX_NS: u64 = 60_000_000_000;
/// Units in a MiB.
const MIB_UNITS: u64 = (1 << 20) / UNIT as u64;
/// The number of blocks of a die in addition to those for mapped units and those that garbage collection keeps free:
/// one that the host writes, one that garbage collection writes, and one in reserve.
const EXTRA_BLOCKS: u32 = 3;

impl FlashParams {
    /// Parses pairs of name and value; if a name is repeated, the last value counts, and a pair overrides the preset
    /// wherever it stands. Also returns notes, a sentence each, on values that were changed or have no effect.
    ///
    /// # Errors
    /// For the first pair with an unknown name or an invalid value, or if the parameters together describe no valid
    /// device.
    pub fn parse(
        pairs: &[(String, String)],
        host: &MachineShape,
    ) -> Result<(Self, Vec<String>), ParamError> {
        let mut notes = Vec::new();
        let params = read(pairs, host, &mut notes)?;
        params.limits().validate().map_err(ParamError::Limits)?;
        Ok((params, notes))
    }
}

/// Reads `pairs` for a machine like `host`.
fn read(
    pairs: &[(String, String)],
    host: &MachineShape,
    notes: &mut Vec<String>,
) -> Result<FlashParams, ParamError> {
    let preset = preset(pairs)?;
    let mut raw = Raw::new();
    for pair in preset.pairs.split(", ") {
        let (name, value) = pair.split_once('=').expect("a preset is a list of pairs");
        raw.set(&Given::find(PARAMETERS, name, value)?)?;
    }
    let given = |name: &str| pairs.iter().any(|(known, _)| known == name);
    if !given("submit_queues") && !given("use_per_node_hctx") {
        let queues = host.cpus.clamp(1, preset.most_queues).to_string();
        raw.set(&Given::find(PARAMETERS, "submit_queues", &queues)?)?;
    }
    for (name, value) in pairs {
        raw.set(&Given::find(PARAMETERS, name, value)?)?;
    }
    for (name, needed, missing) in [
        ("fua", "write_cache=1", raw.write_cache == Some(false)),
        ("suspend_ns", "suspend=1", !raw.done.suspend),
        ("flush_ns", "write_cache=1", raw.write_cache == Some(false)),
        ("retry_steps", "retry_ppm", raw.done.retry_ppm == 0),
    ] {
        if given(name) && missing {
            notes.push(format!("{name} has no effect without {needed}"));
        }
    }
    raw.finish(host, notes)
}

fn preset(pairs: &[(String, String)]) -> Result<&'static Preset, ParamError> {
    let named = pairs.iter().rev().find(|(name, _)| name == "preset");
    let name = named.map_or(DEFAULT, |(_, value)| value);
    ALL.iter().find(|preset| preset.name == name).ok_or_else(|| {
        let accepted = Vec::from_iter(ALL.iter().map(|preset| preset.name)).join(", ");
        let value = name.to_owned();
        ParamError::Pair(PairError::Value { name: "preset", value, accepted })
    })
}

/// The values as given, before parameters are checked against each other.
struct Raw {
    basics: Basics,
    write_cache: Option<bool>,
    fua: bool,
    overprovisioning: u32,
    /// Parameters stored as given; those that every preset sets are placeholders until then.
    done: FlashParams,
}

impl Raw {
    fn new() -> Self {
        let none = Rate::new(0);
        let timing = Timing {
            read: Nanos::ZERO,
            program: Nanos::ZERO,
            erase: Nanos::ZERO,
            suspend: Nanos::ZERO,
            flush: Nanos::ZERO,
            channel: none,
            link: none,
            buffer: none,
            discard: none,
            read_command: Nanos::ZERO,
            write_command: Nanos::ZERO,
            read_latency: Nanos::ZERO,
            write_latency: Nanos::ZERO,
        };
        let geometry = Geometry {
            channels: 1,
            dies_per_channel: 1,
            planes: 1,
            page_size: UNIT,
            pages_per_block: 64,
            blocks_per_die: 0,
        };
        let done = FlashParams {
            submit_queues: 1,
            hw_queue_depth: 1,
            blocksize: 512,
            size: 0,
            max_sectors: 0,
            discard: true,
            cache: WriteCache::Through,
            geometry,
            timing,
            link_duplex: false,
            buffer_kib: 0,
            suspend: false,
            reads_first: 16,
            watermarks: Watermarks { start: 2, stop: 4 },
            preconditioned: Preconditioned::Sequential,
            retry_ppm: 0,
            retry_steps: 3,
            seed: 0,
            log_size: None,
            occupancy_size: None,
        };
        let mut basics = Basics::sized(8);
        basics.discard = true;
        Self { basics, write_cache: None, fua: true, overprovisioning: 0, done }
    }

    fn set(&mut self, given: &Given<'_>) -> Result<(), ParamError> {
        let known = given.name == "preset"
            || self.basics.set(given)?
            || self.set_geometry(given)?
            || self.set_timing(given)?
            || self.set_behaviour(given)?;
        assert!(known, "every name in the table is read by one of them");
        Ok(())
    }

    /// Sets a parameter of the geometry or the size of the buffer. Returns false if `given` is not one of them.
    fn set_geometry(&mut self, given: &Given<'_>) -> Result<bool, ParamError> {
        let geometry = &mut self.done.geometry;
        match given.name {
            "channels" => geometry.channels = given.number(1..=64)?,
            "dies_per_channel" => geometry.dies_per_channel = given.number(1..=64)?,
            "planes" => geometry.planes = given.number(1..=8)?,
            "page_size" => {
                let size = given
                    .measure(Unit::Bytes(1), UNIT..=65536)
                    .ok()
                    .filter(|size| size % UNIT == 0);
                let accepted = "a multiple of 4096 from 4096 to 65536, or with a unit: 4k, 16k";
                geometry.page_size = size.ok_or_else(|| given.refuse(accepted))?;
            }
            "pages_per_block" => geometry.pages_per_block = given.number(1..=8192)?,
            "overprovisioning" => self.overprovisioning = given.number(2..=400)?,
            "buffer_kib" => self.done.buffer_kib = given.measure(Unit::KIB, 4..=1 << 30)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets a time or a rate. Returns false if `given` is not one of them.
    fn set_timing(&mut self, given: &Given<'_>) -> Result<bool, ParamError> {
        let timing = &mut self.done.timing;
        let span = || given.measure(Unit::NS, 0..=MAX_NS).map(Nanos);
        let rate = |least| given.number(least..=u32::MAX).map(Rate::new);
        match given.name {
            "read_ns" => timing.read = span()?,
            "program_ns" => timing.program = span()?,
            "erase_ns" => timing.erase = span()?,
            "suspend_ns" => timing.suspend = span()?,
            "flush_ns" => timing.flush = span()?,
            "channel_mbps" => timing.channel = rate(1)?,
            "link_mbps" => timing.link = rate(1)?,
            "buffer_mbps" => timing.buffer = rate(0)?,
            "discard_mbps" => timing.discard = rate(0)?,
            "read_command_ns" => timing.read_command = span()?,
            "write_command_ns" => timing.write_command = span()?,
            "read_latency_ns" => timing.read_latency = span()?,
            "write_latency_ns" => timing.write_latency = span()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets a parameter of the behaviour. Returns false if `given` is not one of them.
    fn set_behaviour(&mut self, given: &Given<'_>) -> Result<bool, ParamError> {
        let done = &mut self.done;
        match given.name {
            "write_cache" => self.write_cache = Some(given.flag()?),
            "fua" => self.fua = given.flag()?,
            "link_duplex" => done.link_duplex = given.flag()?,
            "suspend" => done.suspend = given.flag()?,
            "reads_first" => done.reads_first = given.number(1..=1 << 20)?,
            "gc_start" => done.watermarks.start = given.number(1..=1000)?,
            "gc_stop" => done.watermarks.stop = given.number(2..=1001)?,
            "preconditioned" => {
                done.preconditioned = match given.number(0..=2)? {
                    0 => Preconditioned::No,
                    1 => Preconditioned::Sequential,
                    _ => Preconditioned::Random,
                }
            }
            "retry_ppm" => done.retry_ppm = given.number(0..=1_000_000)?,
            "retry_steps" => done.retry_steps = given.number(1..=1000)?,
            "seed" => done.seed = given.number(0..=u64::MAX)?,
            "occupancy_size" => {
                let size = given.number(0..=1_usize << 32)?;
                done.occupancy_size = (size > 0).then_some(size);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn finish(
        mut self,
        host: &MachineShape,
        notes: &mut Vec<String>,
    ) -> Result<FlashParams, ParamError> {
        let size = self.basics.size();
        if size > MAX_MIB {
            let (value, accepted) = (size.to_string(), format!("at most {MAX_MIB} MiB"));
            return Err(PairError::Value { name: "size", value, accepted }.into());
        }
        self.finish_watermarks(notes);
        self.finish_geometry(size, notes);
        self.finish_buffer(notes);
        self.check_numbers()?;
        let basics = &self.basics;
        let cache = match (self.write_cache, self.fua) {
            (Some(true), fua) => WriteCache::Back { fua },
            _ => WriteCache::Through,
        };
        Ok(FlashParams {
            submit_queues: basics.submit_queues(host, notes),
            hw_queue_depth: basics.hw_queue_depth(notes),
            blocksize: basics.blocksize(notes),
            size,
            max_sectors: basics.max_sectors,
            discard: basics.discard,
            cache,
            log_size: basics.log_size(notes),
            ..self.done
        })
    }

    fn finish_watermarks(&mut self, notes: &mut Vec<String>) {
        let Watermarks { start, stop } = &mut self.done.watermarks;
        if *stop <= *start {
            notes.push(format!("gc_stop={stop} is raised to {}", *start + 1));
            *stop = *start + 1;
        }
    }

    /// Computes the number of blocks from the size and the spare area, and raises it to the number that garbage
    /// collection needs.
    fn finish_geometry(&mut self, size: u64, notes: &mut Vec<String>) {
        let geometry = &mut self.done.geometry;
        let on_each = u64::from(geometry.dies()) * u64::from(geometry.block_units());
        let units = size * MIB_UNITS;
        let percent = u64::from(self.overprovisioning);
        let wanted = (units * (100 + percent)).div_ceil(100 * on_each);
        let least = units.div_ceil(on_each) + u64::from(self.done.watermarks.stop + EXTRA_BLOCKS);
        geometry.blocks_per_die = wanted.max(least) as u32;
        if wanted < least {
            let spare = (least * on_each - units) * 100 / units;
            notes.push(format!(
                "overprovisioning={percent} is {spare} for so small a device: {least} blocks on each die"
            ));
        }
    }

    /// Checks that the units of flash and the slots of the buffer together fit 32 bits.
    fn check_numbers(&self) -> Result<(), PairError> {
        let geometry = &self.done.geometry;
        let dies = u64::from(geometry.dies()) * u64::from(geometry.blocks_per_die);
        let flash = dies * u64::from(geometry.block_units());
        let most = u64::from(u32::MAX) - u64::from(self.done.buffer_units());
        if flash < most {
            return Ok(());
        }
        let value = geometry.pages_per_block.to_string();
        let accepted =
            format!("less of it, or of dies and planes: {flash} units of flash, {most} at most");
        Err(PairError::Value { name: "pages_per_block", value, accepted })
    }

    /// Raises the buffer to at least two rows: one that is being programmed and one that is being filled.
    fn finish_buffer(&mut self, notes: &mut Vec<String>) {
        let least = 2 * self.done.geometry.row_units() * (UNIT / 1024);
        if self.done.buffer_kib < least {
            notes.push(format!("buffer_kib={} is raised to {least}", self.done.buffer_kib));
            self.done.buffer_kib = least;
        }
    }
}

/// In the order of the help page. An empty default stands for the preset's value.
pub(super) const PARAMETERS: &[Parameter] = &[
    parameter(
        "preset",
        "nvme-tlc",
        "sata, sata-dc, nvme-tlc, nvme-client, nvme-mlc or low-latency",
    ),
    parameter("submit_queues", "", "hardware queues; at most one per CPU"),
    basics::USE_PER_NODE_HCTX,
    parameter("hw_queue_depth", "", "driver tags per hardware queue, 1 to 10240"),
    basics::BS,
    basics::BLOCKSIZE,
    parameter("gb", "8", "size in GiB; a little more than 2 MiB of memory for each"),
    basics::SIZE,
    basics::MAX_SECTORS,
    parameter("discard", "1", "support discard"),
    parameter("write_cache", "", "the write buffer forgets when the power goes: flushes reach it"),
    parameter("fua", "", "honour FUA; only with write_cache=1"),
    parameter("channels", "", "channels, 1 to 64"),
    parameter("dies_per_channel", "", "dies that share a channel, 1 to 64"),
    parameter("planes", "", "planes of a die, which are programmed together, 1 to 8"),
    parameter("page_size", "", "bytes in a page of a plane: 4096 to 65536"),
    parameter("pages_per_block", "64", "pages of a block in each plane, 1 to 8192"),
    parameter("overprovisioning", "", "flash beyond the size, in percent of it, 2 to 400"),
    parameter("read_ns", "", "cells to register (tR)"),
    parameter(
        "program_ns",
        "",
        "from registers to cells, for all planes of a die together (tPROG)",
    ),
    parameter("erase_ns", "", "erasing a block (tERASE)"),
    parameter("channel_mbps", "", "bandwidth of a channel in MB/s"),
    parameter("link_mbps", "", "bandwidth of the host link in MB/s"),
    parameter("link_duplex", "", "the link moves data in both directions together"),
    parameter("read_command_ns", "", "how long a read takes up the controller"),
    parameter("write_command_ns", "", "how long any other command takes up the controller"),
    parameter("read_latency_ns", "", "what a read takes besides"),
    parameter("write_latency_ns", "", "what any other command takes besides"),
    parameter("buffer_kib", "", "write buffer in KiB"),
    parameter("buffer_mbps", "", "bandwidth into the write buffer in MB/s; 0: no limit"),
    parameter(
        "discard_mbps",
        "0",
        "bandwidth of discards and zeroes in MB/s, which no command passes; 0: no limit",
    ),
    parameter("suspend", "", "interrupt programs and erases for reads"),
    parameter("suspend_ns", "", "what an interruption costs; only with suspend=1"),
    parameter(
        "flush_ns",
        "0",
        "what a flush takes once the buffer is programmed; with any, a flush is served alone",
    ),
    parameter("reads_first", "16", "reads that pass a program or an erase, at most"),
    parameter("gc_start", "2", "free blocks of a die at which garbage collection begins"),
    parameter("gc_stop", "4", "and at which it ends"),
    parameter(
        "preconditioned",
        "1",
        "0: never written; 1: filled in order; 2: then overwritten at random",
    ),
    parameter("retry_ppm", "0", "page reads in a million that have to be repeated"),
    parameter("retry_steps", "3", "how often, at most; only with retry_ppm"),
    parameter("seed", "0", "of retries and of preconditioned=2"),
    basics::LOG,
    basics::LOG_SIZE_PARAMETER,
    parameter("occupancy_size", "0", "spans that the occupancy log keeps; 0: no such log"),
];
