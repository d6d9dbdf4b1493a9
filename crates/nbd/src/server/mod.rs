//! The server's half: the handshake, requests as they arrive, and the bytes of replies.
//!
//! A server sends [`Handshake::greeting`], feeds a [`Handshake`] with a [`Config`] until it answers [`Next::Go`], and
//! then takes requests with [`Requests::next`], checks each against the [`Terms`] of the [`Negotiated`]
//! and writes replies with [`Replies`].
//!
//! The handshake is fixed newstyle, as a state machine over bytes (`docs/spec/nbd.md`, section 3), with the answers to
//! options and the agreed terms (sections 3.1 and 3.2). It keeps no bytes. An option's data is read in the caller's
//! buffer, and data without a use is skipped as it arrives. Lengths in it must match exactly: a byte too few or too
//! many is an error. A session sees one option at a time, with all of its data. A query that selects no metadata
//! context, in an unknown namespace or without one, is not an error (section 4).

mod transmission;

pub use transmission::{Extents, Malformed, Parsed, Pieces, Replies, Requests, Room};

use crate::magic::{EXPORT_NAME_ZEROES, GREETING, OPTION, OPTION_REPLY, STRING};
use crate::request::{Context, ExportInfo, Exports, Terms};
use crate::wire::{
    ClientFlags, Fields, HandshakeFlags, HeaderStyle, InfoType, Limits, OptionCode, OptionError,
    Put, ReplyCode, clipped, text,
};
use std::ops::ControlFlow::{self, Break, Continue};

/// TLS on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tls {
    /// No TLS.
    #[default]
    Off,
    /// TLS must come first: options outside of it are refused.
    Required,
    /// The connection is already inside TLS.
    Established,
}

/// Whether clients may see the names of exports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Listing {
    /// LIST is answered.
    #[default]
    Shown,
    /// LIST is refused; a client must know the name.
    Hidden,
}

/// The configuration of a handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Bounds on bytes.
    pub limits: Limits,
    /// TLS at the beginning.
    pub tls: Tls,
    /// Whether LIST is answered.
    pub listing: Listing,
    /// The most capable form of headers that is offered; options for more capable ones count as unknown. For tests of
    /// the fallbacks of clients.
    pub most: HeaderStyle,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            tls: Tls::Off,
            listing: Listing::Shown,
            most: HeaderStyle::Extended,
        }
    }
}

/// The progress of a call to [`feed`](Handshake::feed).
#[derive(Debug)]
pub struct Progress {
    /// Bytes of the input that were consumed. The rest belongs to the next call, or, after [`Next::Go`], to the
    /// transmission phase.
    pub consumed: usize,
    /// The next step, after the answers have been sent.
    pub next: Next,
}

/// The next step of the caller.
#[derive(Debug)]
pub enum Next {
    /// Feed more bytes from the client.
    NeedMore,
    /// Do a TLS handshake, and then continue this handshake with the bytes inside TLS. Plain bytes behind the option
    /// were consumed as well, because an attacker in the middle may have injected them.
    StartTls,
    /// Begin the transmission phase.
    Go(Negotiated),
    /// Close the connection.
    Close(Closing),
}

/// The agreement of a handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// The name that the client used for the export.
    pub export: String,
    /// Size, abilities, block sizes and the form of headers.
    pub terms: Terms,
    /// The metadata contexts that BLOCK_STATUS reports, in the order of their ids.
    pub contexts: Vec<Context>,
    /// Whether the client has asked for block sizes. If not, it may expect any request to be served.
    pub asked_block_sizes: bool,
    /// Whether the options came inside TLS.
    pub tls: bool,
}

