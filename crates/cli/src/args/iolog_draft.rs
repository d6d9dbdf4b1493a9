//! The options of a job that replays a trace: `read_iolog` and its companions.

use crate::trace::Source;
use crate::trace::tapes::{Loaded, Scaling};
use blkmq_core::{Op, SECTOR_SIZE};
use blkmq_lab::workload::{BlockSize, Job, PerDirection, Rw, Tape, Taped};
use blkmq_recording::Layout;
use blkmq_terminal::UsageError;
use std::sync::Arc;

/// `read_iolog` and its companions.
#[derive(Clone, PartialEq, Debug)]
pub struct IologDraft {
    /// `read_iolog`.
    pub file: Option<String>,
    /// `replay_no_stall`.
    pub no_stall: bool,
    /// `replay_time_scale`, in percent of the rate.
    pub time_scale: u32,
    /// `replay_scale`.
    pub scale: u32,
    /// `replay_align`, in bytes; a power of two.
    pub align: u32,
    /// `replay_skip`.
    pub skip: Vec<Op>,
}

impl Default for IologDraft {
    fn default() -> Self {
        let (file, no_stall, skip) = (None, false, Vec::new());
        Self { file, no_stall, time_scale: 100, scale: 1, align: SECTOR_SIZE, skip }
    }
}

impl IologDraft {
    /// Replaces the pattern of `job` by the I/Os of its trace, if it has one. Appends options that lose their effect to
    /// `notes`.
    ///
    /// # Errors
    /// If the trace cannot be read, or the job checks contents.
    pub fn finish(self, job: &mut Job, notes: &mut Vec<String>) -> Result<(), UsageError> {
        let Some(file) = &self.file else {
            if self != Self::default() {
                let name = &job.name;
                notes.push(format!("job '{name}': replay options: no effect without read_iolog"));
            }
            return Ok(());
        };
        if job.verify.is_some() {
            let text = "verify: a trace has no contents; accepted: read_iolog without it";
            return Err(UsageError::new(text));
        }
        let scaling = Scaling {
            speed: f64::from(self.time_scale) / 100.0,
            space: 1.0 / f64::from(self.scale),
            think: false,
            tenants: 1,
            most: u64::MAX,
            layout: Layout::Concat,
            align: SECTOR_SIZE.into(),
        };
        let mut loaded = Loaded::read(&Source::in_file(file), &scaling)?;
        loaded.leave_out(&self.skip);
        // A device that is too small is found with the device.
        let tenants = loaded.tenants(&scaling, u64::MAX)?;
        let ios = tenants.iter().flat_map(|it| it.tape.ios());
        let tape = Tape::new(ios.map(|taped| self.aligned(*taped)).collect());
        let name = &job.name;
        let mut note = |text: &str| notes.push(format!("job '{name}': {text}"));
        loaded.notes.iter().for_each(|text| note(text));
        let idle = [
            (job.loops > 1, "loops"),
            (job.time_based, "time_based"),
            (job.io_size.is_some(), "io_size"),
            (job.number_ios.is_some(), "number_ios"),
        ];
        for (_, option) in idle.iter().filter(|(given, _)| *given) {
            note(&format!(
                "{option}: no effect with read_iolog, which is replayed once, as in fio"
            ));
        }
        let is_timed = !self.no_stall && !loaded.is_untimed();
        // Buffers must fit the longest I/O.
        let longest = tenants.iter().map(|it| it.longest).max().unwrap_or(0);
        let longest = u32::try_from(longest).expect("readers refuse lengths above 1 GiB");
        job.bs = PerDirection::all(BlockSize::Fixed(longest.max(SECTOR_SIZE)));
        (job.rw, job.loops, job.time_based) = (Rw::RandRw, 1, false);
        (job.io_size, job.number_ios) = (None, None);
        job.tape = Some(Arc::new(if is_timed { tape } else { tape.without_times() }));
        Ok(())
    }

    fn aligned(&self, mut taped: Taped) -> Taped {
        taped.io.sector -= taped.io.sector % u64::from(self.align / SECTOR_SIZE);
        taped
    }
}
