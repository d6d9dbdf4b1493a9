//! The data of options, read in place. All sums are exact: a byte too few or too many is an error.

use super::answers::Refusal;
use crate::code::{InfoType, OptionError};
use crate::limits::Limits;
use crate::wire::{Fields, text};

const TRUNCATED: Refusal = Refusal::invalid("the lengths in the option's data exceed it");
const EXCESS: Refusal = Refusal::invalid("the option's data is longer than the lengths in it say");
const NO_STRING: Refusal = Refusal::invalid("a string is not UTF-8, or has a NUL");
const TWICE: Refusal = Refusal::invalid("an information is asked for twice");
const LONG_STRING: Refusal = Refusal::new(OptionError::TooBig, "a string is too long");
const MANY_QUERIES: Refusal = Refusal::new(OptionError::TooBig, "too many queries");

/// The data of INFO and GO.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct InfoRequest<'a> {
    pub(super) name: &'a str,
    wanted: [bool; InfoType::ALL.len()],
}

impl<'a> InfoRequest<'a> {
    pub(super) fn read(data: &'a [u8], limits: &Limits) -> Result<Self, Refusal> {
        let mut fields = Fields::new(data);
        let name = fields.counted().ok_or(TRUNCATED)?;
        let count = fields.u16().ok_or(TRUNCATED)?;
        let mut wanted = [false; InfoType::ALL.len()];
        for _ in 0..count {
            let number = fields.u16().ok_or(TRUNCATED)?;
            // An unknown information is ignored.
            if let Some(seen) = wanted.get_mut(usize::from(number))
                && std::mem::replace(seen, true)
            {
                return Err(TWICE);
            }
        }
        fields.end().ok_or(EXCESS)?;
        Ok(Self { name: string(name, limits)?, wanted })
    }

    pub(super) fn wants(&self, info: InfoType) -> bool {
        self.wanted[usize::from(info.to_wire())]
    }
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct ContextRequest<'a> {
    pub(super) name: &'a str,
    pub(super) queries: Vec<&'a str>,
}

impl<'a> ContextRequest<'a> {
    pub(super) fn read(data: &'a [u8], limits: &Limits) -> Result<Self, Refusal> {
        let mut fields = Fields::new(data);
        let name = fields.counted().ok_or(TRUNCATED)?;
        let count = fields.u32().ok_or(TRUNCATED)?;
        // Each query has 4 bytes of length: a number of them that the data cannot hold is no reason to allocate.
        if u64::from(count) * 4 > fields.rest().len() as u64 {
            return Err(TRUNCATED);
        }
        if count > limits.queries {
            return Err(MANY_QUERIES);
        }
        let queries = (0..count).map(|_| fields.counted().ok_or(TRUNCATED));
        let queries: Vec<&[u8]> = queries.collect::<Result<_, _>>()?;
        fields.end().ok_or(EXCESS)?;
        let queries = queries.into_iter().map(|query| string(query, limits));
        Ok(Self { name: string(name, limits)?, queries: queries.collect::<Result<_, _>>()? })
    }
}

/// A name or query within the bounds.
pub(super) fn string<'a>(bytes: &'a [u8], limits: &Limits) -> Result<&'a str, Refusal> {
    if bytes.len() > limits.string as usize {
        return Err(LONG_STRING);
    }
    text(bytes).ok_or(NO_STRING)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        options_listed: 0,
        option_data: 1000,
        option_dropped: 1000,
        string: 8,
        queries: 2,
        options: 9,
        lists: 9,
        listed: 9,
        payload: 9,
        payload_dropped: 9,
        extents: 9,
    };

    fn info(data: &[u8]) -> Result<InfoRequest<'_>, Refusal> {
        InfoRequest::read(data, &LIMITS)
    }

    fn contexts(data: &[u8]) -> Result<ContextRequest<'_>, Refusal> {
        ContextRequest::read(data, &LIMITS)
    }

    #[test]
    fn every_shortened_or_lengthened_option_is_invalid() {
        let good = b"\0\0\0\x01a\0\x02\0\x03\0\x09";
        let read = info(good).unwrap();
        assert_eq!(read.name, "a");
        assert!(read.wants(InfoType::BlockSize) && !read.wants(InfoType::Name));
        for end in 0..good.len() {
            assert_eq!(info(&good[..end]), Err(TRUNCATED), "{end}");
        }
        assert_eq!(info(&[&good[..], b"x"].concat()), Err(EXCESS));

        let good = b"\0\0\0\x01a\0\0\0\x02\0\0\0\x01b\0\0\0\x00";
        assert_eq!(contexts(good).unwrap(), ContextRequest { name: "a", queries: vec!["b", ""] });
        for end in 0..good.len() {
            assert_eq!(contexts(&good[..end]), Err(TRUNCATED), "{end}");
        }
        assert_eq!(contexts(&[&good[..], b"x"].concat()), Err(EXCESS));
    }

    #[test]
    fn lengths_that_lie_are_invalid() {
        assert_eq!(info(b"\xff\xff\xff\xffa\0\0"), Err(TRUNCATED));
        assert_eq!(info(b"\0\0\0\0\xff\xff\0\0"), Err(TRUNCATED));
        assert_eq!(contexts(b"\0\0\0\0\xff\xff\xff\xff\0\0\0\0"), Err(TRUNCATED));
        assert_eq!(contexts(b"\0\0\0\0\0\0\0\x01\xff\xff\xff\xff"), Err(TRUNCATED));
    }

    #[test]
    fn an_information_twice_is_invalid_and_an_unknown_one_ignored() {
        assert_eq!(info(b"\0\0\0\0\0\x02\0\x01\0\x01"), Err(TWICE));
        assert!(info(b"\0\0\0\0\0\x02\0\x07\0\x07").is_ok());
    }

    #[test]
    fn strings_have_a_longest_length_and_no_nul() {
        assert_eq!(info(b"\0\0\0\x09123456789\0\0"), Err(LONG_STRING));
        assert!(info(b"\0\0\0\x0812345678\0\0").is_ok());
        assert_eq!(info(b"\0\0\0\x01\0\0\0"), Err(NO_STRING));
        assert_eq!(info(b"\0\0\0\x01\xff\0\0"), Err(NO_STRING));
        assert_eq!(contexts(b"\0\0\0\0\0\0\0\x01\0\0\0\x09123456789"), Err(LONG_STRING));
        let three = [&b"\0\0\0\0\0\0\0\x03"[..], &[0; 12]].concat();
        assert_eq!(contexts(&three), Err(MANY_QUERIES));
    }
}
