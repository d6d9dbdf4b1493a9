//! The client's handshake as a state machine over bytes (`docs/spec/nbd.md`, section 3). `session.rs` decides the order
//! of options.

use super::broken::BrokenHandshake;
use super::plan::{Details, Next, Plan, Progress, Tls};
use super::session::{Answer, Session, Step};
use crate::code::OptionCode;
use crate::flags::{ClientFlags, HandshakeFlags, TransmissionFlags};
use crate::magic::{EXPORT_NAME_ZEROES, GREETING, OLDSTYLE, OPTION};
use crate::wire::{Fields, Put};
use std::ops::ControlFlow::{self, Break, Continue};

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
        } else if self.session.plan().tls == Tls::Required {
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
        let answer = match Answer::read(option, rest, self.session.plan().limits.option_data) {
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
        let details = Details { size, flags, ..Details::default() };
        Break(Next::Go(self.session.agreed_by_name(details)))
    }
}
