//! [`Kind`]: the layers by name, with their parameters.

#![forbid(unsafe_code)]

use crate::mirror::MAX_LEGS as MAX_LEGS_OF_MIRROR;
use blkmq_core::{Given, PairError, Parameter, RealDevice, SECTOR_SIZE, Unit};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// The most bytes in a chunk of a stripe: 1 GiB.
const MAX_CHUNK: u64 = 1 << 30;
/// The most legs: each has a queue.
const MAX_LEGS: usize = 64;
/// The word in place of the description of a mirror's missing leg.
const MISSING: &str = "missing";
/// The most layers around a device. Each level of nesting is a level of recursion when a device is opened or called.
const MAX_NESTED: u32 = 8;

const STRIPE: RealDevice = RealDevice {
    name: "stripe",
    target: "[DEVICE][DEVICE]...",
    summary: "chunks of two or more devices in turn (RAID 0)",
    parameters: &[Parameter {
        name: "chunk",
        default: "512",
        help: "KiB in a chunk (or 512b, 64k, 1m), in whole blocks of every device",
    }],
};
const CONCAT: RealDevice = RealDevice {
    name: "concat",
    target: "[DEVICE][DEVICE]...",
    summary: "devices one behind the other",
    parameters: &[],
};
const CRYPT: RealDevice = RealDevice {
    name: "crypt",
    target: "[DEVICE]",
    summary: "a device encrypted with AES in XTS mode",
    parameters: &[
        Parameter {
            name: "key",
            default: "",
            help: "file with the key: 64 bytes for AES-256, 32 for AES-128",
        },
        Parameter {
            name: "block",
            default: "512",
            help: "bytes that are encrypted together: 512, 1024, 2048, 4096",
        },
    ],
};
const CHECKSUM: RealDevice = RealDevice {
    name: "checksum",
    target: "[DEVICE]",
    summary: "a device whose blocks of 4 KiB are stored with checksums, checked when they are read",
    parameters: &[],
};
const MIRROR: RealDevice = RealDevice {
    name: "mirror",
    target: "[DEVICE][DEVICE]...",
    summary: "the same on two or more devices (RAID 1), of which one may fail",
    parameters: &[
        Parameter {
            name: "create",
            default: "0",
            help: "makes a mirror of devices without records (0, 1)",
        },
        Parameter {
            name: "replace",
            default: "0",
            help: "copies the mirror to devices without records (0, 1)",
        },
    ],
};

/// A layer with its parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// The chunks of the device alternate between the legs.
    Stripe {
        /// Sectors in a chunk.
        chunk: u32,
    },
    /// The legs follow one another.
    Concat,
    /// One leg, encrypted.
    Crypt {
        /// The file with the key.
        key: PathBuf,
        /// Bytes in a block that is encrypted as a unit.
        block: u32,
    },
    /// One leg, with checksums.
    Checksum,
    /// Legs with the same contents.
    Mirror {
        /// Makes a mirror of the contents of the first leg, if no leg has a record.
        create: bool,
        /// Copies the mirror to legs without a record.
        replace: bool,
        /// The missing legs, a bit for each number.
        missing: u8,
    },
}

/// Why a description of a layer is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KindError {
    /// The layer has no such parameter, or the parameter cannot have this value.
    #[error("device {layer}: {why}")]
    Pair {
        /// The layer.
        layer: &'static str,
        /// The pair.
        why: PairError,
    },
    /// A word is not a pair, or the devices are not in brackets.
    #[error("devices stand in brackets behind the pairs; accepted: {accepted}")]
    Syntax {
        /// The form that is accepted.
        accepted: String,
    },
    /// There are fewer devices than the layer needs, or too many.
    #[error("{given} devices in brackets; accepted: {}", from_to(.accepted))]
    Legs {
        /// The number of devices given.
        given: usize,
        /// The numbers that are accepted.
        accepted: RangeInclusive<usize>,
    },
    /// An encrypted device without a key.
    #[error("device crypt without a key; accepted: key=FILE")]
    NoKey,
    /// Too many layers are nested.
    #[error("too many layers on one another; accepted: at most {MAX_NESTED} around a device")]
    Nested,
}

fn from_to(accepted: &RangeInclusive<usize>) -> String {
    let (least, most) = (accepted.start(), accepted.end());
    if least == most { least.to_string() } else { format!("from {least} to {most}") }
}

impl Kind {
    /// Every layer, for programs that offer devices by name.
    pub const ALL: [RealDevice; 5] = [STRIPE, CONCAT, CRYPT, CHECKSUM, MIRROR];

