//! Detects the format of a trace from its first bytes.

use crate::columns::{Description, is_read_write};
use crate::error::Error;
use crate::fault::shown;
use crate::format::Format;
use crate::presets::PRESETS;
use crate::{blkparse, iolog, vscsi};

/// The number of bytes inspected.
pub(crate) const LOOKED_AT: usize = 16 << 10;
/// The most lines before the first recognised line.
const LINES: usize = 8;

pub(crate) fn format(head: &[u8]) -> Result<Format, Error> {
    let word = head.first_chunk().map(|word| u32::from_ne_bytes(*word));
    let is_magic = |word: u32| word & !0xff == 0x6561_7400;
    if word.is_some_and(|word| is_magic(word) || is_magic(word.swap_bytes())) {
        return Ok(Format::Blktrace);
    }
    if let Some(version) = vscsi::version(head) {
        return Ok(Format::Vscsi(version));
    }
    let lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    for line in lines.filter(|line| !line.is_empty() && line[0] != b'#').take(LINES) {
        if let Some(version) = iolog::version(line) {
            return Ok(Format::Iolog(version));
        }
        if line.starts_with(b"TIME(ms)") {
            return Err(Error::Refused(
                "bpftrace's biosnoop.bt has no sectors; accepted: biosnoop of bcc, which has them",
            ));
        }
        for preset in PRESETS {
            let described = Description::parse(preset.columns)?;
            if described.fits(line) || is_shaped(preset.shape, described.delimiter(), line) {
                return Ok(Format::Preset(preset));
            }
        }
        if is_shaped("iiiib", b' ', line) {
            return Err(Error::Refused(
                "five whole numbers are a row of MQSim in nanoseconds and one of DiskSim in milliseconds; accepted: \
                 --format=mqsim, --format=disksim",
            ));
        }
        if blkparse::is_line(line) {
            return Ok(Format::Blkparse);
        }
    }
    Err(Error::Unknown { begins: shown(head) })
}

/// Returns whether the cells of `line` have the given shape.
fn is_shaped(shape: &str, delimiter: u8, line: &[u8]) -> bool {
    if shape.is_empty() {
        return false;
    }
    let is_cell = |cell: &&[u8]| delimiter != b' ' || !cell.is_empty();
    let mut cells = line.split(|byte| *byte == delimiter).filter(is_cell).map(<[u8]>::trim_ascii);
    for kind in shape.bytes() {
        if kind == b'*' {
            return true;
        }
        let Some(cell) = cells.next() else { return false };
        let is_whole = !cell.is_empty() && cell.iter().all(u8::is_ascii_digit);
        let digit = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
        let is_fraction = !is_whole && cell.len() > 1 && cell.iter().all(digit);
        let fits = match kind {
            b'i' => is_whole,
            b'f' => is_fraction,
            b'n' => is_whole || is_fraction,
            b'w' => is_read_write(cell),
            b'b' => matches!(cell, b"0" | b"1"),
            _ => !cell.is_empty(),
        };
        if !fits {
            return false;
        }
    }
    cells.next().is_none()
}
