//! The typed meaning of one fio job. Defaults are fio's.

use super::StridedError;
use super::verify::{Verify, VerifyError};
use super::{Amount, BlockSize, BlockSizeError, CmdPrio, Contents, Direction, Distribution};
use super::{
    DistributionError, ExitWhat, Files, Flow, LatencyTarget, Logs, OnError, PerDirection, Rw,
    Strided, Tape,
};
use blkmq_core::{IoPrio, Nanos, SECTOR_SIZE};
use std::sync::Arc;

/// One job: a pattern, the load that `numjobs` threads put on the device, and its duration.
///
/// Fields carry the names of fio's options. [`validate`](Self::validate) checks combinations of fields.
#[derive(Clone, PartialEq, Debug)]
pub struct Job {
    /// `name`.
    pub name: String,
    /// Position in the plan. Part of the seed, so that two equal jobs do not issue equal streams.
    pub index: u32,
    /// `rw`.
    pub rw: Rw,
    /// The number behind a random `rw` (`rw=randread:8`): this many sequential I/Os begin at each random place. More
    /// than 1 implies `norandommap`.
    pub run: u32,
    /// The number behind a sequential `rw` (`rw=read:4k`, `rw=read:-8k`): bytes left out between two I/Os of a
    /// direction. With a negative number the next I/O begins that much before the end of the last one.
    pub hole: i64,
    /// `rwmixread`: reads in a mix, in percent.
    pub rwmixread: u8,
    /// `bs`, `bsrange` or `bssplit`.
    pub bs: PerDirection<BlockSize>,
    /// `blockalign`: random places are multiples of this many bytes, counted from the offset. As in fio,
    /// setting it implies `norandommap`. `None`: the smallest block.
    pub blockalign: PerDirection<Option<u32>>,
    /// `size`: the length of each thread's region; `None` is the rest of the device.
    pub size: Option<Amount>,
    /// The file ends with `size`, as one that fio makes for the job does.
    pub ends_at_size: bool,
    /// The length of the only file when the job begins, if it is one that threads make longer; `None`: it is as long as
    /// the device.
    pub found: Option<u64>,
    /// `io_size`: the bytes that a thread issues in one pass; `None` is `size`, and a share is one of `size`.
    pub io_size: Option<Amount>,
    /// `offset` of the first thread's region.
    pub offset: Amount,
    /// `offset_increment`: each further thread starts this much later.
    pub offset_increment: Amount,
    /// The files, if there are several, or one that is not the whole device.
    pub files: Option<Files>,
    /// `zonemode=strided` and its companions.
    pub strided: Option<Strided>,
    /// `number_ios`: the most I/Os of a pass. As in fio, `time_based` wins over it.
    pub number_ios: Option<u64>,
    /// `loops`: the number of passes.
    pub loops: u32,
    /// `norandommap`: draw every block independently, instead of each once per pass.
    pub norandommap: bool,
    /// `random_distribution`. Anything but uniform implies `norandommap`.
    pub random_distribution: Distribution,
    /// `percentage_random`: the other I/Os of a random job continue at the end of the last I/O of their direction.
    pub percentage_random: PerDirection<u8>,
    /// `randseed`.
    pub randseed: u64,
    /// `direct` (or `buffered=0`): a thread waits for writes, hence they are sync to a scheduler. Otherwise they are
    /// async, as writeback is.
    pub direct: bool,
    /// `sync`: each write is durable before it completes (FUA).
    pub sync: bool,
    /// `fsync`: the number of writes between two flushes; 0 for no flushes.
    pub fsync: u32,
    /// `fdatasync`: as `fsync`, beside it. The device knows one kind of flush.
    pub fdatasync: u32,
    /// `end_fsync`: a flush when all is written, within the measured time.
    pub end_fsync: bool,
    /// `verify` and its companions; `None` does not check contents.
    pub verify: Option<Verify>,
    /// `zero_buffers` and its companions.
    pub contents: Contents,
    /// `prioclass` and `prio`.
    pub prio: IoPrio,
    /// `cmdprio_percentage` and its companions.
    pub cmdprio: PerDirection<CmdPrio>,
    /// `cgroup`: the group that the job's I/O is for.
    pub cgroup: Option<String>,
    /// `cgroup_weight`: the weight of that group, 1 to 1000.
    pub cgroup_weight: Option<u32>,
    /// `serialize_overlap`: an I/O to a place to which another one is in flight waits for that.
    pub serialize_overlap: bool,
    /// `iodepth` and its companions.
    pub depth: Depth,
    /// `rate_iops`: I/Os per second and thread.
    pub rate_iops: PerDirection<Option<u64>>,
    /// `rate`: bytes per second and thread.
    pub rate: PerDirection<Option<u64>>,
    /// `rate_process=poisson`: rates are averages of random times between I/Os, and not of equal ones.
    pub poisson: bool,
    /// `rate_min`: a thread that moves fewer bytes per second ends with an error.
    pub rate_min: PerDirection<Option<u64>>,
    /// `rate_iops_min`: the same in I/Os per second.
    pub rate_iops_min: PerDirection<Option<u64>>,
    /// `rate_cycle`: the time over which these rates are taken.
    pub rate_cycle: Nanos,
    /// `flow` and its companions.
    pub flow: Option<Flow>,
    /// `latency_target` and its companions.
    pub latency_target: Option<LatencyTarget>,
    /// `max_latency`: an I/O that takes longer ends its thread with an error.
    pub max_latency: PerDirection<Option<Nanos>>,
    /// `thinktime` and `thinktime_blocks`.
    pub thinktime: Option<ThinkTime>,
    /// `numjobs`: the number of threads.
    pub numjobs: u32,
    /// `runtime`: stop after this long, not counting the ramp.
    pub runtime: Option<Nanos>,
    /// `time_based`: begin again until the runtime is over.
    pub time_based: bool,
    /// `ramp_time`: run this long before the counts begin.
    pub ramp_time: Nanos,
    /// `startdelay`.
    pub startdelay: Nanos,
    /// `fill_device`: a `size` beyond the end of the device is cut, and a write that finds no space ends the job
    /// without an error.
    pub fill_device: bool,
    /// `continue_on_error`: the failed I/Os that do not end the job.
    pub on_error: OnError,
    /// `exitall`: all jobs of a group end with the first of them. As in fio, it holds for all jobs.
    pub exitall: bool,
    /// `exit_what`: the threads that end then.
    pub exit_what: ExitWhat,
    /// `wait_for`: begin when all threads of the earlier jobs of this name have ended.
    pub wait_for: Option<String>,
    /// `stonewall`: wait until all earlier jobs are done.
    pub stonewall: bool,
    /// `new_group`: begin a reporting group.
    pub new_group: bool,
    /// `group_reporting`: one report for the group.
    pub group_reporting: bool,
    /// The latencies that are measured (`gtod_reduce`, `disable_*`).
    pub latencies: Latencies,
    /// `slat_percentiles` and its companions: the latencies whose percentiles are reported.
    pub percentiles: Latencies,
    /// `unified_rw_reporting`: the sums of all kinds of transfer that are reported.
    pub unified: Unified,
    /// `percentile_list`, ascending, in percent.
    pub percentile_list: Vec<f64>,
    /// `write_bw_log` and its companions.
    pub logs: Logs,
    /// A recording, whose I/Os each thread issues instead of drawing any: patterns, lengths and rates have no effect
    /// then.
    pub tape: Option<Arc<Tape>>,
}

