//! Images of virtual machines, by the bytes with which their formats begin.
//!
//! Such a file holds a disk in a form of its own. Its bytes are no disk: a guest would find no partition there, and a
//! write would ruin the image.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Names of formats, the place of their marks, and the marks.
const FORMATS: [(&str, usize, &[u8]); 9] = [
    ("qcow2", 0, b"QFI\xfb"),
    ("QED", 0, b"QED\0"),
    ("VMDK", 0, b"KDMV"),
    ("VMDK", 0, b"COWD"),
    ("VMDK", 0, b"# Disk DescriptorFile"),
    ("VHDX", 0, b"vhdxfile"),
    ("VHD", 0, b"conectix"),
    ("VDI", 64, b"\x7f\x10\xda\xbe"),
    ("Parallels", 0, b"WithoutFreeSpace"),
];

/// A VHD of a fixed size has its mark in the last bytes only.
const FOOTER: u64 = 512;

/// The name of the format of the image at `path`; `None` for every other file.
pub(crate) fn format_of(path: &Path) -> Option<&'static str> {
    let mut file = File::open(path).ok()?;
    let bytes = file.seek(SeekFrom::End(0)).ok()?;
    format(&file, bytes)
}

/// The name of the format of an image; `None` for everything else, also for a file that cannot be read.
fn format(file: &File, bytes: u64) -> Option<&'static str> {
    let mut head = [0; 512];
    let read = file.read_at(&mut head, 0).ok()?;
    let starts = |(_, at, mark): &(&str, usize, &[u8])| {
        head[..read].get(*at..).is_some_and(|rest| rest.starts_with(mark))
    };
    if let Some((name, ..)) = FORMATS.iter().find(|format| starts(format)) {
        return Some(name);
    }
    let mut footer = [0; 8];
    file.read_exact_at(&mut footer, bytes.checked_sub(FOOTER)?).ok()?;
    (&footer == b"conectix").then_some("VHD")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn format_of(parts: &[&[u8]]) -> Option<&'static str> {
        let mut file = tempfile::tempfile().expect("a file");
        parts.iter().for_each(|part| file.write_all(part).expect("there is room"));
        let bytes = file.metadata().expect("it is open").len();
        format(&file, bytes)
    }

    #[test]
    fn each_format_is_known_by_its_mark() {
        for (name, at, mark) in FORMATS {
            assert_eq!(format_of(&[&vec![0; at], mark, &[0; 4096]]), Some(name));
            assert_eq!(format_of(&[&vec![0; at + 1], mark, &[0; 4096]]), None, "{name}, moved");
        }
        assert_eq!(format_of(&[&[0; 4096], b"conectix", &[0; 504]]), Some("VHD"));
    }

    #[test]
    fn disks_and_short_files_are_no_images() {
        assert_eq!(format_of(&[]), None);
        assert_eq!(format_of(&[b"QFI"]), None);
        assert_eq!(format_of(&[&[0; 510], b"\x55\xaa"]), None);
    }
}
