//! [`Kind`]: the layers by name, with their parameters.

#![forbid(unsafe_code)]

use blkmq_core::{Given, PairError, Parameter, RealDevice, SECTOR_SIZE, Unit};
use std::fmt;

/// The most bytes in a chunk of a stripe: 1 GiB.
const MAX_CHUNK: u64 = 1 << 30;
/// The most legs: each has a queue.
const MAX_LEGS: usize = 64;
/// The most layers around a device: each is opened, and called, from within the one around it.
const MAX_NESTED: u32 = 8;

const STRIPE: RealDevice = RealDevice {
    name: "stripe",
    target: "[DEVICE][DEVICE]...",
    summary: "chunks of two or more devices in turn (RAID 0)",
    doc: include_str!("../doc/stripe.md"),
    parameters: &[Parameter {
        name: "chunk",
        default: "64",
        help: "KiB in a chunk (or 512b, 64k, 1m), in whole blocks of every device",
    }],
};
const CONCAT: RealDevice = RealDevice {
    name: "concat",
    target: "[DEVICE][DEVICE]...",
    summary: "devices one behind the other",
    doc: include_str!("../doc/concat.md"),
    parameters: &[],
};

/// A layer with its parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// Chunks of the legs in turn.
    Stripe {
        /// Sectors in a chunk.
        chunk: u32,
    },
    /// The legs one behind the other.
    Concat,
}

/// Why a description of a layer is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KindError {
    /// The layer has no such parameter, or that has no such value.
    Pair {
        /// The layer.
        layer: &'static str,
        /// The pair.
        why: PairError,
    },
    /// A word is no pair, or the devices do not stand in brackets.
    Syntax {
        /// The form that is accepted.
        accepted: String,
    },
    /// There are less than two devices, or too many.
    Legs {
        /// Those that were given.
        given: usize,
    },
    /// Too many layers stand on one another.
    Nested,
}

impl fmt::Display for KindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pair { layer, why } => write!(f, "device {layer}: {why}"),
            Self::Syntax { accepted } => {
                write!(f, "devices stand in brackets behind the pairs; accepted: {accepted}")
            }
            Self::Legs { given } => {
                write!(f, "{given} devices in brackets; accepted: from 2 to {MAX_LEGS}")
            }
            Self::Nested => write!(
                f,
                "too many layers on one another; accepted: at most {MAX_NESTED} around a device"
            ),
        }
    }
}

impl std::error::Error for KindError {}

impl Kind {
    /// Every layer, for programs that offer devices by name.
    pub const ALL: [RealDevice; 2] = [STRIPE, CONCAT];

    /// Parses `NAME[,KEY=VALUE]...:[DEVICE][DEVICE]...`: the layer, and the descriptions of its legs. `None` if `text` begins
    /// with the name of no layer.
    ///
    /// # Errors
    /// If a pair is wrong, or there are not two devices or more in brackets.
    pub fn parse(text: &str) -> Option<Result<(Self, Vec<&str>), KindError>> {
        let end = text.find([',', ':']).unwrap_or(text.len());
        let layer = Self::ALL.into_iter().find(|layer| layer.name == text[..end].trim())?;
        Some(Self::described(&layer, &text[end..]))
    }

    fn described<'a>(layer: &RealDevice, text: &'a str) -> Result<(Self, Vec<&'a str>), KindError> {
        let form = "[,KEY=VALUE]...:[DEVICE][DEVICE]...";
        let syntax = || KindError::Syntax { accepted: format!("{}{form}", layer.name) };
        let (pairs, legs) = text.split_once(':').ok_or_else(syntax)?;
        let mut kind =
            if layer.name == STRIPE.name { Self::Stripe { chunk: 128 } } else { Self::Concat };
        for word in pairs.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').ok_or_else(syntax)?;
            let refused = |why| KindError::Pair { layer: layer.name, why };
            let given = Given::find(layer.parameters, key.trim(), value.trim()).map_err(refused)?;
            if let Self::Stripe { chunk } = &mut kind {
                let bytes = given.bytes(Unit::KIB, MAX_CHUNK).map_err(refused)?;
                if bytes % u64::from(SECTOR_SIZE) != 0 || bytes == 0 {
                    return Err(refused(given.refuse("whole sectors of 512 bytes, up to 1g")));
                }
                *chunk = (bytes / u64::from(SECTOR_SIZE)) as u32;
            }
        }
        let (legs, depth) = bracketed(legs.trim()).ok_or_else(syntax)?;
        if depth > MAX_NESTED {
            return Err(KindError::Nested);
        }
        if !(2..=MAX_LEGS).contains(&legs.len()) {
            return Err(KindError::Legs { given: legs.len() });
        }
        Ok((kind, legs))
    }
}

/// The contents of the outermost brackets of `text`, and how deep brackets are nested; `None` if anything stands
/// outside of them, or one is missing.
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
            "Stripe { chunk: 128 } null | memory,size=1"
        );
        assert_eq!(read("stripe,chunk=4k:[a] [b] [c]"), "Stripe { chunk: 8 } a | b | c");
        assert_eq!(read("concat:[stripe,chunk=1m:[a][b]][c]"), "Concat stripe,chunk=1m:[a][b] | c");
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
        let nested =
            |depth| (0..depth).fold("a".to_owned(), |inside, _| format!("concat:[{inside}][b]"));
        assert!(read(&nested(8)).starts_with("Concat"));
        for depth in [9, 10_000] {
            assert!(read(&nested(depth)).ends_with("at most 8 around a device"));
        }
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
        assert_eq!(Kind::ALL.map(|layer| layer.undocumented()), [None; 2]);
    }
}