/// The number of I/Os that a thread keeps in flight, and their portions. Counts are at least 1 unless said otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Depth {
    /// `iodepth`: the most I/Os in flight.
    pub iodepth: u32,
    /// `iodepth_low`: at full depth, submit again when only this many are in flight.
    pub low: u32,
    /// `iodepth_batch_submit`: submitted together, in one plug.
    pub batch_submit: u32,
    /// `iodepth_batch_complete_min`: wait for this many; 0 polls without waiting.
    pub batch_complete_min: u32,
    /// `iodepth_batch_complete_max`: take at most this many at a time.
    pub batch_complete_max: u32,
}

impl Default for Depth {
    fn default() -> Self {
        Self { iodepth: 1, low: 1, batch_submit: 1, batch_complete_min: 1, batch_complete_max: 1 }
    }
}

/// A pause between I/Os, as in a process that computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThinkTime {
    /// `thinktime`.
    pub pause: Nanos,
    /// `thinktime_blocks`: I/Os between two pauses, at least 1.
    pub blocks: u32,
}

/// The latencies that are measured for every I/O; each costs clock readings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Latencies {
    /// Submission (fio's slat).
    pub slat: bool,
    /// Completion (fio's clat).
    pub clat: bool,
    /// The sum of both (fio's lat).
    pub lat: bool,
}

