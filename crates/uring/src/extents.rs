//! The holes of a file, as SEEK_HOLE and SEEK_DATA know them.

use blkmq_core::Extent;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;

/// The stretches of `range`: at least one, at most `most`.
pub(crate) fn of_file(file: &File, range: Range<u64>, most: usize) -> io::Result<Vec<Extent>> {
    let mut extents = Vec::new();
    let mut at = range.start;
    while at < range.end && extents.len() < most.max(1) {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(range.end),
            // There is none behind.
            Err(Errno::NXIO) => range.end,
            // Not a file with holes.
            Err(Errno::INVAL) => at,
            Err(error) => return Err(error.into()),
        };
        if data > at {
            Extent::append(&mut extents, Extent { end: data, is_hole: true });
            at = data;
            continue;
        }
        let hole = match seek(file, SeekFrom::Hole(at)) {
            Ok(hole) if hole > at => hole.min(range.end),
            Ok(_) | Err(Errno::INVAL | Errno::NXIO) => range.end,
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
        let all = of_file(&file, 0..1024 * KIB, 9).expect("it can be asked");
        if all == [Extent { end: 1024 * KIB, is_hole: false }] {
            // A file system without holes.
            return;
        }
        let expected = [(256 * KIB, true), (320 * KIB, false), (1024 * KIB, true)];
        assert_eq!(all.iter().map(|it| (it.end, it.is_hole)).collect::<Vec<_>>(), expected);
        assert_eq!(of_file(&file, 0..1024 * KIB, 2).expect("likewise"), all[..2]);
        let inside = of_file(&file, 300 * KIB..310 * KIB, 9).expect("likewise");
        assert_eq!(inside, [Extent { end: 310 * KIB, is_hole: false }]);
    }

    #[test]
    fn what_has_no_holes_is_all_stored() {
        let zero = File::open("/dev/zero").expect("it is everywhere");
        let all = of_file(&zero, 512..4096, 9).expect("it says that it cannot");
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].end, 4096);
    }
}