/// The reason why a connection ends in its handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Closing {
    /// The client ended the handshake (ABORT).
    #[error("the client ended the handshake")]
    Aborted,
    /// The client's flags include one that was not offered.
    #[error("client flags {0:#x} were not offered")]
    UnknownFlags(u32),
    /// TLS is required, but the client does not handle replies to options.
    #[error("TLS is required of a client without fixed newstyle")]
    NoRepliesForTls,
    /// The given bytes are not the beginning of an option.
    #[error("{0:#018x} begins no option")]
    NoOption(u64),
    /// More options than [`Limits::options`](crate::Limits::options).
    #[error("too many options")]
    TooManyOptions,
    /// An option with more data than [`Limits::option_dropped`](crate::Limits::option_dropped).
    #[error("option {option} with {length} bytes of data")]
    TooMuchData {
        /// The number of the option.
        option: u32,
        /// The length of its data in bytes.
        length: u32,
    },
    /// EXPORT_NAME of an unknown export. The option cannot be answered by an error.
    #[error("EXPORT_NAME of an unknown export")]
    UnknownExport,
    /// EXPORT_NAME with data that is not a name.
    #[error("EXPORT_NAME with data that is no name")]
    NoName,
    /// EXPORT_NAME outside of TLS.
    #[error("EXPORT_NAME outside of TLS")]
    ExportNameWithoutTls,
    /// EXPORT_NAME after extended headers were agreed.
    #[error("EXPORT_NAME after extended headers were agreed")]
    ExportNameWithExtendedHeaders,
    /// The handshake was already over.
    #[error("the handshake is over")]
    Over,
}

/// A handshake in progress.
#[derive(Debug)]
pub struct Handshake {
    phase: Phase,
    session: Session,
    options: u32,
}

/// The meaning of the next bytes.
#[derive(Clone, Copy, Debug)]
enum Phase {
    ClientFlags,
    Option,
    /// The data of an option, which is read once it has arrived in full.
    Data {
        option: OptionCode,
        length: usize,
    },
    /// Data of an option that is skipped, and the answer to send behind it.
    Dropped {
        option: u32,
        left: usize,
        then: Then,
    },
    Over,
}

/// An answer that does not depend on the option's data.
#[derive(Clone, Copy, Debug)]
enum Then {
    Refuse(Refusal),
    Abort,
}

/// The next step, or a reason to return to the caller.
type Flow = ControlFlow<Next>;