/// The kinds of transfer in a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unified {
    /// Each kind separately.
    #[default]
    None,
    /// All of them as one.
    Mixed,
    /// Each kind separately, and all as one.
    Both,
}

impl Unified {
    /// Each with fio's words for it, the one that fio documents first.
    pub const NAMES: [(Self, &'static str); 6] = [
        (Self::None, "none"),
        (Self::Mixed, "mixed"),
        (Self::Both, "both"),
        (Self::None, "0"),
        (Self::Mixed, "1"),
        (Self::Both, "2"),
    ];
}

impl Latencies {
    /// Every latency.
    pub const ALL: Self = Self { slat: true, clat: true, lat: true };
    /// No latency (`gtod_reduce`).
    pub const NONE: Self = Self { slat: false, clat: false, lat: false };
}

/// fio's default `percentile_list`.
const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

impl Default for Job {
    fn default() -> Self {
        Self {
            name: String::from("job"),
            index: 0,
            rw: Rw::Read,
            run: 1,
            hole: 0,
            rwmixread: 50,
            bs: PerDirection::all(BlockSize::Fixed(4096)),
            blockalign: PerDirection::all(None),
            size: None,
            ends_at_size: false,
            found: None,
            io_size: None,
            offset: Amount::ZERO,
            offset_increment: Amount::ZERO,
            files: None,
            strided: None,
            number_ios: None,
            loops: 1,
            norandommap: false,
            random_distribution: Distribution::Uniform,
            percentage_random: PerDirection::all(100),
            randseed: 0x89,
            direct: false,
            sync: false,
            fsync: 0,
            fdatasync: 0,
            end_fsync: false,
            verify: None,
            contents: Contents::default(),
            prio: IoPrio::default(),
            cmdprio: PerDirection::default(),
            cgroup: None,
            cgroup_weight: None,
            serialize_overlap: false,
            depth: Depth::default(),
            rate_iops: PerDirection::all(None),
            rate: PerDirection::all(None),
            poisson: false,
            rate_min: PerDirection::all(None),
            rate_iops_min: PerDirection::all(None),
            rate_cycle: Nanos::from_secs(1),
            flow: None,
            latency_target: None,
            max_latency: PerDirection::all(None),
            thinktime: None,
            numjobs: 1,
            runtime: None,
            time_based: false,
            ramp_time: Nanos::ZERO,
            startdelay: Nanos::ZERO,
            fill_device: false,
            on_error: OnError::End,
            exitall: false,
            exit_what: ExitWhat::Group,
            wait_for: None,
            stonewall: false,
            new_group: false,
            group_reporting: false,
            latencies: Latencies::ALL,
            percentiles: Latencies { slat: false, clat: true, lat: false },
            unified: Unified::None,
            percentile_list: PERCENTILES.to_vec(),
            logs: Logs::default(),
            tape: None,
        }
    }
}

/// Fields that contradict each other, or values that cannot be run. Messages name fio's options.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum JobError {
    /// A block size of a direction that the job uses.
    #[error("bs of {name}: {1}", name = .0.name())]
    BlockSize(Direction, BlockSizeError),
    /// The distribution's parameter.
    #[error("random_distribution={0}")]
    Distribution(DistributionError),
    /// A count that must be at least 1, by option.
    #[error("{0}=0; accepted is 1 or more")]
    Zero(&'static str),
    /// More than 100 percent, by option.
    #[error("{0}={1}; accepted is 0 to 100")]
    Percent(&'static str, u8),
    /// Not a multiple of a sector, by option.
    #[error("{0}={1}; accepted are multiples of {SECTOR_SIZE} bytes")]
    NotSectors(&'static str, u64),
    /// `size` below the smallest block.
    #[error("size={size} is smaller than one block; accepted is {bs} (bs) or more")]
    SizeBelowBlock {
        /// `size` in bytes.
        size: u64,
        /// The block size in bytes.
        bs: u32,
    },
    /// `zonemode=strided` and its companions.
    #[error("{0}")]
    Strided(StridedError),
    /// `time_based` without `runtime`.
    #[error("time_based needs a runtime, such as runtime=30")]
    NoRuntime,
    /// A portion larger than `iodepth`, by option.
    #[error("{0}={1}; accepted is up to iodepth={2}")]
    AboveDepth(&'static str, u32, u32),
    /// `iodepth_batch_complete_min` above `iodepth_batch_complete_max`.
    #[error(
        "iodepth_batch_complete_min={0}; accepted is up to \
         iodepth_batch_complete_max={1}"
    )]
    BatchInverted(u32, u32),
    /// `verify` and its companions.
    #[error("{0}")]
    Verify(VerifyError),
    /// A hole that is no multiple of a sector, or a hole between random I/Os.
    #[error(
        "rw with a hole of {0} bytes; accepted are multiples of {SECTOR_SIZE}, between sequential I/Os"
    )]
    Hole(i64),
    /// `latency_target` without a window, or with a percentile that is none.
    #[error("{0}")]
    LatencyTarget(&'static str),
    /// `cmdprio_percentage` or `cmdprio_bssplit` with more than 100 percent.
    #[error("cmdprio of {0} percent of the I/Os of a length; accepted is up to 100")]
    CmdPrio(u32),
}

impl Job {
    /// Returns whether flushes go between the writes.
    pub(super) fn flushes(&self) -> bool {
        let tape = self.tape.as_ref();
        self.fsync > 0 || self.fdatasync > 0 || tape.is_some_and(|tape| tape.flushes())
    }

