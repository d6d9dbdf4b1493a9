//! Options on the wire: their data, read in place, and the bytes of the replies to them. `handshake.rs` decides the
//! content of replies.
//!
//! Lengths must match exactly: a byte too few or too many is an error.

use crate::code::{InfoType, OptionCode, OptionError, ReplyCode};
use crate::magic::{OPTION_REPLY, STRING};
use crate::request::Terms;
use crate::wire::{Fields, Limits, Put, clipped, text};

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
            // An unknown type of information is ignored.
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
        // A query takes at least 4 bytes, so nothing is allocated for a count that the data cannot hold.
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

/// A valid name or query of permitted length.
pub(super) fn string<'a>(bytes: &'a [u8], limits: &Limits) -> Result<&'a str, Refusal> {
    if bytes.len() > limits.string as usize {
        return Err(LONG_STRING);
    }
    text(bytes).ok_or(NO_STRING)
}

/// An error for the client, with a text for the user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    pub(super) error: OptionError,
    pub(super) text: &'static str,
}

impl Refusal {
    pub(super) const fn new(error: OptionError, text: &'static str) -> Self {
        Self { error, text }
    }

    pub(super) const fn invalid(text: &'static str) -> Self {
        Self::new(OptionError::Invalid, text)
    }
}

/// Appends a reply; `parts` are its data.
fn reply(out: &mut Vec<u8>, option: u32, code: u32, parts: &[&[u8]]) {
    out.put_u64(OPTION_REPLY);
    out.put_u32(option);
    out.put_u32(code);
    out.put_u32(parts.iter().map(|part| part.len() as u32).sum());
    for part in parts {
        out.put(part);
    }
}

pub(super) fn ack(out: &mut Vec<u8>, option: OptionCode) {
    reply(out, option.to_wire(), ReplyCode::Ack.to_wire(), &[]);
}

/// Refuses an option, whose number may be unknown.
pub(super) fn refuse(out: &mut Vec<u8>, option: u32, refusal: Refusal) {
    reply(out, option, refusal.error.to_wire(), &[refusal.text.as_bytes()]);
}

/// An export in a LIST. A name that the protocol cannot carry is left out, because no client could ask for it.
pub(super) fn server(out: &mut Vec<u8>, name: &str, description: &str) {
    if name.len() > STRING as usize || name.contains('\0') {
        return;
    }
    let length = (name.len() as u32).to_be_bytes();
    let parts = [&length, name.as_bytes(), shown(description)];
    reply(out, OptionCode::List.to_wire(), ReplyCode::Server.to_wire(), &parts);
}

/// The longest prefix of a text for users that the protocol can carry.
fn shown(text: &str) -> &[u8] {
    let end = text.find('\0').unwrap_or(text.len());
    clipped(&text[..end], STRING).as_bytes()
}

/// A metadata context. `option` is the option that lists or sets it.
pub(super) fn context(out: &mut Vec<u8>, option: OptionCode, id: u32, name: &str) {
    let parts = [&id.to_be_bytes()[..], name.as_bytes()];
    reply(out, option.to_wire(), ReplyCode::MetaContext.to_wire(), &parts);
}

/// Facts about an export, as replies to INFO or GO.
pub(super) struct Infos<'a> {
    pub(super) out: &'a mut Vec<u8>,
    pub(super) option: OptionCode,
}

impl Infos<'_> {
    fn info(&mut self, info: InfoType, data: &[u8]) {
        let parts = [&info.to_wire().to_be_bytes()[..], data];
        reply(self.out, self.option.to_wire(), ReplyCode::Info.to_wire(), &parts);
    }

    pub(super) fn export(&mut self, terms: &Terms) {
        let mut data = Vec::with_capacity(10);
        data.put_u64(terms.size);
        data.put_u16(terms.flags.to_wire());
        self.info(InfoType::Export, &data);
    }

    pub(super) fn name(&mut self, name: &str) {
        self.info(InfoType::Name, shown(name));
    }

    pub(super) fn description(&mut self, description: &str) {
        self.info(InfoType::Description, shown(description));
    }

    pub(super) fn block_sizes(&mut self, terms: &Terms) {
        let blocks = terms.blocks;
        let sizes = [blocks.min(), blocks.preferred(), blocks.max_payload()];
        self.info(InfoType::BlockSize, sizes.map(u32::to_be_bytes).as_flattened());
    }
}

/// The answer to EXPORT_NAME, which has no header: size, flags, and zeroes unless they are left out.
pub(super) fn export_name(out: &mut Vec<u8>, terms: &Terms, zeroes: usize) {
    out.put_u64(terms.size);
    out.put_u16(terms.flags.to_wire());
    out.resize(out.len() + zeroes, 0);
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
