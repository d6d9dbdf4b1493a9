//! The order of a client's options, and its fallbacks (`docs/spec/nbd.md`, sections 3 and 5).
//!
//! The order is TLS, extended headers or else structured replies, then contexts, and finally GO, INFO, or LIST.
//! EXPORT_NAME stands in for GO where a server lacks it. An [`Answer`] is a reply to an option: the header, then data
//! by kind.

use super::broken::{BrokenHandshake, Refused};
use super::plan::{Agreed, Details, Goal, Next, Plan, Tls};
use crate::block_sizes::BlockSizes;
use crate::code::{InfoType, OptionCode, OptionError, ReplyCode};
use crate::export::{Context, Listed};
use crate::flags::TransmissionFlags;
use crate::magic::{OPTION, OPTION_REPLY, OPTION_REPLY_LEN};
use crate::wire::{Fields, HeaderStyle, Put, text};

/// The state of a handshake between two replies.
#[derive(Debug)]
pub(super) struct Session {
    plan: Plan,
    style: HeaderStyle,
    contexts: Vec<Context>,
    listed: Vec<Listed>,
    details: Details,
    has_size: bool,
}

/// The step after a reply.
pub(super) enum Step {
    /// Another reply to the same option.
    Same,
    /// The reply to this option, which has been sent.
    Sent(OptionCode),
    /// The end of the handshake, or TLS.
    End(Next),
}

