//! The answers to options, and the agreed terms (`docs/spec/nbd.md`, sections 3.1 and 3.2).
//!
//! A session sees one option at a time, with all of its data. A query that selects no metadata context, in an unknown
//! namespace or without one, is not an error (section 4).

use super::config::{Closing, Config, Listing, Negotiated, Next, Tls};
use super::options;
use super::options::{ContextRequest, InfoRequest, Infos, Refusal, string};
use crate::code::{InfoType, OptionCode, OptionError};
use crate::export::{Context, ExportInfo, Exports};
use crate::flags::ClientFlags;
use crate::magic::EXPORT_NAME_ZEROES;
use crate::terms::Terms;
use crate::wire::HeaderStyle;

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
pub(super) struct Session {
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
pub(super) struct Asked<'a> {
    pub(super) option: OptionCode,
    pub(super) data: &'a [u8],
    pub(super) exports: &'a dyn Exports,
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

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// The number of exports listed to the client.
    pub(super) fn listed(&self) -> u32 {
        self.listed
    }

    pub(super) fn begin(&mut self, client: ClientFlags) -> Result<(), Closing> {
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
    pub(super) fn admit(&self, number: u32, length: u32) -> Result<OptionCode, Refusal> {
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
    pub(super) fn answer(&mut self, asked: &Asked<'_>, out: &mut Vec<u8>) -> End {
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
pub(super) fn listed(export: &ExportInfo, queries: &[&str]) -> Vec<Context> {
    let is_asked = |name: &str| {
        queries.is_empty()
            || queries
                .iter()
                .any(|query| *query == name || query.ends_with(':') && name.starts_with(query))
    };
    all(export).filter(|context| is_asked(&context.name)).collect()
}

/// The contexts that SET_META_CONTEXT selects, by their full names.
pub(super) fn chosen(export: &ExportInfo, queries: &[&str]) -> Vec<Context> {
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