impl Handshake {
    /// A new handshake.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { phase: Phase::ClientFlags, session: Session::new(config), options: 0 }
    }

    /// Returns the number of options received, if the client has asked for a list, after which it may ask for each
    /// export; otherwise 0.
    #[must_use]
    pub fn options_after_list(&self) -> u32 {
        if self.session.listed > 0 { self.options } else { 0 }
    }

    /// Appends the 18 bytes that a server sends first.
    pub fn greeting(&self, out: &mut Vec<u8>) {
        out.put_u64(GREETING);
        out.put_u64(OPTION);
        out.put_u16(HandshakeFlags::KNOWN.to_wire());
    }

    /// Takes bytes of the client, and appends the answers to `out`.
    ///
    /// The caller feeds unconsumed bytes again, followed by later ones. An option's data is consumed as a whole, so the
    /// caller's buffer must hold [`Limits::option_data`](crate::Limits::option_data) bytes. After [`Next::Go`] and
    /// [`Next::Close`] the handshake is over, and consumes all further input.
    pub fn feed(&mut self, input: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> Progress {
        let mut rest = input;
        loop {
            let Break(next) = self.step(&mut rest, exports, out) else { continue };
            if matches!(next, Next::Go(_) | Next::Close(_)) {
                self.phase = Phase::Over;
            }
            if matches!(next, Next::StartTls | Next::Close(_)) {
                rest = &[];
            }
            return Progress { consumed: input.len() - rest.len(), next };
        }
    }

    fn step(&mut self, rest: &mut &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> Flow {
        match self.phase {
            Phase::ClientFlags => self.client_flags(rest),
            Phase::Option => self.option(rest),
            Phase::Data { option, length } => {
                let Some((data, behind)) = rest.split_at_checked(length) else {
                    return Break(Next::NeedMore);
                };
                *rest = behind;
                self.phase = Phase::Option;
                let end = self.session.answer(&Asked { option, data, exports }, out);
                end.map_or(Continue(()), Break)
            }
            Phase::Dropped { option, left, then } => {
                let dropped = left.min(rest.len());
                *rest = &rest[dropped..];
                if dropped < left {
                    self.phase = Phase::Dropped { option, left: left - dropped, then };
                    return Break(Next::NeedMore);
                }
                self.phase = Phase::Option;
                self.answer_unread(option, then, exports, out)
            }
            Phase::Over => Break(Next::Close(Closing::Over)),
        }
    }

    fn answer_unread(
        &mut self,
        option: u32,
        then: Then,
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Flow {
        match then {
            Then::Refuse(refusal) => {
                put_refusal(out, option, refusal);
                Continue(())
            }
            Then::Abort => {
                let asked = Asked { option: OptionCode::Abort, data: &[], exports };
                self.session.answer(&asked, out).map_or(Continue(()), Break)
            }
        }
    }

    fn client_flags(&mut self, rest: &mut &[u8]) -> Flow {
        let mut fields = Fields::new(rest);
        let Some(bits) = fields.u32() else { return Break(Next::NeedMore) };
        *rest = fields.rest();
        if let Err(closing) = self.session.begin(ClientFlags::from_wire(bits)) {
            return Break(Next::Close(closing));
        }
        self.phase = Phase::Option;
        Continue(())
    }

    /// Takes the header of an option, and decides whether its data is read or skipped.
    fn option(&mut self, rest: &mut &[u8]) -> Flow {
        let mut fields = Fields::new(rest);
        let (Some(magic), Some(number), Some(length)) = (fields.u64(), fields.u32(), fields.u32())
        else {
            return Break(Next::NeedMore);
        };
        *rest = fields.rest();
        if magic != OPTION {
            return Break(Next::Close(Closing::NoOption(magic)));
        }
        self.options += 1;
        let limits = &self.session.config.limits;
        let listed = self.session.listed.saturating_mul(limits.options_listed);
        if self.options > limits.options.saturating_add(listed) {
            return Break(Next::Close(Closing::TooManyOptions));
        }
        // The data of EXPORT_NAME is the name itself, and no reply can refuse it.
        let is_name = number == OptionCode::ExportName.to_wire();
        if is_name && length > limits.string {
            return Break(Next::Close(Closing::NoName));
        }
        if length > limits.option_dropped {
            return Break(Next::Close(Closing::TooMuchData { option: number, length }));
        }
        let dropped = |then| Phase::Dropped { option: number, left: length as usize, then };
        self.phase = match self.session.admit(number, length) {
            Ok(OptionCode::Abort) => dropped(Then::Abort),
            Ok(option) => Phase::Data { option, length: length as usize },
            Err(refusal) => dropped(Then::Refuse(refusal)),
        };
        Continue(())
    }
}

const UNSUPPORTED: Refusal = Refusal::new(OptionError::Unsupported, "the option is not supported");
const NO_TLS: Refusal = Refusal::new(OptionError::Unsupported, "this server has no TLS");
const TLS_FIRST: Refusal = Refusal::new(OptionError::TlsRequired, "STARTTLS has to come first");
const TLS_TWICE: Refusal = Refusal::invalid("TLS is in use already");
const TOO_BIG: Refusal = Refusal::new(OptionError::TooBig, "the option has too much data");
const NO_DATA: Refusal = Refusal::invalid("the option has no data");
const HIDDEN: Refusal = Refusal::new(OptionError::Policy, "exports are not listed here");
const LISTS: Refusal = Refusal::new(OptionError::Policy, "the exports were listed often enough");
const UNKNOWN: Refusal = Refusal::new(OptionError::Unknown, "there is no such export");
const NO_CHUNKS: Refusal = Refusal::invalid("contexts need structured replies or extended headers");
const EXTENDED: Refusal =
    Refusal::new(OptionError::ExtendedHeadersRequired, "extended headers are agreed already");

/// The state of a handshake between two options.
#[derive(Debug)]
struct Session {
    config: Config,
    tls: Tls,
    client: ClientFlags,
    agreed: Agreed,
    lists: u32,
    /// The number of exports in the longest list.
    listed: u32,
}

/// The terms agreed so far. STARTTLS discards them.
#[derive(Default, Debug)]
struct Agreed {
    style: HeaderStyle,
    chosen: Option<Chosen>,
}

/// The metadata contexts of the last SET_META_CONTEXT, and the export that it named.
#[derive(Debug)]
struct Chosen {
    export: String,
    contexts: Vec<Context>,
}

/// The data of an option, and the directory to answer it from.
struct Asked<'a> {
    option: OptionCode,
    data: &'a [u8],
    exports: &'a dyn Exports,
}

/// The end of the handshake, if an option ends it.
type End = Option<Next>;

impl Session {
    fn new(config: Config) -> Self {
        Self {
            tls: config.tls,
            config,
            client: ClientFlags::NONE,
            agreed: Agreed::default(),
            lists: 0,
            listed: 0,
        }
    }

    fn begin(&mut self, client: ClientFlags) -> Result<(), Closing> {
        if !client.is_within(ClientFlags::KNOWN) {
            return Err(Closing::UnknownFlags(client.to_wire()));
        }
        if !client.contains(ClientFlags::FIXED_NEWSTYLE) && self.tls == Tls::Required {
            return Err(Closing::NoRepliesForTls);
        }
        self.client = client;
        Ok(())
    }

    /// The option with this number, if its data of this length is to be read.
    fn admit(&self, number: u32, length: u32) -> Result<OptionCode, Refusal> {
        let option = OptionCode::from_wire(number);
        // The answers of these options differ with TLS and without.
        let is_exempt = matches!(
            option,
            Some(OptionCode::StartTls | OptionCode::Abort | OptionCode::ExportName)
        );
        if self.tls == Tls::Required && !is_exempt {
            return Err(TLS_FIRST);
        }
        let option = option.ok_or(UNSUPPORTED)?;
        let (offered, has_data) = match option {
            OptionCode::ExtendedHeaders => (self.config.most >= HeaderStyle::Extended, false),
            OptionCode::StructuredReply => (self.config.most >= HeaderStyle::Structured, false),
            OptionCode::List | OptionCode::StartTls => (true, false),
            _ => (true, true),
        };
        if !offered {
            Err(UNSUPPORTED)
        } else if length > 0 && !has_data {
            Err(NO_DATA)
        } else if length > self.config.limits.option_data && option != OptionCode::Abort {
            Err(TOO_BIG)
        } else {
            Ok(option)
        }
    }

    /// Answers an option that was admitted.
    fn answer(&mut self, asked: &Asked<'_>, out: &mut Vec<u8>) -> End {
        let outcome = match asked.option {
            OptionCode::ExportName => return Some(self.export_name(asked, out)),
            OptionCode::Abort => {
                put_ack(out, OptionCode::Abort);
                return Some(Next::Close(Closing::Aborted));
            }
            OptionCode::StartTls => self.start_tls(out),
            OptionCode::List => self.list(asked.exports, out),
            OptionCode::Info | OptionCode::Go => self.info(asked, out),
            OptionCode::StructuredReply if self.agreed.style == HeaderStyle::Extended => {
                Err(EXTENDED)
            }
            OptionCode::StructuredReply => Ok(self.agree(HeaderStyle::Structured, asked, out)),
            OptionCode::ExtendedHeaders => Ok(self.agree(HeaderStyle::Extended, asked, out)),
            OptionCode::ListMetaContext => self.list_contexts(asked, out),
            OptionCode::SetMetaContext => self.set_contexts(asked, out),
        };
        outcome.unwrap_or_else(|refusal| {
            put_refusal(out, asked.option.to_wire(), refusal);
            None
        })
    }

    /// Forgets all that was agreed in plain text, because an attacker in the middle may have said it. Where TLS is
    /// required nothing has been agreed yet, but this function does not rely on that.
    fn start_tls(&mut self, out: &mut Vec<u8>) -> Result<End, Refusal> {
        match self.tls {
            Tls::Off => Err(NO_TLS),
            Tls::Established => Err(TLS_TWICE),
            Tls::Required => {
                put_ack(out, OptionCode::StartTls);
                self.tls = Tls::Established;
                self.agreed = Agreed::default();
                Ok(Some(Next::StartTls))
            }
        }
    }

    fn agree(&mut self, style: HeaderStyle, asked: &Asked<'_>, out: &mut Vec<u8>) -> End {
        self.agreed.style = style;
        put_ack(out, asked.option);
        None
    }

    fn list(&mut self, exports: &dyn Exports, out: &mut Vec<u8>) -> Result<End, Refusal> {
        if self.config.listing == Listing::Hidden {
            return Err(HIDDEN);
        }
        if self.lists == self.config.limits.lists {
            return Err(LISTS);
        }
        self.lists += 1;
        let mut listed = 0_u32;
        exports.list(&mut |name, description| {
            listed += 1;
            put_listed(out, name, description);
        });
        self.listed = self.listed.max(listed);
        put_ack(out, OptionCode::List);
        Ok(None)
    }

    fn list_contexts(&self, asked: &Asked<'_>, out: &mut Vec<u8>) -> Result<End, Refusal> {
        let request = ContextRequest::read(asked.data, &self.config.limits)?;
        let export = asked.exports.find(request.name).ok_or(UNKNOWN)?;
        for context in listed(&export, &request.queries) {
            // LIST_META_CONTEXT reports id 0: ids belong to chosen contexts.
            put_context(out, asked.option, 0, &context.name);
        }
        put_ack(out, asked.option);
        Ok(None)
    }

    /// Discards the earlier choice, even if this one fails.
    fn set_contexts(&mut self, asked: &Asked<'_>, out: &mut Vec<u8>) -> Result<End, Refusal> {
        self.agreed.chosen = None;
        if !self.agreed.style.has_chunks() {
            return Err(NO_CHUNKS);
        }
        let request = ContextRequest::read(asked.data, &self.config.limits)?;
        let export = asked.exports.find(request.name).ok_or(UNKNOWN)?;
        let contexts = chosen(&export, &request.queries);
        for context in &contexts {
            put_context(out, asked.option, context.id, &context.name);
        }
        put_ack(out, asked.option);
        self.agreed.chosen = Some(Chosen { export: request.name.to_owned(), contexts });
        Ok(None)
    }

    fn info(&mut self, asked: &Asked<'_>, out: &mut Vec<u8>) -> Result<End, Refusal> {
        let request = InfoRequest::read(asked.data, &self.config.limits)?;
        let export = asked.exports.find(request.name).ok_or(UNKNOWN)?;
        let terms = self.terms(request.name, &export);
        let asked_block_sizes = request.wants(InfoType::BlockSize);
        let mut put = |info, data: &[u8]| put_info(out, asked.option, info, data);
        put(InfoType::Export, &size_and_flags(&terms));
        if request.wants(InfoType::Name) {
            put(InfoType::Name, shown(&export.name));
        }
        if request.wants(InfoType::Description) && !export.description.is_empty() {
            put(InfoType::Description, shown(&export.description));
        }
        if asked_block_sizes {
            let blocks = terms.blocks;
            let sizes = [blocks.min(), blocks.preferred(), blocks.max_payload()];
            put(InfoType::BlockSize, sizes.map(u32::to_be_bytes).as_flattened());
        }
        put_ack(out, asked.option);
        let goes = asked.option == OptionCode::Go;
        Ok(goes.then(|| Next::Go(self.negotiated(request.name, terms, asked_block_sizes))))
    }

    /// Answers EXPORT_NAME: by success, or by the end of the connection.
    fn export_name(&mut self, asked: &Asked<'_>, out: &mut Vec<u8>) -> Next {
        if self.tls == Tls::Required {
            return Next::Close(Closing::ExportNameWithoutTls);
        }
        if self.agreed.style == HeaderStyle::Extended {
            return Next::Close(Closing::ExportNameWithExtendedHeaders);
        }
        let Ok(name) = string(asked.data, &self.config.limits) else {
            return Next::Close(Closing::NoName);
        };
        let Some(export) = asked.exports.find(name) else {
            return Next::Close(Closing::UnknownExport);
        };
        let terms = self.terms(name, &export);
        let without = self.client.contains(ClientFlags::NO_ZEROES);
        // The answer has no header: size, flags, and zeroes unless they are left out.
        out.put(&size_and_flags(&terms));
        out.resize(out.len() + if without { 0 } else { EXPORT_NAME_ZEROES }, 0);
        Next::Go(self.negotiated(name, terms, false))
    }

    /// The chosen contexts, if they were chosen for this export.
    fn chosen_for(&self, name: &str) -> &[Context] {
        let chosen = self.agreed.chosen.as_ref().filter(|chosen| chosen.export == name);
        chosen.map_or(&[], |chosen| &chosen.contexts)
    }

    fn terms(&self, name: &str, export: &ExportInfo) -> Terms {
        Terms {
            size: export.size,
            flags: export.transmission_flags(self.agreed.style.has_chunks()),
            blocks: export.blocks.bounded(self.config.limits.payload),
            style: self.agreed.style,
            has_contexts: !self.chosen_for(name).is_empty(),
        }
    }

    fn negotiated(&self, name: &str, terms: Terms, asked_block_sizes: bool) -> Negotiated {
        Negotiated {
            export: name.to_owned(),
            terms,
            contexts: self.chosen_for(name).to_vec(),
            asked_block_sizes,
            tls: self.tls == Tls::Established,
        }
    }
}

/// The contexts of `export` with their ids.
fn all(export: &ExportInfo) -> impl Iterator<Item = Context> + '_ {
    let ids = 1..;
    ids.zip(&export.contexts).map(|(id, name)| Context { id, name: name.clone() })
}