impl Session {
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            plan,
            style: HeaderStyle::Simple,
            contexts: Vec::new(),
            listed: Vec::new(),
            details: Details::default(),
            has_size: false,
        }
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Sends the first option to a server that replies to options.
    pub(super) fn begin(&self, out: &mut Vec<u8>) -> OptionCode {
        match self.plan.tls {
            Tls::Required => send(out, OptionCode::StartTls, &[]),
            Tls::Off => self.ask_for_headers(out),
        }
    }

    /// Sends the first option inside TLS, or the first one if there is none.
    pub(super) fn ask_for_headers(&self, out: &mut Vec<u8>) -> OptionCode {
        match self.plan.most {
            HeaderStyle::Extended => send(out, OptionCode::ExtendedHeaders, &[]),
            HeaderStyle::Structured => send(out, OptionCode::StructuredReply, &[]),
            HeaderStyle::Simple => self.ask_for_goal(out),
        }
    }

    fn ask_for_contexts(&self, out: &mut Vec<u8>) -> OptionCode {
        let (Goal::Go(name), true) = (&self.plan.goal, self.style.has_chunks()) else {
            return self.ask_for_goal(out);
        };
        if self.plan.contexts.is_empty() {
            return self.ask_for_goal(out);
        }
        let mut data = Vec::new();
        put_string(&mut data, name);
        data.put_u32(self.plan.contexts.len() as u32);
        for context in &self.plan.contexts {
            put_string(&mut data, context);
        }
        send(out, OptionCode::SetMetaContext, &data)
    }

    fn ask_for_goal(&self, out: &mut Vec<u8>) -> OptionCode {
        let (option, name) = match &self.plan.goal {
            Goal::List => return send(out, OptionCode::List, &[]),
            Goal::Info(name) => (OptionCode::Info, name),
            Goal::Go(name) => (OptionCode::Go, name),
        };
        let mut data = Vec::new();
        put_string(&mut data, name);
        let infos = [InfoType::Name, InfoType::Description, InfoType::BlockSize];
        data.put_u16(infos.len() as u16);
        for info in infos {
            data.put_u16(info.to_wire());
        }
        send(out, option, &data)
    }

    /// Sends EXPORT_NAME for a goal that it serves.
    pub(super) fn ask_by_name(&self, out: &mut Vec<u8>) -> Option<OptionCode> {
        match &self.plan.goal {
            Goal::Go(name) => Some(send(out, OptionCode::ExportName, name.as_bytes())),
            Goal::Info(_) | Goal::List => None,
        }
    }

    /// Takes a reply to the option that was sent last.
    pub(super) fn answered(&mut self, answer: &Answer<'_>, out: &mut Vec<u8>) -> Step {
        let malformed = || Step::End(Next::Close(BrokenHandshake::Malformed(answer.option)));
        match answer.kind {
            Kind::Error(number) => self.refused(answer.refused(number), out),
            Kind::Known(ReplyCode::Ack) => self.done(answer.option, out),
            Kind::Known(code) => match self.content(answer, code) {
                Ok(()) => Step::Same,
                Err(broken) => Step::End(Next::Close(broken)),
            },
            Kind::Unknown => malformed(),
        }
    }

    fn content(&mut self, answer: &Answer<'_>, code: ReplyCode) -> Result<(), BrokenHandshake> {
        let malformed = || BrokenHandshake::Malformed(answer.option);
        match (answer.option, code) {
            (OptionCode::List, ReplyCode::Server) => {
                if self.listed.len() >= self.plan.limits.listed as usize {
                    return Err(BrokenHandshake::TooMany);
                }
                self.listed.push(answer.listed().ok_or_else(malformed)?);
            }
            (OptionCode::SetMetaContext, ReplyCode::MetaContext) => {
                // A server may not select more contexts than were requested.
                let context = answer.context().ok_or_else(malformed)?;
                if !self.plan.contexts.contains(&context.name)
                    || self.contexts.iter().any(|seen| seen.id == context.id)
                {
                    return Err(malformed());
                }
                self.contexts.push(context);
            }
            (OptionCode::Info | OptionCode::Go, ReplyCode::Info) => {
                self.has_size |= answer.learn(&mut self.details).ok_or_else(malformed)?;
            }
            _ => return Err(malformed()),
        }
        Ok(())
    }

    fn done(&mut self, option: OptionCode, out: &mut Vec<u8>) -> Step {
        Step::Sent(match option {
            OptionCode::StartTls => return Step::End(Next::StartTls),
            OptionCode::ExtendedHeaders => {
                self.style = HeaderStyle::Extended;
                self.ask_for_contexts(out)
            }
            OptionCode::StructuredReply => {
                self.style = HeaderStyle::Structured;
                self.ask_for_contexts(out)
            }
            OptionCode::SetMetaContext => self.ask_for_goal(out),
            OptionCode::List => {
                send(out, OptionCode::Abort, &[]);
                return Step::End(Next::Listed(std::mem::take(&mut self.listed)));
            }
            OptionCode::Info | OptionCode::Go if !self.has_size => {
                return Step::End(Next::Close(BrokenHandshake::NoSize));
            }
            OptionCode::Info => {
                send(out, OptionCode::Abort, &[]);
                return Step::End(Next::Described(std::mem::take(&mut self.details)));
            }
            OptionCode::Go => return Step::End(Next::Go(self.agreed())),
            // These options were not sent, or have no such reply.
            OptionCode::ExportName | OptionCode::Abort | OptionCode::ListMetaContext => {
                return Step::End(Next::Close(BrokenHandshake::Malformed(option)));
            }
        })
    }

    fn refused(&mut self, refused: Refused, out: &mut Vec<u8>) -> Step {
        match refused.option {
            OptionCode::ExtendedHeaders if refused.error != Ok(OptionError::TlsRequired) => {
                Step::Sent(send(out, OptionCode::StructuredReply, &[]))
            }
            OptionCode::StructuredReply if refused.error != Ok(OptionError::TlsRequired) => {
                Step::Sent(self.ask_for_contexts(out))
            }
            OptionCode::SetMetaContext => {
                self.contexts.clear();
                Step::Sent(self.ask_for_goal(out))
            }
            OptionCode::Go
                if refused.error == Ok(OptionError::Unsupported)
                    && self.style != HeaderStyle::Extended =>
            {
                match self.ask_by_name(out) {
                    Some(option) => Step::Sent(option),
                    None => unreachable!("the goal of GO is an export"),
                }
            }
            _ => {
                // The server has kept to the protocol, so ABORT ends the connection in an orderly way.
                send(out, OptionCode::Abort, &[]);
                Step::End(Next::Close(BrokenHandshake::Refused(refused)))
            }
        }
    }

    /// The agreement with a server that sent these facts by EXPORT_NAME. Facts that preceded a refusal of GO are void.
    pub(super) fn agreed_by_name(&mut self, details: Details) -> Agreed {
        self.details = details;
        self.agreed()
    }

    fn agreed(&mut self) -> Agreed {
        Agreed {
            details: std::mem::take(&mut self.details),
            style: self.style,
            contexts: std::mem::take(&mut self.contexts),
        }
    }
}

