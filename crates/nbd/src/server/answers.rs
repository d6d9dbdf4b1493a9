//! The bytes of replies to options. Their content is decided elsewhere.

use crate::code::{InfoType, OptionCode, OptionError, ReplyCode};
use crate::magic::{OPTION_REPLY, STRING};
use crate::terms::Terms;
use crate::wire::{Put, clipped};

/// An error for the client, with a text for its user.
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

/// Refuses an option, of which perhaps only the number is known.
pub(super) fn refuse(out: &mut Vec<u8>, option: u32, refusal: Refusal) {
    reply(out, option, refusal.error.to_wire(), &[refusal.text.as_bytes()]);
}

/// An export in a LIST. A name that the protocol cannot carry is left out: no client could ask for it.
pub(super) fn server(out: &mut Vec<u8>, name: &str, description: &str) {
    if name.len() > STRING as usize || name.contains('\0') {
        return;
    }
    let length = (name.len() as u32).to_be_bytes();
    let parts = [&length, name.as_bytes(), shown(description)];
    reply(out, OptionCode::List.to_wire(), ReplyCode::Server.to_wire(), &parts);
}

/// The part of a text for users that the protocol can carry.
fn shown(text: &str) -> &[u8] {
    let end = text.find('\0').unwrap_or(text.len());
    clipped(&text[..end], STRING).as_bytes()
}

/// A metadata context; `option` is the one that lists or sets them.
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

/// The answer to EXPORT_NAME, which is no reply to an option: size, flags, and perhaps zeroes.
pub(super) fn export_name(out: &mut Vec<u8>, terms: &Terms, zeroes: usize) {
    out.put_u64(terms.size);
    out.put_u16(terms.flags.to_wire());
    out.resize(out.len() + zeroes, 0);
}