    /// The page of the layer called `name`, one of [`ALL`](Self::ALL).
    #[must_use]
    pub fn page(name: &str) -> &'static str {
        match name {
            "stripe" => include_str!("../doc/stripe.md"),
            "crypt" => include_str!("../doc/crypt.md"),
            "checksum" => include_str!("../doc/checksum.md"),
            "mirror" => include_str!("../doc/mirror.md"),
            _ => include_str!("../doc/concat.md"),
        }
    }

    /// Parses `NAME[,KEY=VALUE]...:[DEVICE][DEVICE]...` into the layer and the descriptions of its legs. `None` if
    /// `text` does not begin with the name of a layer.
    ///
    /// # Errors
    /// If a pair is wrong, or there are not as many devices in brackets as the layer needs.
    pub fn parse(text: &str) -> Option<Result<(Self, Vec<&str>), KindError>> {
        let end = text.find([',', ':']).unwrap_or(text.len());
        let layer = Self::ALL.into_iter().find(|layer| layer.name == text[..end].trim())?;
        Some(Self::described(&layer, &text[end..]))
    }

    fn described<'a>(layer: &RealDevice, text: &'a str) -> Result<(Self, Vec<&'a str>), KindError> {
        let form = || format!("{}[,KEY=VALUE]...:{}", layer.name, layer.target);
        let syntax = || KindError::Syntax { accepted: form() };
        let (pairs, legs) = text.split_once(':').ok_or_else(syntax)?;
        let mut kind = match layer.name {
            "stripe" => Self::Stripe { chunk: 1024 },
            "crypt" => Self::Crypt { key: PathBuf::new(), block: SECTOR_SIZE },
            "checksum" => Self::Checksum,
            "mirror" => Self::Mirror { create: false, replace: false, missing: 0 },
            _ => Self::Concat,
        };
        for word in pairs.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').ok_or_else(syntax)?;
            let refused = |why| KindError::Pair { layer: layer.name, why };
            let given = Given::find(layer.parameters, key.trim(), value.trim()).map_err(refused)?;
            kind.set(given).map_err(refused)?;
        }
        if matches!(&kind, Self::Crypt { key, .. } if key.as_os_str().is_empty()) {
            return Err(KindError::NoKey);
        }
        let (legs, depth) = bracketed(legs.trim()).ok_or_else(syntax)?;
        if depth > MAX_NESTED {
            return Err(KindError::Nested);
        }
        let accepted = match kind {
            Self::Stripe { .. } | Self::Concat => 2..=MAX_LEGS,
            Self::Crypt { .. } | Self::Checksum => 1..=1,
            Self::Mirror { .. } => 2..=MAX_LEGS_OF_MIRROR,
        };
        if !accepted.contains(&legs.len()) {
            return Err(KindError::Legs { given: legs.len(), accepted });
        }
        if let Self::Mirror { missing, .. } = &mut kind {
            let is_missing = |leg: &&str| *leg == MISSING;
            *missing =
                (0..).zip(&legs).fold(0, |all, (at, leg)| all | u8::from(is_missing(leg)) << at);
            if legs.iter().all(is_missing) {
                return Err(KindError::Legs { given: 0, accepted: 1..=MAX_LEGS_OF_MIRROR });
            }
        }
        Ok((kind, legs))
    }

    /// Returns whether the leg of this number is present. A mirror may have missing legs: they are in the list of
    /// descriptions, but have no device.
    #[must_use]
    pub fn has(&self, leg: usize) -> bool {
        let Self::Mirror { missing, .. } = self else { return true };
        u32::from(*missing).checked_shr(leg as u32).is_none_or(|bits| bits & 1 == 0)
    }

    fn set(&mut self, given: Given<'_>) -> Result<(), PairError> {
        match self {
            Self::Stripe { chunk } => {
                let bytes = given.bytes(Unit::KIB, MAX_CHUNK)?;
                if bytes % u64::from(SECTOR_SIZE) != 0 || bytes == 0 {
                    return Err(given.refuse("whole sectors of 512 bytes, up to 1g"));
                }
                *chunk = (bytes / u64::from(SECTOR_SIZE)) as u32;
            }
            Self::Crypt { key, .. } if given.name == "key" => *key = given.value.into(),
            Self::Crypt { block, .. } => {
                let bytes = given.number(SECTOR_SIZE..=4096)?;
                if !bytes.is_power_of_two() {
                    return Err(given.refuse("512, 1024, 2048, 4096"));
                }
                *block = bytes;
            }
            Self::Mirror { create, replace, .. } => {
                let word = if given.name == "create" { create } else { replace };
                *word = given.number(0..=1)? == 1;
            }
            Self::Concat | Self::Checksum => {}
        }
        Ok(())
    }
}

