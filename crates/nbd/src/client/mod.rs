//! The client's half: the handshake, the bytes of requests, and replies as they arrive.
//!
//! A client asks for the settings of a [`Plan`], and feeds a [`Handshake`] with the bytes of the server until it
//! answers [`Next::Go`]. It then writes requests with [`Requests`], keeps a [`Pending`] for each, and takes replies
//! with [`Replies::next`]. A server can break the protocol, or refuse, in the ways of [`BrokenHandshake`] and
//! [`BrokenReply`].
//!
//! The handshake is a state machine over bytes (`docs/spec/nbd.md`, section 3), with an order of options and its
//! fallbacks (section 5): TLS, extended headers or else structured replies, then contexts, and finally GO, INFO, or
//! LIST. EXPORT_NAME stands in for GO where a server lacks it. A reply to an option is a header, then data by kind.

mod transmission;

pub use transmission::{Content, Extents, InFlight, Parsed, Pending, Replies, Reply, Requests};

use crate::magic::{
    EXPORT_NAME_ZEROES, GREETING, OLDSTYLE, OPTION, OPTION_REPLY, OPTION_REPLY_LEN,
};
use crate::request::{BlockSizes, Context, Cookie, Listed, Terms};
use crate::wire::{
    ClientFlags, Fields, HandshakeFlags, HeaderStyle, InfoType, Limits, OptionCode, OptionError,
    Put, ReplyCode, TransmissionFlags, text,
};
use std::ops::ControlFlow::{self, Break, Continue};

/// The purpose of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Goal {
    /// To use the export of this name; the empty name is the default export.
    Go(String),
    /// To learn about the export of this name.
    Info(String),
    /// To learn the names of the exports.
    List,
}

/// Whether a client requires TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tls {
    /// No TLS.
    #[default]
    Off,
    /// TLS comes first; the client gives up if the server does not have it.
    Required,
}

/// The settings that a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The purpose of the connection.
    pub goal: Goal,
    /// Whether TLS is required.
    pub tls: Tls,
    /// The most capable form of headers to ask for; a server may support less.
    pub most: HeaderStyle,
    /// The metadata contexts to choose, if the server has them. Each name has at most 4096 bytes.
    pub contexts: Vec<String>,
    /// Bounds on the bytes of the server.
    pub limits: Limits,
}

impl Plan {
    /// A plan with this goal: no TLS, the most able headers, no contexts.
    #[must_use]
    pub fn new(goal: Goal) -> Self {
        Self {
            goal,
            tls: Tls::Off,
            most: HeaderStyle::Extended,
            contexts: Vec::new(),
            limits: Limits::default(),
        }
    }
}

/// The progress of a call to [`feed`](Handshake::feed).
#[derive(Debug)]
pub struct Progress {
    /// Bytes of the input that were consumed.
    pub consumed: usize,
    /// The next step, after the bytes for the server have been sent.
    pub next: Next,
}

/// The next step of the caller.
#[derive(Debug)]
pub enum Next {
    /// Feed more bytes from the server.
    NeedMore,
    /// Do a TLS handshake, and then call [`Handshake::secured`](Handshake::secured).
    StartTls,
    /// Begin the transmission phase.
    Go(Agreed),
    /// The exports of a [`Goal::List`]; the connection can be closed once ABORT is sent.
    Listed(Vec<Listed>),
    /// The facts of a [`Goal::Info`]; the connection can be closed once ABORT is sent.
    Described(Details),
    /// Close the connection. If the server refused, send ABORT first, which is in the output.
    Close(BrokenHandshake),
}

/// The facts about an export that a server has sent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Details {
    /// Its size in bytes.
    pub size: u64,
    /// Its abilities.
    pub flags: TransmissionFlags,
    /// Its block sizes; `None` if the server did not send them.
    pub blocks: Option<BlockSizes>,
    /// Its canonical name; `None` if the server did not send it.
    pub name: Option<String>,
    /// A text for users; `None` if the server did not send one.
    pub description: Option<String>,
}

/// The agreement of a handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// The facts about the export.
    pub details: Details,
    /// The form of headers.
    pub style: HeaderStyle,
    /// The contexts among the requested ones that the server has, with the ids that it assigned.
    pub contexts: Vec<Context>,
}

