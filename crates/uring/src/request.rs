//! One request at the kernel: the operation, its progress, and the meaning of an answer.
//!
//! It makes entries and judges answers, without access to a ring. For devices without a ring, [`Request::perform`]
//! makes system calls on the calling thread.

use crate::parts::{Descriptor, Files, Kind, Stretch, ZeroBy};
use crate::ring::Ring;
use blkmq_buf::IoBuf;
use blkmq_core::{IoError, IoFlags, IoResult, SECTOR_SIZE};
use blkmq_engine::{BioTable, Inflight};
use blkmq_threads::Step;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};
use std::fs::File;
use std::os::fd::AsRawFd;

/// A place for one request.
pub(crate) struct Request {
    /// `None` while the place is free.
    pub(crate) rq: Option<Inflight>,
    kind: Kind,
    /// The file of the entry.
    file: u32,
    /// The first and the last of the files that the request goes to.
    first_file: u32,
    last_file: u32,
    /// The position in the file and the length of the rest to be done there, in bytes.
    offset: u64,
    left: u64,
    /// The memory of a read or write, with adjacent pieces joined. It must not move while the kernel has the entry. The
    /// list keeps its capacity.
    pieces: Vec<libc::iovec>,
    /// The capacity of `pieces` when the place last became free.
    counted: u32,
    /// The first piece that is not done.
    first: usize,
    /// The number of pieces at the end that are for further files.
    behind: usize,
    /// The registered piece of memory that contains all of it; `None` if there is none.
    fixed: Option<u16>,
    /// The engine has given it up, so it is not submitted again.
    pub(crate) given_up: bool,
    /// A flush follows: the request is a discard or zeroes with `FUA`, whose operation has no flag for it.
    then_flush: bool,
}

// SAFETY: the pointers lead to payloads of the I/O that `rq` stands for. They are passed to the kernel and never
// dereferenced here, so it does not matter which thread holds them.
unsafe impl Send for Request {}

impl Request {
    /// A free place. Allocates nothing.
    pub(crate) fn new() -> Self {
        Self {
            rq: None,
            kind: Kind::Flush,
            file: 0,
            first_file: 0,
            last_file: 0,
            offset: 0,
            left: 0,
            pieces: Vec::new(),
            counted: 0,
            first: 0,
            behind: 0,
            fixed: None,
            given_up: false,
            then_flush: false,
        }
    }

    /// Takes the place for a request. [`gather`](Self::gather) adds the memory.
    #[inline]
    pub(crate) fn begin(&mut self, rq: &Inflight, kind: Kind, stretch: Stretch) {
        self.kind = kind;
        (self.first_file, self.last_file) = stretch.files.into_inner();
        self.file = self.first_file;
        self.offset = stretch.bytes.start;
        self.left = stretch.bytes.end - stretch.bytes.start;
        self.clear();
        self.fixed = None;
        self.given_up = false;
        let has_no_flag = matches!(kind, Kind::Discard | Kind::Zero(_));
        self.then_flush = has_no_flag && rq.flags().contains(IoFlags::FUA);
    }

    /// The number of the file of the next entry.
    #[inline]
    pub(crate) fn file(&self) -> usize {
        self.file as usize
    }