/// The contents of the outermost brackets of `text`, and the depth of nesting; `None` if there is text outside of them,
/// or if brackets do not match.
fn bracketed(text: &str) -> Option<(Vec<&str>, u32)> {
    let (mut found, mut depth, mut from, mut deepest) = (Vec::new(), 0_u32, 0, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' => {
                if depth == 0 {
                    from = at + 1;
                }
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    found.push(text[from..at].trim());
                }
            }
            _ if depth == 0 && !byte.is_ascii_whitespace() => return None,
            _ => {}
        }
    }
    (depth == 0).then_some((found, deepest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        match Kind::parse(text) {
            None => "another".into(),
            Some(Ok((kind, legs))) => format!("{kind:?} {}", legs.join(" | ")),
            Some(Err(error)) => error.to_string(),
        }
    }

    #[test]
    fn a_layer_has_its_legs_in_brackets() {
        assert_eq!(
            read("stripe:[null][ memory,size=1 ]"),
            "Stripe { chunk: 1024 } null | memory,size=1"
        );
        assert_eq!(read("stripe,chunk=4k:[a] [b] [c]"), "Stripe { chunk: 8 } a | b | c");
        assert_eq!(read("concat:[stripe,chunk=1m:[a][b]][c]"), "Concat stripe,chunk=1m:[a][b] | c");
        assert_eq!(
            read("crypt,key=/etc/key,block=4096:[uring:/dev/sda]"),
            "Crypt { key: \"/etc/key\", block: 4096 } uring:/dev/sda"
        );
        assert_eq!(read("checksum:[crypt,key=k:[a]]"), "Checksum crypt,key=k:[a]");
        assert_eq!(
            read("mirror,create=1:[a][missing][b]"),
            "Mirror { create: true, replace: false, missing: 2 } a | missing | b"
        );
        assert_eq!(read("stripes:[a][b]"), "another");
        assert_eq!(read("uring:stripe:[a][b]"), "another");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for text in
            ["stripe", "stripe:a", "stripe:[a]b", "stripe:[a][b", "stripe:a][", "concat,x:[a][b]"]
        {
            assert!(read(text).contains("[,KEY=VALUE]...:[DEVICE][DEVICE]..."), "{}", read(text));
        }
        assert_eq!(read("concat:[a]"), "1 devices in brackets; accepted: from 2 to 64");
        assert_eq!(
            read(&format!("concat:{}", "[a]".repeat(65))),
            "65 devices in brackets; accepted: from 2 to 64"
        );
        assert!(read("crypt").ends_with("accepted: crypt[,KEY=VALUE]...:[DEVICE]"));
        assert_eq!(read("checksum:[a][b]"), "2 devices in brackets; accepted: 1");
        assert_eq!(read("crypt:[a]"), "device crypt without a key; accepted: key=FILE");
        for block in ["0", "256", "1000", "8192", "x"] {
            let text = read(&format!("crypt,key=k,block={block}:[a]"));
            assert!(
                text.starts_with("device crypt: block=") && text.contains("accepted"),
                "{text}"
            );
        }
        let nested =
            |depth| (0..depth).fold("a".to_owned(), |inside, _| format!("concat:[{inside}][b]"));
        assert!(read(&nested(8)).starts_with("Concat"));
        for depth in [9, 10_000] {
            assert!(read(&nested(depth)).ends_with("at most 8 around a device"));
        }
        assert!(read("mirror:[a]").ends_with("accepted: from 2 to 8"));
        assert!(read("mirror:[missing][missing]").starts_with("0 devices"));
        assert!(read("mirror,create=2:[a][b]").starts_with("device mirror: create="));
        assert!(read("concat,chunk=4k:[a][b]").starts_with("device concat: no parameter 'chunk'"));
        for chunk in ["0", "100b", "2g", "x"] {
            let text = read(&format!("stripe,chunk={chunk}:[a][b]"));
            assert!(
                text.starts_with("device stripe: chunk=") && text.contains("accepted"),
                "{text}"
            );
        }
    }

    #[test]
    fn the_pages_name_every_parameter() {
        assert_eq!(Kind::ALL.map(|layer| layer.undocumented(Kind::page(layer.name))), [None; 5]);
    }
}