impl Agreed {
    /// The terms of the transmission phase.
    #[must_use]
    pub fn terms(&self) -> Terms {
        Terms {
            size: self.details.size,
            flags: self.details.flags,
            blocks: self.details.blocks.unwrap_or_default(),
            style: self.style,
            has_contexts: !self.contexts.is_empty(),
        }
    }
}

/// The refusal of an option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The option.
    pub option: OptionCode,
    /// The error, or the number of an unknown one.
    pub error: Result<OptionError, u32>,
    /// The server's text for users; it may be empty.
    pub text: String,
}

impl Refused {
    fn reason(&self) -> String {
        self.error.map_or_else(|number| format!("{number:#x}"), |error| format!("{error:?}"))
    }
}

/// The reason why a client gives up in the handshake.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BrokenHandshake {
    /// The first bytes are not those of an NBD server.
    #[error("{0:#018x} is not the beginning of an NBD server")]
    NotNbd(u64),
    /// The server speaks the old handshake, which has no options.
    #[error("the server speaks the old handshake only")]
    Oldstyle,
    /// The server has no replies to options, which the goal or TLS needs.
    #[error("the server has no replies to options")]
    NotFixedNewstyle,
    /// The given bytes are not the beginning of a reply to an option.
    #[error("{0:#018x} begins no reply to an option")]
    Magic(u64),
    /// A reply to another option than the one sent.
    #[error("a reply to option {0}, which was not sent")]
    WrongOption(u32),
    /// A reply with this many bytes of data, more than [`Limits::option_data`](crate::Limits::option_data).
    #[error("a reply to an option with {0} bytes")]
    TooLong(u32),
    /// More exports than [`Limits::listed`](crate::Limits::listed).
    #[error("the server lists too many exports")]
    TooMany,
    /// A reply that does not belong to its option, or whose data is malformed.
    #[error("a malformed reply to {0:?}")]
    Malformed(OptionCode),
    /// The server began the transmission phase without the size of the export.
    #[error("the server did not tell the size of the export")]
    NoSize,
    /// The option that the goal needs was refused.
    #[error("the server refused {:?}: {}, {:?}", .0.option, .0.reason(), .0.text)]
    Refused(Refused),
    /// Plain bytes behind the agreement on TLS, which an attacker in the middle may have injected.
    #[error("plain bytes behind the agreement on TLS")]
    BytesBeforeTls,
    /// The handshake was already over.
    #[error("the handshake is over")]
    Over,
}

/// The reason why a stream of replies cannot be parsed further.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BrokenReply {
    /// These bytes do not begin a reply of the agreed form.
    #[error("{0:#010x} begins no reply")]
    Magic(u32),
    /// No request in flight has this cookie.
    #[error("a reply to request {:#x}, which is not in flight", .0.0)]
    UnknownCookie(Cookie),
    /// A chunk of this unknown type.
    #[error("a chunk of the unknown type {0}")]
    UnknownChunk(u16),
    /// A chunk that does not belong to its request, or comes in the wrong form.
    #[error("a chunk that does not belong to request {:#x}", .0.0)]
    WrongContent(Cookie),
    /// An extended reply that does not repeat the offset of its request.
    #[error("a reply with another offset than request {:#x}", .0.0)]
    WrongOffset(Cookie),
    /// A chunk of this many bytes, more than the bound.
    #[error("a chunk of {0} bytes")]
    TooLong(u64),
    /// A chunk whose length does not match its type.
    #[error("a chunk of a wrong length for request {:#x}", .0.0)]
    WrongLength(Cookie),
    /// A hole of length zero.
    #[error("an empty hole for request {:#x}", .0.0)]
    EmptyHole(Cookie),
    /// A chunk, or an extent that is not the last one, reaches beyond its request.
    #[error("a chunk outside of the range of request {:#x}", .0.0)]
    Outside(Cookie),
    /// A reply that ended before it had covered its request.
    #[error("the reply to request {:#x} ended too early", .0.0)]
    Incomplete(Cookie),
    /// An extent of length zero, or several where one was requested.
    #[error("extents that do not go with request {:#x}", .0.0)]
    WrongExtents(Cookie),
}

/// A handshake in progress.
#[derive(Debug)]
pub struct Handshake {
    phase: Phase,
    session: Session,
    /// Whether zeroes follow the answer to EXPORT_NAME.
    has_zeroes: bool,
}

