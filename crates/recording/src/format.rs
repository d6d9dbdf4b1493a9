//! [`Format`]: the formats of traces, by name.

use crate::columns::{Description, DescriptionError};
use crate::presets::{PRESETS, Preset};
use crate::{iolog, vscsi};

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
    Iolog(iolog::Version),
    /// vscsi's records.
    Vscsi(vscsi::Version),
}

impl Format {
    const OTHERS: [(&'static str, Self); 6] = [
        ("blktrace", Self::Blktrace),
        ("blkparse", Self::Blkparse),
        ("iolog2", Self::Iolog(iolog::Version::V2)),
        ("iolog3", Self::Iolog(iolog::Version::V3)),
        ("vscsi1", Self::Vscsi(vscsi::Version::V1)),
        ("vscsi2", Self::Vscsi(vscsi::Version::V2)),
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
            Self::Iolog(iolog::Version::V2) => "iolog2",
            Self::Iolog(iolog::Version::V3) => "iolog3",
            Self::Vscsi(vscsi::Version::V1) => "vscsi1",
            Self::Vscsi(vscsi::Version::V2) => "vscsi2",
        }
    }
}
