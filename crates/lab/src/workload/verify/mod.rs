//! Verification: the meaning of fio's `verify` and its companions, and the pure parts that carry it out.
//!
//! A job that verifies works in blocks of `verify_interval` bytes. The data written into a block identifies the block
//! and the write of it (`layout.rs`), a table remembers the latest write of each block (`table.rs`), and [`Verifier`]
//! combines both for the code that drives a queue. Nothing here issues an I/O, owns a buffer, or knows the time.

mod layout;
mod options;
mod table;
mod verifier;

use super::{BlockSize, Job, Rw};
use blkmq_core::SECTOR_SIZE;
pub use options::{Fault, Findings, Method, Mismatch, Pattern, PatternError, Verify, VerifyError};
pub use table::StateError;
pub use verifier::Verifier;

impl Job {
    /// Checks `verify` and its companions against the rest of the job.
    pub(super) fn validate_verify(&self) -> Result<(), VerifyError> {
        let Some(verify) = &self.verify else { return Ok(()) };
        let unit = self.io_unit();
        if let Some(interval) = verify.interval
            && (interval == 0
                || !interval.is_multiple_of(SECTOR_SIZE)
                || !unit.is_multiple_of(interval))
        {
            return Err(VerifyError::Interval { interval, unit });
        }
        if verify.method == Method::Pattern && verify.pattern.is_none() {
            return Err(VerifyError::NoPattern);
        }
        match self.rw {
            Rw::Trim | Rw::RandTrim => Err(VerifyError::OnlyTrims),
            Rw::Read | Rw::RandRead if verify.only => Err(VerifyError::OnlyReads),
            Rw::Read | Rw::RandRead => Ok(()),
            _ if verify.only && !verify.do_verify => Err(VerifyError::Nothing),
            _ if verify.state_load && !verify.only => Err(VerifyError::StateOfWriter),
            _ if verify.only && self.runtime.is_some() && !verify.state_load => {
                Err(VerifyError::Timed)
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the job reads back the data that it has written.
    pub(super) fn is_read_back(&self) -> bool {
        let writes = !matches!(self.rw, Rw::Read | Rw::RandRead);
        writes && self.verify.as_ref().is_some_and(|verify| verify.do_verify)
    }

    /// The longest `verify_interval` that divides `interval` and every I/O, in bytes.
    #[must_use]
    pub fn common_interval(&self, interval: u32) -> u32 {
        gcd(interval, self.io_unit())
    }

    /// The most bytes that divide the length of every I/O, and its distance from the start of the region.
    pub(super) fn io_unit(&self) -> u32 {
        let mut unit = 0;
        for &direction in self.rw.directions() {
            match &self.bs[direction] {
                BlockSize::Fixed(bs) => unit = gcd(unit, *bs),
                // All sizes between are multiples of the smallest.
                BlockSize::Range { min, max } => unit = gcd(gcd(unit, *min), *max),
                BlockSize::Split(parts) => parts.iter().for_each(|(bs, _)| unit = gcd(unit, *bs)),
            }
            unit = gcd(unit, self.blockalign[direction].unwrap_or(0));
        }
        // So much lies between two I/Os, or two zones.
        let zones = self.strided.map_or([0; 2], |zones| [zones.range, zones.skip]);
        for gap in [self.hole.unsigned_abs(), zones[0], zones[1]] {
            let rest = if unit == 0 { 0 } else { gap % u64::from(unit) };
            unit = gcd(unit, rest as u32);
        }
        unit
    }
}

/// The greatest common divisor; 0 divides nothing and is ignored.
fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::super::{Direction, PerDirection, Strided};
    use super::*;
    use blkmq_core::Nanos;

    fn job(rw: Rw, verify: Verify) -> Job {
        Job { rw, verify: Some(verify), ..Job::default() }
    }

    #[test]
    fn the_unit_divides_every_place_and_length() {
        let mut job = job(Rw::RandRw, Verify::new(Method::Crc32c));
        assert_eq!(job.io_unit(), 4096);
        job.bs[Direction::Write] = BlockSize::Split(vec![(8192, 50), (12288, 50)]);
        assert_eq!(job.io_unit(), 4096);
        job.bs[Direction::Write] = BlockSize::Range { min: 1536, max: 6144 };
        assert_eq!(job.io_unit(), 512);
        job.bs = PerDirection::all(BlockSize::Fixed(65536));
        job.blockalign = PerDirection::all(Some(16384));
        assert_eq!(job.io_unit(), 16384);
        job.bs[Direction::Trim] = BlockSize::Fixed(512);
        assert_eq!(job.io_unit(), 16384, "it does not trim");
    }

    /// Regression test: a write of 6 KiB behind a gap of 8 KiB lay across two blocks of verification, and the thread panicked.
    #[test]
    fn the_unit_divides_gaps() {
        let mut job = job(Rw::Write, Verify::new(Method::Null));
        (job.bs, job.hole) = (PerDirection::all(BlockSize::Fixed(6 * 1024)), 8 * 1024);
        assert_eq!(job.io_unit(), 2048);
        job.hole = -3 * 1024;
        assert_eq!(job.io_unit(), 3072);
        job.hole = 0;
        job.strided = Some(Strided { size: 12288, range: 12288, skip: 512 });
        assert_eq!(job.io_unit(), 512);
    }

    #[test]
    fn what_cannot_be_verified_is_refused_by_name() {
        let verify = Verify::new(Method::Crc32c);
        let interval = |interval| Verify { interval: Some(interval), ..verify.clone() };
        let only = Verify { only: true, ..verify.clone() };
        let loads = Verify { state_load: true, ..verify.clone() };
        let timed = Job { runtime: Some(Nanos::from_secs(1)), ..job(Rw::Write, only.clone()) };
        for (job, expected) in [
            (job(Rw::Write, interval(0)), "verify_interval=0"),
            (job(Rw::Write, interval(256)), "verify_interval=256"),
            (job(Rw::Write, interval(1536)), "verify_interval=1536"),
            (job(Rw::Write, interval(8192)), "verify_interval=8192"),
            (job(Rw::Write, Verify::new(Method::Pattern)), "verify=pattern needs"),
            (job(Rw::RandTrim, verify.clone()), "verify of a job that only trims"),
            (job(Rw::RandRead, only.clone()), "verify_only repeats"),
            (job(Rw::Write, Verify { do_verify: false, ..only }), "verify_only with do_verify=0"),
            (timed, "verify_only of a job that ends by the clock"),
            (job(Rw::Write, loads), "verify_state_load without verify_only"),
        ] {
            let message = job.validate().expect_err(expected).to_string();
            assert!(message.starts_with(expected), "{message}");
        }
        assert_eq!(job(Rw::Write, interval(1024)).validate(), Ok(()));
    }

    #[test]
    fn every_word_is_its_method() {
        for (method, words) in Method::NAMES {
            assert!(words.iter().all(|word| Method::parse(word) == Some(method)));
            assert_eq!(Method::parse(&method.to_string()), Some(method));
        }
        assert_eq!(Method::parse("sha3"), None);
    }
}
