//! The spellings of an operation.

use crate::fault::{Fault, shown};
use blkmq_core::Op;

/// The notation of operations in a format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ops {
    /// Words or letters.
    Words,
    /// 0 is a read and 1 a write.
    ReadIs0,
    /// 1 is a read and 0 a write.
    ReadIs1,
    /// SCSI operation codes, in decimal.
    Scsi,
}

impl Ops {
    pub(super) const NAMES: [(&'static str, Self); 4] = [
        ("word", Self::Words),
        ("0r1w", Self::ReadIs0),
        ("1r0w", Self::ReadIs1),
        ("scsi", Self::Scsi),
    ];

    pub(super) fn read(self, text: &[u8]) -> Result<Op, Fault> {
        let known = match self {
            Self::Words => word(text),
            Self::ReadIs0 => bit(text, Op::Read, Op::Write),
            Self::ReadIs1 => bit(text, Op::Write, Op::Read),
            Self::Scsi => std::str::from_utf8(text).ok().and_then(|it| scsi(it.parse().ok()?)),
        };
        known.ok_or_else(|| Fault::Op { text: shown(text), accepted: self.accepted() })
    }

    fn accepted(self) -> &'static str {
        match self {
            Self::Words => "r, w, read, write, flush, sync, discard, trim, zeroes, in any case",
            Self::ReadIs0 => "0 for a read, 1 for a write",
            Self::ReadIs1 => "1 for a read, 0 for a write",
            Self::Scsi => "SCSI's codes of reads, writes, SYNCHRONIZE CACHE, UNMAP and WRITE SAME",
        }
    }
}

fn bit(text: &[u8], zero: Op, one: Op) -> Option<Op> {
    match text {
        b"0" => Some(zero),
        b"1" => Some(one),
        _ => None,
    }
}

fn word(text: &[u8]) -> Option<Op> {
    let first = match text {
        [letter] => *letter,
        _ => 0,
    };
    match first {
        b'R' | b'r' => return Some(Op::Read),
        b'W' | b'w' => return Some(Op::Write),
        b'F' | b'f' => return Some(Op::Flush),
        b'D' | b'd' => return Some(Op::Discard),
        _ => {}
    }
    const WORDS: [(&str, Op); 11] = [
        ("read", Op::Read),
        ("write", Op::Write),
        ("rs", Op::Read),
        ("ws", Op::Write),
        ("flush", Op::Flush),
        ("sync", Op::Flush),
        ("datasync", Op::Flush),
        ("discard", Op::Discard),
        ("trim", Op::Discard),
        ("unmap", Op::Discard),
        ("zeroes", Op::WriteZeroes),
    ];
    WORDS.iter().find(|(word, _)| text.eq_ignore_ascii_case(word.as_bytes())).map(|(_, op)| *op)
}

/// Returns whether a cell looks like the operation of a row.
pub(crate) fn is_read_write(text: &[u8]) -> bool {
    matches!(word(text), Some(Op::Read | Op::Write))
}

/// The operation of a SCSI command.
pub(crate) fn scsi(code: u16) -> Option<Op> {
    match code {
        0x08 | 0x28 | 0x88 | 0xa8 => Some(Op::Read),
        0x0a | 0x2a | 0x8a | 0xaa | 0x2e | 0x8e => Some(Op::Write),
        0x35 | 0x91 => Some(Op::Flush),
        0x42 => Some(Op::Discard),
        0x41 | 0x93 => Some(Op::WriteZeroes),
        _ => None,
    }
}

/// Parses blkparse's letters: `FWFS` is a write preceded by a flush, `FN` or `F` a bare flush.
pub(crate) fn op_of_rwbs(text: &[u8]) -> Option<Op> {
    let has = |letter| text.contains(&letter);
    if has(b'D') {
        Some(Op::Discard)
    } else if has(b'R') {
        Some(Op::Read)
    } else if has(b'W') {
        Some(Op::Write)
    } else {
        has(b'F').then_some(Op::Flush)
    }
}