/// The meaning of the next bytes.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Greeting,
    /// A reply to this option.
    Reply(OptionCode),
    /// The TLS handshake, which [`Handshake::secured`] ends.
    Tls,
    Over,
}

/// The next step, or a reason to return to the caller.
type Flow = ControlFlow<Next>;

impl Handshake {
    /// A new handshake. The server speaks first.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        Self { phase: Phase::Greeting, session: Session::new(plan), has_zeroes: true }
    }

    /// Takes bytes of the server, and appends the client's answers to `out`.
    ///
    /// The caller feeds unconsumed bytes again, followed by later ones; after [`Next::Go`] they belong to the
    /// transmission phase. A reply is consumed as a whole, so the caller's buffer must hold
    /// [`Limits::option_data`](crate::Limits::option_data) plus 20 bytes. After [`Next::StartTls`] the caller must call
    /// [`secured`](Self::secured); any other end is final.
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Progress {
        let mut rest = input;
        loop {
            let Break(mut next) = self.step(&mut rest, out) else { continue };
            if matches!(next, Next::StartTls) && !rest.is_empty() {
                next = Next::Close(BrokenHandshake::BytesBeforeTls);
            }
            self.phase = match next {
                Next::NeedMore => self.phase,
                Next::StartTls => Phase::Tls,
                _ => Phase::Over,
            };
            return Progress { consumed: input.len() - rest.len(), next };
        }
    }

    /// Continues inside TLS: appends the next option, which is to be sent there.
    ///
    /// # Panics
    /// If the last [`feed`](Self::feed) did not end with [`Next::StartTls`].
    pub fn secured(&mut self, out: &mut Vec<u8>) {
        assert!(matches!(self.phase, Phase::Tls), "TLS was agreed on");
        self.phase = Phase::Reply(self.session.ask_for_headers(out));
    }

    fn step(&mut self, rest: &mut &[u8], out: &mut Vec<u8>) -> Flow {
        match self.phase {
            Phase::Greeting => self.greeting(rest, out),
            Phase::Reply(OptionCode::ExportName) => self.export_name(rest),
            Phase::Reply(option) => self.reply(option, rest, out),
            // Plain bytes where TLS should begin.
            Phase::Tls if rest.is_empty() => Break(Next::NeedMore),
            Phase::Tls => Break(Next::Close(BrokenHandshake::BytesBeforeTls)),
            Phase::Over => Break(Next::Close(BrokenHandshake::Over)),
        }
    }

    fn greeting(&mut self, rest: &mut &[u8], out: &mut Vec<u8>) -> Flow {
        let mut fields = Fields::new(rest);
        for expected in [GREETING, OPTION] {
            match fields.u64() {
                None => return Break(Next::NeedMore),
                Some(OLDSTYLE) => return Break(Next::Close(BrokenHandshake::Oldstyle)),
                Some(magic) if magic != expected => {
                    return Break(Next::Close(BrokenHandshake::NotNbd(magic)));
                }
                Some(_) => {}
            }
        }
        let Some(bits) = fields.u16() else { return Break(Next::NeedMore) };
        *rest = fields.rest();
        let server = HandshakeFlags::from_wire(bits);
        let mut flags = ClientFlags::NONE;
        if server.contains(HandshakeFlags::NO_ZEROES) {
            flags = flags.with(ClientFlags::NO_ZEROES);
            self.has_zeroes = false;
        }
        let has_replies = server.contains(HandshakeFlags::FIXED_NEWSTYLE);
        if has_replies {
            flags = flags.with(ClientFlags::FIXED_NEWSTYLE);
        }
        out.put_u32(flags.to_wire());
        let sent = if has_replies {
            Some(self.session.begin(out))
        } else if self.session.plan.tls == Tls::Required {
            None
        } else {
            self.session.ask_by_name(out)
        };
        let Some(option) = sent else {
            return Break(Next::Close(BrokenHandshake::NotFixedNewstyle));
        };
        self.phase = Phase::Reply(option);
        Continue(())
    }

    fn reply(&mut self, option: OptionCode, rest: &mut &[u8], out: &mut Vec<u8>) -> Flow {
        let answer = match Answer::read(option, rest, self.session.plan.limits.option_data) {
            Ok(Some(answer)) => answer,
            Ok(None) => return Break(Next::NeedMore),
            Err(broken) => return Break(Next::Close(broken)),
        };
        *rest = &rest[answer.len..];
        match self.session.answered(&answer, out) {
            Step::Same => Continue(()),
            Step::Sent(option) => {
                self.phase = Phase::Reply(option);
                Continue(())
            }
            Step::End(next) => Break(next),
        }
    }

    /// Handles the answer to EXPORT_NAME, which has no header of a reply.
    fn export_name(&mut self, rest: &mut &[u8]) -> Flow {
        let mut fields = Fields::new(rest);
        let zeroes = if self.has_zeroes { EXPORT_NAME_ZEROES as u32 } else { 0 };
        let (Some(size), Some(flags), Some(_)) = (fields.u64(), fields.u16(), fields.bytes(zeroes))
        else {
            return Break(Next::NeedMore);
        };
        *rest = fields.rest();
        let flags = TransmissionFlags::from_wire(flags);
        // Facts that preceded a refusal of GO are void.
        self.session.details = Details { size, flags, ..Details::default() };
        Break(Next::Go(self.session.agreed()))
    }
}