    /// Block sizes of the directions that the job issues.
    pub(super) fn used_block_sizes(&self) -> impl Iterator<Item = &BlockSize> + Clone {
        self.rw.directions().iter().map(|&direction| &self.bs[direction])
    }

    /// Checks that the job can be run, on a device that is large enough.
    ///
    /// # Errors
    /// The first contradiction or impossible value.
    pub fn validate(&self) -> Result<(), JobError> {
        for &direction in self.rw.directions() {
            let sized = self.bs[direction].validate();
            sized.map_err(|e| JobError::BlockSize(direction, e))?;
            match self.blockalign[direction] {
                Some(0) => return Err(JobError::Zero("blockalign")),
                Some(align) => sectors("blockalign", Amount::Bytes(align.into()))?,
                None => {}
            }
            percent("percentage_random", self.percentage_random[direction])?;
            for (option, rate) in [("rate_iops", &self.rate_iops), ("rate", &self.rate)] {
                if rate[direction] == Some(0) {
                    return Err(JobError::Zero(option));
                }
            }
        }
        percent("rwmixread", self.rwmixread)?;
        self.validate_pattern()?;
        if let Some(strided) = self.strided {
            let longest = self.used_block_sizes().map(BlockSize::min).max().unwrap_or(0);
            let longest = if self.rw.is_random() { longest } else { 0 };
            strided.validate(longest).map_err(JobError::Strided)?;
        }
        if self.flow.is_some_and(|flow| flow.weight == 0) {
            return Err(JobError::Zero("flow"));
        }
        self.random_distribution.validate().map_err(JobError::Distribution)?;
        for (option, count) in [("numjobs", self.numjobs), ("loops", self.loops), ("rw", self.run)]
        {
            if count == 0 {
                return Err(JobError::Zero(option));
            }
        }
        if self.thinktime.is_some_and(|t| t.blocks == 0) {
            return Err(JobError::Zero("thinktime_blocks"));
        }
        self.validate_amounts()?;
        self.depth.validate()?;
        self.validate_verify().map_err(JobError::Verify)?;
        if self.time_based && self.runtime.is_none() { Err(JobError::NoRuntime) } else { Ok(()) }
    }

    fn validate_pattern(&self) -> Result<(), JobError> {
        let sectors = self.hole % i64::from(SECTOR_SIZE) == 0;
        if !sectors || self.hole != 0 && self.rw.is_random() {
            return Err(JobError::Hole(self.hole));
        }
        if let Some(LatencyTarget { window, percentile, .. }) = self.latency_target {
            if window == Nanos::ZERO {
                return Err(JobError::LatencyTarget(
                    "latency_target needs a latency_window, such as 50ms",
                ));
            }
            if !(percentile > 0.0 && percentile <= 100.0) {
                let text = "latency_percentile; accepted is above 0 and up to 100";
                return Err(JobError::LatencyTarget(text));
            }
        }
        let most = self.cmdprio.iter().map(|(_, special)| special.most()).max().unwrap_or(0);
        if most > 100 { Err(JobError::CmdPrio(most)) } else { Ok(()) }
    }