/// The contexts that LIST_META_CONTEXT selects: all without a query. A query is a name, or a namespace with its colon.
fn listed(export: &ExportInfo, queries: &[&str]) -> Vec<Context> {
    let is_asked = |name: &str| {
        queries.is_empty()
            || queries
                .iter()
                .any(|query| *query == name || query.ends_with(':') && name.starts_with(query))
    };
    all(export).filter(|context| is_asked(&context.name)).collect()
}

/// The contexts that SET_META_CONTEXT selects, by their full names.
fn chosen(export: &ExportInfo, queries: &[&str]) -> Vec<Context> {
    all(export).filter(|context| queries.contains(&context.name.as_str())).collect()
}

const TRUNCATED: Refusal = Refusal::invalid("the lengths in the option's data exceed it");
const EXCESS: Refusal = Refusal::invalid("the option's data is longer than the lengths in it say");
const NO_STRING: Refusal = Refusal::invalid("a string is not UTF-8, or has a NUL");
const TWICE: Refusal = Refusal::invalid("an information is asked for twice");
const LONG_STRING: Refusal = Refusal::new(OptionError::TooBig, "a string is too long");
const MANY_QUERIES: Refusal = Refusal::new(OptionError::TooBig, "too many queries");

/// The data of INFO and GO.
#[derive(PartialEq, Eq, Debug)]
struct InfoRequest<'a> {
    name: &'a str,
    wanted: [bool; InfoType::ALL.len()],
}