/// The state of a handshake between two replies.
#[derive(Debug)]
struct Session {
    plan: Plan,
    style: HeaderStyle,
    contexts: Vec<Context>,
    listed: Vec<Listed>,
    details: Details,
    has_size: bool,
}

/// The step after a reply.
enum Step {
    /// Another reply to the same option.
    Same,
    /// The reply to this option, which has been sent.
    Sent(OptionCode),
    /// The end of the handshake, or TLS.
    End(Next),
}

impl Session {
    fn new(plan: Plan) -> Self {
        Self {
            plan,
            style: HeaderStyle::Simple,
            contexts: Vec::new(),
            listed: Vec::new(),
            details: Details::default(),
            has_size: false,
        }
    }

    /// Sends the first option to a server that replies to options.
    fn begin(&self, out: &mut Vec<u8>) -> OptionCode {
        match self.plan.tls {
            Tls::Required => send(out, OptionCode::StartTls, &[]),
            Tls::Off => self.ask_for_headers(out),
        }
    }

    /// Sends the first option inside TLS, or the first one if there is none.
    fn ask_for_headers(&self, out: &mut Vec<u8>) -> OptionCode {
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
    fn ask_by_name(&self, out: &mut Vec<u8>) -> Option<OptionCode> {
        match &self.plan.goal {
            Goal::Go(name) => Some(send(out, OptionCode::ExportName, name.as_bytes())),
            Goal::Info(_) | Goal::List => None,
        }
    }

    /// Takes a reply to the option that was sent last.
    fn answered(&mut self, answer: &Answer<'_>, out: &mut Vec<u8>) -> Step {
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
struct Answer<'a> {
    option: OptionCode,
    kind: Kind,
    data: &'a [u8],
    /// Bytes of header and data.
    len: usize,
}

/// The kind of a reply, as its header says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Known(ReplyCode),
    Error(u32),
    Unknown,
}

impl<'a> Answer<'a> {
    /// The reply to `option` at the beginning of `input`; `None` if it has not arrived in full.
    fn read(
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
    fn refused(&self, number: u32) -> Refused {
        let error = OptionError::from_wire(number).ok_or(number);
        let text = String::from_utf8_lossy(self.data).into_owned();
        Refused { option: self.option, error, text }
    }

    /// The export of a reply to LIST.
    fn listed(&self) -> Option<Listed> {
        let mut fields = Fields::new(self.data);
        let name = text(fields.counted()?)?.to_owned();
        let description = text(fields.rest())?.to_owned();
        Some(Listed { name, description })
    }

    /// The context of a reply to SET_META_CONTEXT.
    fn context(&self) -> Option<Context> {
        let mut fields = Fields::new(self.data);
        let id = fields.u32()?;
        Some(Context { id, name: text(fields.rest())?.to_owned() })
    }

    /// Adds the fact of a reply to INFO or GO. Returns `Some(true)` if it was the size, and `None` if it is malformed.
    /// A fact of an unknown type is ignored.
    fn learn(&self, details: &mut Details) -> Option<bool> {
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