    /// Removes the memory of the previous request.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        (self.first, self.behind) = (0, 0);
    }

    /// The capacity of the list of pieces when it was last counted, in entries.
    #[inline]
    pub(crate) fn counted(&self) -> usize {
        self.counted as usize
    }

    /// Counts the capacity of the list of pieces.
    #[inline]
    pub(crate) fn count(&mut self) {
        self.counted = self.pieces.capacity() as u32;
    }

    /// Frees the list of pieces. The place must be free, or become so.
    #[cold]
    pub(crate) fn forget_list(&mut self) {
        (self.pieces, self.counted) = (Vec::new(), 0);
    }

    /// The capacity of the list of pieces, in entries.
    #[cfg(test)]
    pub(crate) fn room(&self) -> usize {
        self.pieces.capacity()
    }

    /// Adds the next bytes of memory.
    #[inline]
    pub(crate) fn add(&mut self, start: *mut u8, len: usize) {
        if len == 0 {
            return;
        }
        if let Some(last) = self.pieces.last_mut()
            && last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == start
        {
            last.iov_len += len;
        } else {
            self.pieces.push(libc::iovec { iov_base: start.cast(), iov_len: len });
        }
    }

    /// Adds the memory of a read or write. Each piece has to begin and end at multiples of `alignment` bytes.
    ///
    /// # Errors
    /// [`IoError::INVALID`] if a piece does not, or the memory is not as long as the I/O.
    #[inline]
    pub(crate) fn gather<P: IoBuf>(
        &mut self,
        bios: &BioTable<P>,
        rq: &Inflight,
        alignment: u32,
    ) -> IoResult {
        let mask = alignment as usize - 1;
        for bio in rq.bios(bios) {
            let (mut bytes, mut places) = (0, 0);
            for range in bio.payload.ranges() {
                let (start, len) = (range.cast::<u8>(), range.len());
                bytes += len as u64;
                places |= start as usize | len;
                self.add(start, len);
            }
            let is_whole = bytes == u64::from(bio.sectors) * u64::from(SECTOR_SIZE);
            // Some file systems silently use the page cache for an unaligned I/O.
            let is_aligned = places & mask == 0;
            if !is_whole || !is_aligned {
                return Err(IoError::INVALID);
            }
        }
        if self.file < self.last_file {
            self.bound();
        }
        Ok(())
    }

    /// Leaves the memory after the next `left` bytes for further files.
    #[cold]
    fn bound(&mut self) {
        let (mut left, mut at) = (self.left as usize, self.first);
        while left > 0 {
            let piece = &mut self.pieces[at];
            if piece.iov_len > left {
                let iov_base = piece.iov_base.wrapping_byte_add(left);
                let rest = libc::iovec { iov_base, iov_len: piece.iov_len - left };
                piece.iov_len = left;
                self.pieces.insert(at + 1, rest);
            }
            left -= self.pieces[at].iov_len;
            at += 1;
        }
        self.behind = self.pieces.len() - at;
    }

    /// The memory of the rest to be done in the present file.
    #[inline]
    fn list(&self) -> &[libc::iovec] {
        &self.pieces[self.first..self.pieces.len() - self.behind]
    }

    /// Continues with the next of the files.
    #[cold]
    fn turn(&mut self, files: &Files) {
        self.file += 1;
        if self.kind == Kind::Flush {
            return;
        }
        let rq = self.rq.as_ref().expect("a request has its token");
        let sectors = rq.sector()..rq.sector() + u64::from(rq.sectors());
        let mut bytes = files.bytes(self.file, &sectors);
        while bytes.is_empty() {
            self.file += 1;
            bytes = files.bytes(self.file, &sectors);
        }
        (self.offset, self.left) = (bytes.start, bytes.end - bytes.start);
        if self.kind.moves_data() {
            self.first = self.pieces.len() - self.behind;
            self.bound();
        }
    }

    /// Finds the registered piece that contains the memory, if there is one. To be called after the last
    /// [`add`](Self::add).
    #[inline]
    pub(crate) fn find_fixed(&mut self, ring: &Ring) {
        if self.pieces.len() > 1 && !ring.has_vectored_fixed {
            return;
        }
        let mut pieces = self.pieces.iter().map(|p| ring.piece_of(p.iov_base as usize, p.iov_len));
        let first = pieces.next().flatten();
        self.fixed = first.filter(|_| pieces.all(|piece| piece == first));
    }

    /// Returns whether the rest to be done is a read or a write.
    #[inline]
    pub(crate) fn moves_data(&self) -> bool {
        self.kind.moves_data()
    }

    /// The entry for the rest to be done.
    #[inline]
    pub(crate) fn entry(&self, target: Descriptor) -> squeue::Entry {
        let fd = Fd(target.fd);
        let entry = match self.kind {
            Kind::Read => self.read(fd),
            Kind::Write { durable } => self.write(fd, if durable { libc::RWF_DSYNC } else { 0 }),
            Kind::Flush => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Kind::Discard | Kind::Zero(ZeroBy::Hole) => {
                self.allocate(fd, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
            }
            Kind::Zero(ZeroBy::Range) => {
                self.allocate(fd, libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE)
            }
        };
        entry.flags(target.flags)
    }

    #[inline]
    fn read(&self, fd: Fd) -> squeue::Entry {
        let (at, pieces) = (self.offset, self.list());
        let (start, len) = (pieces[0].iov_base.cast::<u8>(), pieces[0].iov_len as u32);
        let (list, count) = (pieces.as_ptr(), pieces.len() as u32);
        match self.fixed {
            None if count == 1 => opcode::Read::new(fd, start, len).offset(at).build(),
            None => opcode::Readv::new(fd, list, count).offset(at).build(),
            Some(n) if count == 1 => opcode::ReadFixed::new(fd, start, len, n).offset(at).build(),
            Some(n) => opcode::ReadvFixed::new(fd, list, count, n).offset(at).build(),
        }
    }

    #[inline]
    fn write(&self, fd: Fd, flags: i32) -> squeue::Entry {
        let (at, pieces) = (self.offset, self.list());
        let (start, len) = (pieces[0].iov_base.cast::<u8>(), pieces[0].iov_len as u32);
        let (list, count) = (pieces.as_ptr(), pieces.len() as u32);
        match self.fixed {
            None if count == 1 => {
                opcode::Write::new(fd, start, len).offset(at).rw_flags(flags).build()
            }
            None => opcode::Writev::new(fd, list, count).offset(at).rw_flags(flags).build(),
            Some(n) if count == 1 => {
                opcode::WriteFixed::new(fd, start, len, n).offset(at).rw_flags(flags).build()
            }
            Some(n) => {
                opcode::WritevFixed::new(fd, list, count, n).offset(at).rw_flags(flags).build()
            }
        }
    }

    fn allocate(&self, fd: Fd, mode: i32) -> squeue::Entry {
        opcode::Fallocate::new(fd, self.left).offset(self.offset).mode(mode).build()
    }

    /// Judges the kernel's answer: bytes, or a negative errno. `files` are those of the device, and `block` is its
    /// logical block size.
    ///
    /// `EINTR` and `ECANCELED` are no results of the I/O, like `EAGAIN`: unless the engine gave the request up, the
    /// thread that submitted it ended before the kernel began.
    #[inline]
    pub(crate) fn judge(&mut self, answer: i32, files: &Files, block: u32) -> Step {
        match answer {
            n if n >= 0 && self.kind.moves_data() => match self.advance(n as u64, block) {
                Step::Done(Ok(())) if self.file < self.last_file => {
                    self.turn(files);
                    Step::Again
                }
                step => step,
            },
            0.. if self.file < self.last_file => {
                self.turn(files);
                Step::Again
            }
            0.. if self.then_flush => {
                self.then_flush = false;
                (self.kind, self.file) = (Kind::Flush, self.first_file);
                Step::Again
            }
            0.. => Step::Done(Ok(())),
            n if [libc::EAGAIN, libc::EINTR, libc::ECANCELED].contains(&-n) => {
                if self.given_up {
                    Step::Done(Err(IoError::TIMED_OUT))
                } else {
                    Step::Later
                }
            }
            n if -n == libc::EOPNOTSUPP && self.kind == Kind::Zero(ZeroBy::Hole) => {
                self.kind = Kind::Zero(ZeroBy::Range);
                Step::Again
            }
            n => Step::Done(Err(IoError(u16::try_from(-n).unwrap_or(IoError::IO.0)))),
        }
    }

    /// Accounts for `done` bytes moved. A short transfer continues after the last whole block, since direct I/O can
    /// begin nowhere else. A transfer without progress is at the end of a file that has become shorter.
    #[inline]
    fn advance(&mut self, done: u64, block: u32) -> Step {
        if done >= self.left {
            return Step::Done(Ok(()));
        }
        let mut done = done - done % u64::from(block);
        if done == 0 {
            return Step::Done(Err(IoError::IO));
        }
        self.offset += done;
        self.left -= done;
        while done > 0 {
            let piece = &mut self.pieces[self.first];
            let part = done.min(piece.iov_len as u64);
            piece.iov_base = piece.iov_base.wrapping_byte_add(part as usize);
            piece.iov_len -= part as usize;
            self.first += usize::from(piece.iov_len == 0);
            done -= part;
        }
        Step::Again
    }

    /// Does the whole request on the calling thread, which sleeps for as long as that takes; [`Step::Later`] if an
    /// answer of the kernel is no result of the I/O. Arguments as for [`judge`](Self::judge).
    ///
    /// # Panics
    /// If the request holds no token, so that its memory may be gone.
    pub(crate) fn perform(&mut self, files: &Files, block: u32) -> Step {
        assert!(self.rq.is_some(), "a request without its token");
        loop {
            let answer = self.call(&files.at(self.file()).open);
            match self.judge(answer, files, block) {
                Step::Again => {}
                step => return step,
            }
        }
    }

    /// Makes one system call for the rest to be done. Returns the kernel's answer: bytes, or a negative errno.
    fn call(&self, file: &File) -> i32 {
        let fd = file.as_raw_fd();
        let (pieces, count) = (self.list().as_ptr(), self.list().len());
        let (at, len) = (self.offset as libc::off64_t, self.left as libc::off64_t);
        // Requests are smaller than the most bytes that one call moves.
        let count = count as i32;
        let durable = matches!(self.kind, Kind::Write { durable: true });
        let flags = if durable { libc::RWF_DSYNC } else { 0 };
        // SAFETY: `fd` is open while `file` is borrowed. The kernel reaches memory only during the call, through
        // `count` pieces that lie in `self`. They point to payloads of the I/O whose token is in `self` (`perform` has
        // looked), and payloads stay in place while their token is not back in the engine. A piece shrinks only by the
        // bytes moved.
        let answer = unsafe {
            match self.kind {
                Kind::Read => libc::preadv2(fd, pieces, count, at, 0),
                Kind::Write { .. } => libc::pwritev2(fd, pieces, count, at, flags),
                Kind::Flush => libc::fdatasync(fd) as isize,
                Kind::Discard | Kind::Zero(ZeroBy::Hole) => {
                    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                    libc::fallocate64(fd, mode, at, len) as isize
                }
                Kind::Zero(ZeroBy::Range) => {
                    let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
                    libc::fallocate64(fd, mode, at, len) as isize
                }
            }
        };
        match i32::try_from(answer) {
            Ok(answer) if answer >= 0 => answer,
            Ok(_) => -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
            // This is more than any request has.
            Err(_) => i32::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::Order;
    use blkmq_buf::{AlignedBuf, BufferPool};
    use blkmq_core::Payload;

    /// A transfer at 8192 in pieces of `lens` bytes that do not touch.
    fn request(kind: Kind, lens: &[usize]) -> Request {
        let mut request = Request::new();
        request.kind = kind;
        request.offset = 8192;
        request.left = lens.iter().sum::<usize>() as u64;
        for (n, len) in lens.iter().enumerate() {
            request.add(std::ptr::without_provenance_mut((n + 1) << 20), *len);
        }
        request
    }

    /// The files of requests that go to one.
    fn no_files() -> Files {
        Files::new(&[], Order::Sequence, true)
    }

    fn rest(request: &Request) -> Vec<(usize, usize)> {
        request.pieces[request.first..].iter().map(|p| (p.iov_base as usize, p.iov_len)).collect()
    }

    #[test]
    fn memory_that_touches_is_one_piece() {
        let mut request = request(Kind::Read, &[4096]);
        request.add(std::ptr::without_provenance_mut((1 << 20) + 4096), 4096);
        request.add(std::ptr::without_provenance_mut(1 << 19), 512);
        assert_eq!(rest(&request), [(1 << 20, 8192), (1 << 19, 512)]);
    }

    #[test]
    fn what_has_no_flag_is_made_durable_by_a_flush() {
        let mut zeroes = request(Kind::Zero(ZeroBy::Range), &[]);
        zeroes.then_flush = true;
        assert_eq!(zeroes.judge(0, &no_files(), 512), Step::Again);
        let entry = zeroes.entry(Descriptor { fd: 0, flags: squeue::Flags::empty() });
        assert_eq!(entry.get_opcode() as u8, opcode::Fsync::CODE);
        assert_eq!(zeroes.judge(0, &no_files(), 512), Step::Done(Ok(())));
    }

    #[test]
    fn a_flush_goes_to_every_file_and_ends_with_the_first_error() {
        let flush = |answers: &[i32]| {
            let mut flush = request(Kind::Flush, &[]);
            (flush.file, flush.last_file) = (0, 2);
            Vec::from_iter(
                answers.iter().map(|answer| (flush.judge(*answer, &no_files(), 512), flush.file())),
            )
        };
        let done = Step::Done(Ok(()));
        assert_eq!(flush(&[0, 0, 0]), [(Step::Again, 1), (Step::Again, 2), (done, 2)]);
        let failed = Step::Done(Err(IoError::IO));
        assert_eq!(flush(&[0, -libc::EIO]), [(Step::Again, 1), (failed, 1)]);
    }

    #[test]
    fn memory_decides_about_the_operation() {
        let test = "memory_decides_about_the_operation";
        let Ok(mut ring) = Ring::new(1) else {
            println!("skipped {test}: no io_uring");
            return;
        };
        let pool = BufferPool::new(3, 4096);
        ring.register_buffers(std::slice::from_ref(&pool)).expect("a few pages");
        let pooled: [_; 3] = std::array::from_fn(|_| pool.take().expect("free"));
        let range = |buf: &AlignedBuf| buf.ranges().next().expect("it has one");
        let [a, b, c] = pooled.each_ref().map(range);
        let memory = AlignedBuf::new(4096);
        let other = range(&memory);
        let opcodes = |ring: &Ring, ranges: &[*mut [u8]]| {
            [Kind::Read, Kind::Write { durable: false }].map(|kind| {
                let mut request = request(kind, &[]);
                ranges.iter().for_each(|range| request.add(range.cast(), range.len()));
                request.find_fixed(ring);
                request.entry(Descriptor { fd: 0, flags: squeue::Flags::empty() }).get_opcode()
                    as u8
            })
        };
        let fixed = [opcode::ReadFixed::CODE, opcode::WriteFixed::CODE];
        let vectored = [opcode::Readv::CODE, opcode::Writev::CODE];
        assert_eq!(opcodes(&ring, &[a]), fixed);
        assert_eq!(opcodes(&ring, &[a, b, c]), fixed, "one piece");
        assert_eq!(opcodes(&ring, &[other]), [opcode::Read::CODE, opcode::Write::CODE]);
        assert_eq!(opcodes(&ring, &[a, other]), vectored);
        ring.has_vectored_fixed = false;
        assert_eq!(opcodes(&ring, &[c, a]), vectored);
        ring.has_vectored_fixed = true;
        let both = [opcode::ReadvFixed::CODE, opcode::WritevFixed::CODE];
        assert_eq!(opcodes(&ring, &[c, a]), both);
    }

    #[test]
    fn a_short_transfer_goes_on_where_it_stopped() {
        let mut request = request(Kind::Write { durable: false }, &[4096, 4096, 4096]);
        assert_eq!(request.judge(5120, &no_files(), 512), Step::Again);
        assert_eq!((request.offset, request.left), (8192 + 5120, 12288 - 5120));
        assert_eq!(rest(&request), [((2 << 20) + 1024, 3072), (3 << 20, 4096)]);
        // The transfer ends within a block: that block is done once more.
        assert_eq!(request.judge(3072 + 700, &no_files(), 512), Step::Again);
        assert_eq!(rest(&request), [((3 << 20) + 512, 3584)]);
        assert_eq!(request.judge(3584, &no_files(), 512), Step::Done(Ok(())));
    }

    #[test]
    fn the_end_of_the_file_is_an_error() {
        for answer in [0, 300] {
            let step = request(Kind::Read, &[4096]).judge(answer, &no_files(), 512);
            assert_eq!(step, Step::Done(Err(IoError::IO)), "{answer}");
        }
    }

    #[test]
    fn errors_keep_their_number_and_passing_ones_are_tried_again() {
        let mut request = request(Kind::Read, &[4096]);
        for errno in [libc::EAGAIN, libc::EINTR, libc::ECANCELED] {
            assert_eq!(request.judge(-errno, &no_files(), 512), Step::Later);
        }
        for errno in [libc::EIO, libc::ENOSPC, libc::EOPNOTSUPP] {
            let step = request.judge(-errno, &no_files(), 512);
            assert_eq!(step, Step::Done(Err(IoError(errno as u16))));
        }
        assert_eq!(rest(&request), [(1 << 20, 4096)], "nothing has been done");
    }

    #[test]
    fn what_moves_no_data_is_done_at_once_and_zeroes_have_a_second_way() {
        assert_eq!(request(Kind::Flush, &[]).judge(0, &no_files(), 512), Step::Done(Ok(())));
        assert_eq!(request(Kind::Discard, &[]).judge(0, &no_files(), 512), Step::Done(Ok(())));
        let mut zeroes = request(Kind::Zero(ZeroBy::Hole), &[]);
        assert_eq!(zeroes.judge(-libc::EOPNOTSUPP, &no_files(), 512), Step::Again);
        assert_eq!(zeroes.kind, Kind::Zero(ZeroBy::Range), "it may keep its room");
        let step = zeroes.judge(-libc::EOPNOTSUPP, &no_files(), 512);
        assert_eq!(step, Step::Done(Err(IoError::NOT_SUPPORTED)));
    }
}
