//! The server's handshake: fixed newstyle, as a state machine over bytes (`docs/spec/nbd.md`, section 3).
//!
//! It keeps no bytes. An option's data is read in the caller's buffer, and data without a use is skipped as it arrives.
//! `session.rs` decides the answers.

use super::config::{Closing, Config, Next, Progress};
use super::options;
use super::options::Refusal;
use super::session::{Asked, Session};
use crate::code::OptionCode;
use crate::export::Exports;
use crate::flags::{ClientFlags, HandshakeFlags};
use crate::magic::{GREETING, OPTION};
use crate::wire::{Fields, Put};
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