fn put_string(data: &mut Vec<u8>, text: &str) {
    data.put_u32(text.len() as u32);
    data.put(text.as_bytes());
}

/// Appends an option, and returns it.
fn send(out: &mut Vec<u8>, option: OptionCode, data: &[u8]) -> OptionCode {
    out.put_u64(OPTION);
    out.put_u32(option.to_wire());
    out.put_u32(data.len() as u32);
    out.put(data);
    option
}

/// The bit that makes a reply an error, known or not.
const ERROR_BIT: u32 = 1 << 31;

/// A complete reply to an option.
pub(super) struct Answer<'a> {
    pub(super) option: OptionCode,
    pub(super) kind: Kind,
    pub(super) data: &'a [u8],
    /// Bytes of header and data.
    pub(super) len: usize,
}

/// The kind of a reply, as its header says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Known(ReplyCode),
    Error(u32),
    Unknown,
}

impl<'a> Answer<'a> {
    /// The reply to `option` at the beginning of `input`; `None` if it has not arrived in full.
    pub(super) fn read(
        option: OptionCode,
        input: &'a [u8],
        most: u32,
    ) -> Result<Option<Self>, BrokenHandshake> {
        let mut fields = Fields::new(input);
        let (Some(magic), Some(to), Some(code), Some(length)) =
            (fields.u64(), fields.u32(), fields.u32(), fields.u32())
        else {
            return Ok(None);
        };
        if magic != OPTION_REPLY {
            return Err(BrokenHandshake::Magic(magic));
        }
        if to != option.to_wire() {
            return Err(BrokenHandshake::WrongOption(to));
        }
        if length > most {
            return Err(BrokenHandshake::TooLong(length));
        }
        let kind = match ReplyCode::from_wire(code) {
            Some(known) => Kind::Known(known),
            None if code & ERROR_BIT != 0 => Kind::Error(code),
            None => Kind::Unknown,
        };
        let len = OPTION_REPLY_LEN + length as usize;
        Ok(fields.bytes(length).map(|data| Self { option, kind, data, len }))
    }

    /// The error of this number with the text of the data.
    pub(super) fn refused(&self, number: u32) -> Refused {
        let error = OptionError::from_wire(number).ok_or(number);
        let text = String::from_utf8_lossy(self.data).into_owned();
        Refused { option: self.option, error, text }
    }

    /// The export of a reply to LIST.
    pub(super) fn listed(&self) -> Option<Listed> {
        let mut fields = Fields::new(self.data);
        let name = text(fields.counted()?)?.to_owned();
        let description = text(fields.rest())?.to_owned();
        Some(Listed { name, description })
    }

    /// The context of a reply to SET_META_CONTEXT.
    pub(super) fn context(&self) -> Option<Context> {
        let mut fields = Fields::new(self.data);
        let id = fields.u32()?;
        Some(Context { id, name: text(fields.rest())?.to_owned() })
    }

    /// Adds the fact of a reply to INFO or GO. Returns `Some(true)` if it was the size, and `None` if it is malformed.
    /// A fact of an unknown type is ignored.
    pub(super) fn learn(&self, details: &mut Details) -> Option<bool> {
        let mut fields = Fields::new(self.data);
        let number = fields.u16()?;
        match InfoType::from_wire(number) {
            Some(InfoType::Export) => {
                details.size = fields.u64()?;
                details.flags = TransmissionFlags::from_wire(fields.u16()?);
                fields.end()?;
                return Some(true);
            }
            Some(InfoType::Name) => details.name = Some(text(fields.rest())?.to_owned()),
            Some(InfoType::Description) => {
                details.description = Some(text(fields.rest())?.to_owned());
            }
            Some(InfoType::BlockSize) => {
                let (min, preferred, most) = (fields.u32()?, fields.u32()?, fields.u32()?);
                fields.end()?;
                details.blocks = Some(blocks([min, preferred, most])?);
            }
            None => {}
        }
        Some(false)
    }
}

/// Block sizes that a server announces: minimum, preferred, longest payload.
fn blocks([min, preferred, most]: [u32; 3]) -> Option<BlockSizes> {
    let widest = BlockSizes::DEFAULT.with_max_payload(u32::MAX).ok()?;
    let sizes = widest.with_min(min).ok()?.with_preferred(preferred).ok()?;
    sizes.with_max_payload(most).ok()
}