    fn validate_amounts(&self) -> Result<(), JobError> {
        sectors("offset", self.offset)?;
        sectors("offset_increment", self.offset_increment)?;
        let bs = self.used_block_sizes().map(BlockSize::min).max().unwrap_or(0);
        match self.size {
            Some(Amount::Bytes(size)) if size < bs.into() => {
                return Err(JobError::SizeBelowBlock { size, bs });
            }
            Some(Amount::Percent(0)) => return Err(JobError::Zero("size")),
            Some(Amount::Percent(share)) => percent("size", share)?,
            _ => {}
        }
        match self.io_size {
            Some(Amount::Bytes(0) | Amount::Percent(0)) => Err(JobError::Zero("io_size")),
            Some(Amount::Percent(share)) => percent("io_size", share),
            _ => Ok(()),
        }
    }

    /// Every priority that an I/O of `direction` may have, in ascending order; more than one only with `cmdprio_*`.
    pub(super) fn prios(&self, direction: Direction) -> Vec<IoPrio> {
        let mut prios = self.cmdprio[direction].prios();
        match &self.tape {
            Some(tape) => prios = tape.prios(direction),
            None => prios.push(self.prio),
        }
        prios.sort_by_key(|prio| prio.to_bits());
        prios.dedup();
        prios
    }
}

impl Depth {
    fn validate(&self) -> Result<(), JobError> {
        for (option, count, least) in [
            ("iodepth", self.iodepth, 1),
            ("iodepth_low", self.low, 1),
            ("iodepth_batch_submit", self.batch_submit, 1),
            ("iodepth_batch_complete_min", self.batch_complete_min, 0),
            ("iodepth_batch_complete_max", self.batch_complete_max, 1),
        ] {
            if count < least {
                return Err(JobError::Zero(option));
            }
            if count > self.iodepth {
                return Err(JobError::AboveDepth(option, count, self.iodepth));
            }
        }
        if self.batch_complete_max < self.batch_complete_min {
            let (min, max) = (self.batch_complete_min, self.batch_complete_max);
            return Err(JobError::BatchInverted(min, max));
        }
        Ok(())
    }
}

fn percent(option: &'static str, value: u8) -> Result<(), JobError> {
    if value > 100 { Err(JobError::Percent(option, value)) } else { Ok(()) }
}

fn sectors(option: &'static str, amount: Amount) -> Result<(), JobError> {
    match amount {
        Amount::Bytes(n) if !n.is_multiple_of(SECTOR_SIZE.into()) => {
            Err(JobError::NotSectors(option, n))
        }
        Amount::Percent(share) => percent(option, share),
        Amount::Bytes(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_can_be_run() {
        assert_eq!(Job::default().validate(), Ok(()));
    }

    #[test]
    fn each_impossible_job_is_refused_by_name() {
        let depth = |depth: Depth| Job { depth, ..Job::default() };
        let base = Depth { iodepth: 4, ..Depth::default() };
        for (job, expected) in [
            (Job { rwmixread: 101, ..Job::default() }, "rwmixread=101"),
            (Job { numjobs: 0, ..Job::default() }, "numjobs=0"),
            (Job { loops: 0, ..Job::default() }, "loops=0"),
            (Job { bs: PerDirection::all(BlockSize::Fixed(0)), ..Job::default() }, "bs of read"),
            (Job { blockalign: PerDirection::all(Some(100)), ..Job::default() }, "blockalign=100"),
            (Job { size: Some(Amount::Bytes(4095)), ..Job::default() }, "size=4095"),
            (Job { io_size: Some(Amount::ZERO), ..Job::default() }, "io_size=0"),
            (Job { offset: Amount::Bytes(1), ..Job::default() }, "offset=1"),
            (Job { offset: Amount::Percent(101), ..Job::default() }, "offset=101"),
            (Job { time_based: true, ..Job::default() }, "time_based"),
            (Job { rate: PerDirection::all(Some(0)), ..Job::default() }, "rate=0"),
            (depth(Depth { iodepth: 0, ..base }), "iodepth=0"),
            (depth(Depth { low: 5, ..base }), "iodepth_low=5"),
            (depth(Depth { batch_submit: 0, ..base }), "iodepth_batch_submit=0"),
            (depth(Depth { batch_complete_min: 3, ..base }), "iodepth_batch_complete_min=3"),
        ] {
            let message = job.validate().expect_err(expected).to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn directions_that_a_job_does_not_use_are_not_checked() {
        let mut job = Job::default();
        job.bs[Direction::Trim] = BlockSize::Fixed(7);
        assert_eq!(job.validate(), Ok(()));
    }
}
