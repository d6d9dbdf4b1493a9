//! [`Format`]: the formats of traces, by name. A format is detected from the first bytes of a trace. Public formats with
//! columns are a table, one row each; units and columns follow the descriptions published with the data.

use crate::columns::{Description, is_read_write};
use crate::error::{DescriptionError, Error, shown};
use crate::{binary, lines};

/// The format of a trace.
#[derive(Clone, Debug)]
pub enum Format {
    /// A format with columns, from the table of presets.
    Preset(&'static Preset),
    /// Columns described by the user.
    Columns(Box<Description>),
    /// blktrace's records.
    Blktrace,
    /// blkparse's text.
    Blkparse,
    /// fio's iolog.
    Iolog(lines::IologVersion),
    /// vscsi's records.
    Vscsi(binary::VscsiVersion),
}

impl Format {
    const OTHERS: [(&'static str, Self); 6] = [
        ("blktrace", Self::Blktrace),
        ("blkparse", Self::Blkparse),
        ("iolog2", Self::Iolog(lines::IologVersion::V2)),
        ("iolog3", Self::Iolog(lines::IologVersion::V3)),
        ("vscsi1", Self::Vscsi(binary::VscsiVersion::V1)),
        ("vscsi2", Self::Vscsi(binary::VscsiVersion::V2)),
    ];

    /// The format with this name, or the one that a [`Description`] defines.
    ///
    /// # Errors
    /// If the text is neither.
    pub fn parse(text: &str) -> Result<Self, DescriptionError> {
        if text.contains('=') {
            return Ok(Self::Columns(Box::new(Description::parse(text)?)));
        }
        let others = || Self::OTHERS.into_iter();
        if let Some((_, format)) = others().find(|(name, _)| *name == text) {
            return Ok(format);
        }
        PRESETS.iter().find(|preset| preset.name == text).map(Self::Preset).ok_or_else(|| {
            let names: Vec<_> =
                PRESETS.iter().map(|it| it.name).chain(others().map(|it| it.0)).collect();
            DescriptionError(format!("{text}; accepted: {}, or columns", names.join(", ")))
        })
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Preset(preset) => preset.name,
            Self::Columns(_) => "columns",
            Self::Blktrace => "blktrace",
            Self::Blkparse => "blkparse",
            Self::Iolog(lines::IologVersion::V2) => "iolog2",
            Self::Iolog(lines::IologVersion::V3) => "iolog3",
            Self::Vscsi(binary::VscsiVersion::V1) => "vscsi1",
            Self::Vscsi(binary::VscsiVersion::V2) => "vscsi2",
        }
    }
}

/// The number of bytes inspected.
pub(crate) const LOOKED_AT: usize = 16 << 10;
/// The most lines before the first recognised line.
const LINES: usize = 8;

pub(crate) fn detect(head: &[u8]) -> Result<Format, Error> {
    let word = head.first_chunk().map(|word| u32::from_ne_bytes(*word));
    let is_magic = |word: u32| word & !0xff == 0x6561_7400;
    if word.is_some_and(|word| is_magic(word) || is_magic(word.swap_bytes())) {
        return Ok(Format::Blktrace);
    }
    if let Some(version) = binary::vscsi_version(head) {
        return Ok(Format::Vscsi(version));
    }
    let lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    for line in lines.filter(|line| !line.is_empty() && line[0] != b'#').take(LINES) {
        if let Some(version) = lines::iolog_version(line) {
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
        if lines::is_blkparse(line) {
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

/// A format with columns.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The name, as `--format` accepts it.
    pub name: &'static str,
    /// The columns, as [`Description`] reads them.
    pub columns: &'static str,
    /// The shape of a row, by which a trace without a header is recognised, with a letter for each cell: `i` a whole
    /// number, `f` a number with a fraction, `n` either, `w` a word for read or write, `b` 0 or 1, `t` any text, `*`
    /// any further cells. Empty: not recognised.
    pub shape: &'static str,
    /// The origin of the format.
    pub about: &'static str,
    /// A caveat that reports must mention.
    pub caution: Option<&'static str>,
}

/// All presets.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "cloudphysics",
        columns: "time=us,time_us op=word,op offset=sectors,sector size=bytes,bytes",
        shape: "",
        about: "CloudPhysics (2013) as CSV with a header; the binary form is vscsi",
        caution: None,
    },
    Preset {
        name: "msr",
        columns: "time=100ns,1 group=2+3 volume=2+3 op=word,4 offset=bytes,5 size=bytes,6 latency=100ns,7",
        shape: "itiwiii",
        about: "MSR Cambridge (2007): ticks of 100 ns since 1601, host and disk are the tenant",
        caution: None,
    },
    Preset {
        name: "alibaba",
        columns: "group=1 volume=1 op=word,2 offset=bytes,3 size=bytes,4 time=us,5",
        shape: "iwiii",
        about: "Alibaba block traces (2020): each device is a tenant",
        caution: None,
    },
    Preset {
        name: "tencent",
        columns: "time=s,1 offset=sectors,2 size=sectors,3 op=0r1w,4 group=5 volume=5",
        shape: "iiibi",
        about: "Tencent CBS (2018): each volume is a tenant",
        caution: None,
    },
    Preset {
        name: "systor17",
        columns: "time=s,Timestamp latency=s,Response op=word,IOType group=LUN volume=LUN offset=bytes,Offset size=bytes,Size",
        shape: "",
        about: "SYSTOR '17 (2016): each LUN is a tenant",
        caution: None,
    },
    Preset {
        name: "thesios",
        columns: "time=s,start_time volume=filename offset=bytes,file_offset group=application class=service_class \
                  op=word,op_type size=bytes,request_io_size_bytes",
        shape: "",
        about: "Thesios (Google, 2024): applications are tenants, service classes are classes",
        caution: Some(
            "places are made up: the trace has files and offsets in them, no places on a disk",
        ),
    },
    Preset {
        name: "spc",
        columns: "group=1 volume=1 offset=sectors,2 size=bytes,3 op=word,4 time=s,5",
        shape: "iiiwn",
        about: "SPC (UMass OLTP and WebSearch): each ASU is a tenant",
        caution: None,
    },
    Preset {
        name: "fiu",
        columns: "delimiter=space time=ns,1 group=3 offset=sectors,4 size=sectors,5 op=word,6 volume=7+8",
        shape: "iitiiwii*",
        about: "FIU (2008 to 2014): each process is a tenant",
        caution: None,
    },
    Preset {
        name: "mqsim",
        columns: "delimiter=space time=ns,1 group=2 volume=2 offset=sectors,3 size=sectors,4 op=1r0w,5",
        shape: "",
        about: "MQSim's traces: nanoseconds",
        caution: Some(
            "1 is taken for a read and 0 for a write; where a converter wrote the reverse, describe the columns with op=0r1w,5",
        ),
    },
    Preset {
        name: "disksim",
        columns: "delimiter=space time=ms,1 group=2 volume=2 offset=sectors,3 size=sectors,4 op=1r0w,5",
        shape: "fiiib",
        about: "DiskSim's ASCII traces: milliseconds",
        caution: Some(
            "1 is taken for a read and 0 for a write; where a converter wrote the reverse, describe the columns with op=0r1w,5",
        ),
    },
    Preset {
        name: "biosnoop",
        columns: "delimiter=space wide=COMM stamp=completion time=s,TIME(s) group=COMM volume=DISK op=word,T \
                  offset=sectors,SECTOR size=bytes,BYTES queue=ms,QUE(ms)? latency=ms,LAT(ms)",
        shape: "",
        about: "biosnoop of bcc: each command is a tenant; arrivals are completions less the latency",
        caution: None,
    },
    Preset {
        name: "io-tracer",
        columns: "stamp=completion time=date,timestamp group=command op=word,operation offset=sectors,sector size=bytes,size \
                  latency=ms,latency_ms",
        shape: "",
        about: "io-tracer: each command is a tenant; arrivals are completions less the latency",
        caution: None,
    },
    Preset {
        name: "csv",
        columns: "time=ns,time_ns op=word,op offset=bytes,offset size=bytes,size group=tenant volume=volume class=class \
                  latency=ns,latency_ns?",
        shape: "",
        about: "the CSV that blkmq trace convert writes",
        caution: None,
    },
];
