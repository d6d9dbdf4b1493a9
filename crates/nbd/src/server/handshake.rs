//! The server's handshake: fixed newstyle, as a state machine over bytes (`docs/spec/nbd.md`, section 3), and the
//! answers to options, with the agreed terms (sections 3.1 and 3.2).
//!
//! It keeps no bytes. An option's data is read in the caller's buffer, and data without a use is skipped as it arrives.
//! A session sees one option at a time, with all of its data. A query that selects no metadata context, in an unknown
//! namespace or without one, is not an error (section 4).

use super::options::{self, ContextRequest, InfoRequest, Infos, Refusal, string};
use super::{Closing, Config, Listing, Negotiated, Next, Progress, Tls};
use crate::code::{ClientFlags, HandshakeFlags, InfoType, OptionCode, OptionError};
use crate::export::{Context, ExportInfo, Exports};
use crate::magic::{EXPORT_NAME_ZEROES, GREETING, OPTION};
use crate::request::Terms;
use crate::wire::{Fields, HeaderStyle, Put};
use std::ops::ControlFlow::{self, Break, Continue};

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
        if self.session.listed() > 0 { self.options } else { 0 }
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
                options::refuse(out, option, refusal);
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
        let limits = &self.session.config().limits;
        let listed = self.session.listed().saturating_mul(limits.options_listed);
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
    pub(super) fn new(config: Config) -> Self {
        Self {
            tls: config.tls,
            config,
            client: ClientFlags::NONE,
            agreed: Agreed::default(),
            lists: 0,
            listed: 0,
        }
    }

    fn config(&self) -> &Config {
        &self.config
    }

    /// The number of exports listed to the client.
    fn listed(&self) -> u32 {
        self.listed
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
                options::ack(out, OptionCode::Abort);
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
            options::refuse(out, asked.option.to_wire(), refusal);
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
                options::ack(out, OptionCode::StartTls);
                self.tls = Tls::Established;
                self.agreed = Agreed::default();
                Ok(Some(Next::StartTls))
            }
        }
    }

    fn agree(&mut self, style: HeaderStyle, asked: &Asked<'_>, out: &mut Vec<u8>) -> End {
        self.agreed.style = style;
        options::ack(out, asked.option);
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
            options::server(out, name, description);
        });
        self.listed = self.listed.max(listed);
        options::ack(out, OptionCode::List);
        Ok(None)
    }

    fn list_contexts(&self, asked: &Asked<'_>, out: &mut Vec<u8>) -> Result<End, Refusal> {
        let request = ContextRequest::read(asked.data, &self.config.limits)?;
        let export = asked.exports.find(request.name).ok_or(UNKNOWN)?;
        for context in listed(&export, &request.queries) {
            // LIST_META_CONTEXT reports id 0: ids belong to chosen contexts.
            options::context(out, asked.option, 0, &context.name);
        }
        options::ack(out, asked.option);
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
            options::context(out, asked.option, context.id, &context.name);
        }
        options::ack(out, asked.option);
        self.agreed.chosen = Some(Chosen { export: request.name.to_owned(), contexts });
        Ok(None)
    }

    fn info(&mut self, asked: &Asked<'_>, out: &mut Vec<u8>) -> Result<End, Refusal> {
        let request = InfoRequest::read(asked.data, &self.config.limits)?;
        let export = asked.exports.find(request.name).ok_or(UNKNOWN)?;
        let terms = self.terms(request.name, &export);
        let asked_block_sizes = request.wants(InfoType::BlockSize);
        let mut infos = Infos { out, option: asked.option };
        infos.export(&terms);
        if request.wants(InfoType::Name) {
            infos.name(&export.name);
        }
        if request.wants(InfoType::Description) && !export.description.is_empty() {
            infos.description(&export.description);
        }
        if asked_block_sizes {
            infos.block_sizes(&terms);
        }
        options::ack(out, asked.option);
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
        options::export_name(out, &terms, if without { 0 } else { EXPORT_NAME_ZEROES });
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
}
