//! The holes of a file, as SEEK_HOLE and SEEK_DATA know them. Behind the end of a file that has become shorter nothing is a
//! hole: a reader has to meet the error.

use blkmq_core::Extent;
use nix::errno::Errno;
use nix::unistd::{Whence, lseek64};
use std::fs::File;
use std::io;
use std::ops::Range;

/// The place in `file` that `whence` means, from `at` on.
pub(crate) fn seek(file: &File, at: u64, whence: Whence) -> nix::Result<u64> {
    let at = i64::try_from(at).map_err(|_| Errno::EINVAL)?;
    lseek64(file, at, whence).map(|found| found as u64)
}

/// The stretches of `range`: at least one, at most `most`. The last hole of the file ends with the last whole `block`.
pub(crate) fn of_file(
    file: &File,
    range: Range<u64>,
    block: u32,
    most: usize,
) -> io::Result<Vec<Extent>> {
    let mut extents = Vec::new();
    let mut at = range.start;
    while at < range.end && extents.len() < most.max(1) {
        let data = match seek(file, at, Whence::SeekData) {
            Ok(data) => data.min(range.end),
            // There is none behind: a hole to the end of the file.
            Err(Errno::ENXIO) => {
                let end = seek(file, 0, Whence::SeekEnd)?;
                let end = end - end % u64::from(block);
                if end <= at {
                    Extent::append(&mut extents, Extent { end: range.end, is_hole: false });
                    break;
                }
                end.min(range.end)
            }
            // Not a file with holes.
            Err(Errno::EINVAL) => at,
            Err(error) => return Err(error.into()),
        };
        if data > at {
            Extent::append(&mut extents, Extent { end: data, is_hole: true });
            at = data;
            continue;
        }
        let hole = match seek(file, at, Whence::SeekHole) {
            Ok(hole) if hole > at => hole.min(range.end),
            Ok(_) | Err(Errno::EINVAL | Errno::ENXIO) => range.end,
            Err(error) => return Err(error.into()),
        };
        Extent::append(&mut extents, Extent { end: hole, is_hole: false });
        at = hole;
    }
    Ok(extents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const KIB: u64 = 1024;

    #[test]
    fn holes_are_found_where_the_file_system_has_them() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(1024 * KIB).expect("it can be extended");
        file.write_all_at(&[1; 65536], 256 * KIB).expect("it can be written");
        let all = of_file(&file, 0..1024 * KIB, 512, 9).expect("it can be asked");
        if all == [Extent { end: 1024 * KIB, is_hole: false }] {
            // A file system without holes.
            return;
        }
        let expected = [(256 * KIB, true), (320 * KIB, false), (1024 * KIB, true)];
        assert_eq!(all.iter().map(|it| (it.end, it.is_hole)).collect::<Vec<_>>(), expected);
        assert_eq!(of_file(&file, 0..1024 * KIB, 512, 2).expect("likewise"), all[..2]);
        let inside = of_file(&file, 300 * KIB..310 * KIB, 512, 9).expect("likewise");
        assert_eq!(inside, [Extent { end: 310 * KIB, is_hole: false }]);
    }

    /// Regression test: behind the end of a file that had been cut short there was a hole.
    #[test]
    fn a_hole_ends_with_the_file() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(64 * KIB + 700).expect("it can be extended");
        let stored = [Extent { end: 256 * KIB, is_hole: false }];
        let hole = [Extent { end: 64 * KIB, is_hole: true }, stored[0]];
        let all = of_file(&file, 0..256 * KIB, 4096, 9).expect("it can be asked");
        assert!(all == hole || all == stored, "{all:?}");
        assert_eq!(of_file(&file, 64 * KIB..256 * KIB, 4096, 9).expect("likewise"), stored);
        assert_eq!(of_file(&file, 128 * KIB..256 * KIB, 512, 9).expect("likewise"), stored);
    }

    #[test]
    fn what_has_no_holes_is_all_stored() {
        let zero = File::open("/dev/zero").expect("it is everywhere");
        let all = of_file(&zero, 512..4096, 512, 9).expect("it says that it cannot");
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].end, 4096);
    }
}
