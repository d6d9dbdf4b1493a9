//! A request done by system calls of the calling thread, for devices without a ring.

use super::{Kind, Request, Step, ZeroBy};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

impl Request {
    /// Does it on the calling thread, which sleeps as long as that takes: all of it, unless an answer of the kernel says
    /// nothing about the I/O ([`Step::Later`]). `files` are those of the device, `block` is its logical block size.
    ///
    /// # Panics
    /// If the request holds no token: its memory may be gone.
    pub(crate) fn perform(&mut self, files: &[Arc<File>], block: u32) -> Step {
        assert!(self.rq.is_some(), "a request without its token");
        loop {
            let answer = self.call(&files[self.file()]);
            match self.judge(answer, block) {
                Step::Again => {}
                step => return step,
            }
        }
    }

    /// One system call for the rest to be done: the kernel's answer, in bytes, or an errno below 0.
    fn call(&self, file: &File) -> i32 {
        let fd = file.as_raw_fd();
        let (pieces, count) = (self.pieces[self.first..].as_ptr(), self.pieces.len() - self.first);
        let (at, len) = (self.offset as libc::off64_t, self.left as libc::off64_t);
        // The largest requests are smaller than the most bytes that one call moves.
        let count = count as i32;
        let durable = matches!(self.kind, Kind::Write { durable: true });
        let flags = if durable { libc::RWF_DSYNC } else { 0 };
        // SAFETY: `fd` is open while `file` is borrowed. The kernel reaches memory only during the call, through `count`
        // pieces that lie in `self`. They point to payloads of the I/O whose token is in `self` (`perform` has looked), and
        // payloads stay in place while their token is not back in the engine. A piece shrinks only by the bytes moved.
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
            // More than any request has.
            Err(_) => i32::MAX,
        }
    }
}
