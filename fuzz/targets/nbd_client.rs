//! Our client with any server: the first byte chooses the plan, or the form of headers of replies to requests in
//! flight.

#![no_main]

use blkmq_nbd::client::{
    Content, Extents, Goal, Handshake, Next, Parsed, Pending, Plan, Replies, Tls,
};
use blkmq_nbd::{Command, CommandFlags, Cookie, HeaderStyle, Limits, Request, Span};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;

fn style(choice: u8) -> HeaderStyle {
    match choice & 3 {
        0 => HeaderStyle::Simple,
        1 => HeaderStyle::Structured,
        _ => HeaderStyle::Extended,
    }
}

fn plan(choice: u8) -> Plan {
    let name = "disk".to_owned();
    Plan {
        most: style(choice),
        tls: if choice & 4 == 0 { Tls::Off } else { Tls::Required },
        contexts: vec!["base:allocation".to_owned()],
        ..Plan::new(match choice >> 3 & 3 {
            0 => Goal::List,
            1 => Goal::Info(name),
            _ => Goal::Go(name),
        })
    }
}

/// Returns the form of headers that was agreed on, and the bytes behind the handshake.
fn negotiate(choice: u8, bytes: &[u8]) -> Option<(HeaderStyle, &[u8])> {
    let mut client = Handshake::new(plan(choice));
    let (mut rest, mut sent) = (bytes, Vec::new());
    loop {
        let progress = client.feed(rest, &mut sent);
        rest = &rest[progress.consumed..];
        // Flags and at most eight options, each with a short name and three informations.
        assert!(sent.len() <= 4 + 8 * 64);
        match progress.next {
            Next::StartTls => client.secured(&mut sent),
            Next::Go(agreed) => {
                assert!(agreed.contexts.len() <= bytes.len() / 20);
                return Some((agreed.style, rest));
            }
            Next::Listed(exports) => {
                let text: usize =
                    exports.iter().map(|it| it.name.len() + it.description.len()).sum();
                assert!(text <= bytes.len(), "no more is kept than was sent");
                return None;
            }
            Next::NeedMore | Next::Described(_) | Next::Close(_) => return None,
        }
    }
}

/// A request of each command, with its number as the cookie.
fn in_flight() -> BTreeMap<Cookie, Pending> {
    let request = |command: &Command| Request {
        command: Ok(*command),
        flags: CommandFlags::NONE,
        cookie: Cookie(command.to_wire().into()),
        span: Span { offset: 4096, length: 1 << 16 },
    };
    let all = Command::ALL.iter().map(request);
    all.filter_map(|request| Some((request.cookie, Pending::of(&request)?))).collect()
}

fn replies(style: HeaderStyle, mut rest: &[u8]) {
    let (replies, mut in_flight) = (Replies::new(style, &Limits::default()), in_flight());
    while let Parsed::Reply(reply) = replies.next(rest, &mut in_flight) {
        let payload = &rest[reply.header_len..];
        let payload = &payload[..payload.len().min(reply.payload_len as usize)];
        match reply.content {
            Content::Data(span) | Content::Hole(span) => {
                assert!(Span { offset: 4096, length: 1 << 16 }.holds(span));
            }
            Content::Extents { .. } => {
                let extents = Extents::read(payload, style, &in_flight[&reply.cookie]);
                assert!(
                    extents.is_err() || extents.is_ok_and(|it| it.count() <= payload.len() / 8)
                );
            }
            Content::None | Content::Error { .. } => {}
        }
        if reply.is_last {
            in_flight.remove(&reply.cookie);
        }
        rest = &rest[reply.header_len + payload.len()..];
    }
}

fuzz_target!(|bytes: &[u8]| {
    let [choice, bytes @ ..] = bytes else { return };
    if choice & 0x80 != 0 {
        replies(style(*choice), bytes);
    } else if let Some((style, rest)) = negotiate(*choice, bytes) {
        replies(style, rest);
    }
});
