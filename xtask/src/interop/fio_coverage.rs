//! The sectors that a run has reached, from the logs that it has written with `log_offset`.

use crate::Result;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const SECTOR: u64 = 512;

/// The number of different sectors in the latency logs in `folder`.
pub(super) fn covered(folder: &Path) -> Result<usize> {
    let mut sectors = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.contains("_lat.") && name.ends_with(".log") {
            fs::read_to_string(&path)?.lines().for_each(|line| add(line, &mut sectors));
        }
    }
    Ok(sectors.len())
}

/// Adds the sectors of one I/O: time, latency, direction, length, offset. A flush has none.
fn add(line: &str, sectors: &mut BTreeSet<u64>) {
    let fields = Vec::from_iter(line.split(',').map(|field| field.trim().parse::<u64>()));
    if let [_, _, Ok(0..=2), Ok(bytes), Ok(offset), ..] = fields[..] {
        sectors.extend(offset / SECTOR..(offset + bytes).div_ceil(SECTOR));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_count_once_and_flushes_not_at_all() {
        let mut sectors = BTreeSet::new();
        for line in ["1, 20, 0, 1024, 512", "2, 20, 1, 1024, 1024, 0", "3, 9, 3, 4096, 0", "?"] {
            add(line, &mut sectors);
        }
        assert_eq!(sectors, BTreeSet::from([1, 2, 3]));
    }
}