impl<'a> InfoRequest<'a> {
    fn read(data: &'a [u8], limits: &Limits) -> Result<Self, Refusal> {
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

    fn wants(&self, info: InfoType) -> bool {
        self.wanted[usize::from(info.to_wire())]
    }
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
#[derive(PartialEq, Eq, Debug)]
struct ContextRequest<'a> {
    name: &'a str,
    queries: Vec<&'a str>,
}

impl<'a> ContextRequest<'a> {
    fn read(data: &'a [u8], limits: &Limits) -> Result<Self, Refusal> {
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
fn string<'a>(bytes: &'a [u8], limits: &Limits) -> Result<&'a str, Refusal> {
    if bytes.len() > limits.string as usize {
        return Err(LONG_STRING);
    }
    text(bytes).ok_or(NO_STRING)
}

/// An error for the client, with a text for the user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Refusal {
    error: OptionError,
    text: &'static str,
}

impl Refusal {
    const fn new(error: OptionError, text: &'static str) -> Self {
        Self { error, text }
    }

    const fn invalid(text: &'static str) -> Self {
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

fn put_ack(out: &mut Vec<u8>, option: OptionCode) {
    reply(out, option.to_wire(), ReplyCode::Ack.to_wire(), &[]);
}

/// Refuses an option, whose number may be unknown.
fn put_refusal(out: &mut Vec<u8>, option: u32, refusal: Refusal) {
    reply(out, option, refusal.error.to_wire(), &[refusal.text.as_bytes()]);
}

/// An export in a LIST. A name that the protocol cannot carry is left out, because no client could ask for it.
fn put_listed(out: &mut Vec<u8>, name: &str, description: &str) {
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
fn put_context(out: &mut Vec<u8>, option: OptionCode, id: u32, name: &str) {
    let parts = [&id.to_be_bytes()[..], name.as_bytes()];
    reply(out, option.to_wire(), ReplyCode::MetaContext.to_wire(), &parts);
}

/// A fact about an export, as a reply to INFO or GO.
fn put_info(out: &mut Vec<u8>, option: OptionCode, info: InfoType, data: &[u8]) {
    let parts = [&info.to_wire().to_be_bytes()[..], data];
    reply(out, option.to_wire(), ReplyCode::Info.to_wire(), &parts);
}

fn size_and_flags(terms: &Terms) -> Vec<u8> {
    let flags = terms.flags.to_wire().to_be_bytes();
    [&terms.size.to_be_bytes()[..], &flags].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export() -> ExportInfo {
        let contexts = ["base:allocation", "x-blkmq:tier", "x-blkmq:zone"];
        ExportInfo { contexts: contexts.map(str::to_owned).to_vec(), ..ExportInfo::default() }
    }

    fn ids(contexts: &[Context]) -> Vec<u32> {
        contexts.iter().map(|context| context.id).collect()
    }

    #[test]
    fn a_list_takes_names_namespaces_or_nothing() {
        let export = export();
        assert_eq!(ids(&listed(&export, &[])), [1, 2, 3]);
        assert_eq!(ids(&listed(&export, &["x-blkmq:"])), [2, 3]);
        assert_eq!(ids(&listed(&export, &["base:", "x-blkmq:zone", "base:allocation"])), [1, 3]);
        assert_eq!(ids(&listed(&export, &["qemu:", "base", "x-blkmq:z"])), [0; 0]);
    }

    #[test]
    fn a_choice_takes_names_only() {
        let export = export();
        assert_eq!(ids(&chosen(&export, &["x-blkmq:zone", "base:allocation"])), [1, 3]);
        assert_eq!(ids(&chosen(&export, &["x-blkmq:tier", "x-blkmq:tier"])), [2]);
        assert_eq!(ids(&chosen(&export, &["base:", "qemu:dirty-bitmap:x", ""])), [0; 0]);
        assert_eq!(ids(&chosen(&export, &[])), [0; 0]);
    }

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
