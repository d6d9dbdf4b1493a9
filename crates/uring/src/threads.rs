//! Requests of files as work for the threads of `blkmq-threads`, where io_uring is forbidden.

use crate::kind::{Kind, ZeroBy};
use crate::parts::{self, Files, Order, Part};
use crate::request::Request;
use blkmq_buf::IoBuf;
use blkmq_core::IoResult;
use blkmq_engine::{BioTable, Inflight};
use blkmq_threads::{Source, Step, Work};

/// Pieces of memory that the list of a free request keeps room for, at 16 bytes each.
const KEPT: usize = 64;

/// The files of a device, for its threads.
pub(crate) struct Opened {
    files: Files,
    /// The logical block size.
    block: u32,
}

impl Opened {
    pub(crate) fn new(parts: &[Part]) -> Self {
        let files = Files::new(parts, Order::Sequence, false);
        Self { files, block: parts::alignment(parts).block }
    }
}

impl Work for Request {
    type Files = Opened;

    fn token(&self) -> Option<&Inflight> {
        self.rq.as_ref()
    }

    fn token_mut(&mut self) -> &mut Option<Inflight> {
        &mut self.rq
    }

    fn perform(&mut self, opened: &Opened) -> Step {
        self.perform(&opened.files, opened.block)
    }

    fn rest(&mut self) {
        self.count();
        if self.counted() > KEPT {
            self.forget_list();
        }
    }
}

/// Makes the work of a hardware queue.
pub(crate) struct Requests {
    files: Files,
    alignment: u32,
    zero: ZeroBy,
}

impl Requests {
    pub(crate) fn new(parts: &[Part]) -> Self {
        let alignment = parts::alignment(parts).memory;
        let files = Files::new(parts, Order::Sequence, false);
        Self { files, alignment, zero: parts::zeroes(parts) }
    }
}

impl Source for Requests {
    type Work = Request;

    fn blank(&self) -> Request {
        Request::new()
    }

    fn begin<P: IoBuf>(&self, work: &mut Request, bios: &BioTable<P>, rq: &Inflight) -> IoResult {
        let kind = Kind::of(rq, self.zero);
        work.begin(rq, kind, self.files.admit(rq, kind)?);
        if kind.moves_data() { work.gather(bios, rq, self.alignment) } else { Ok(()) }
    }

    fn failed(&self, work: &Request) {
        self.files.at(work.file()).present.find_end();
    }
}
