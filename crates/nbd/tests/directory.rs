//! The exports of the servers under test.

use blkmq_nbd::{BlockSizes, ExportInfo, Exports, TransmissionFlags};

/// Bytes of the export `disk`.
pub const SIZE: u64 = 1 << 30;

/// Two exports: `disk`, which is the default one, and `rom`, which is read-only.
pub struct Directory;

pub fn disk() -> ExportInfo {
    let absent = TransmissionFlags::READ_ONLY | TransmissionFlags::ROTATIONAL;
    ExportInfo {
        name: "disk".to_owned(),
        description: "a disk to write to".to_owned(),
        size: SIZE,
        flags: TransmissionFlags::KNOWN.without(absent),
        blocks: BlockSizes::DEFAULT.with_min(512).expect("a power of two"),
        contexts: vec!["base:allocation".to_owned(), "x-blkmq:tier".to_owned()],
    }
}

pub fn rom() -> ExportInfo {
    ExportInfo {
        name: "rom".to_owned(),
        size: 4096,
        flags: TransmissionFlags::READ_ONLY,
        ..ExportInfo::default()
    }
}

impl Exports for Directory {
    fn find(&self, name: &str) -> Option<ExportInfo> {
        match name {
            "" | "disk" => Some(disk()),
            "rom" => Some(rom()),
            _ => None,
        }
    }

    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        for export in [disk(), rom()] {
            each(&export.name, &export.description);
        }
    }
}
