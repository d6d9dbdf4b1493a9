//! A stream of requests to a server, the first byte of which chooses the terms. Each request is checked and answered as
//! a server would, and our client accepts the answer.

#![no_main]

use blkmq_nbd::client::{self, Content, Pending};
use blkmq_nbd::server::{self, Extents, Parsed, Replies, Requests};
use blkmq_nbd::{
    BlockSizes, Checked, Extent, HeaderStyle, Limits, ReplyTo, Request, Span, Terms,
    TransmissionFlags,
};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;

fn terms(choice: u8) -> Terms {
    let style = match choice & 3 {
        0 => HeaderStyle::Simple,
        1 => HeaderStyle::Structured,
        _ => HeaderStyle::Extended,
    };
    let absent =
        if choice & 4 == 0 { TransmissionFlags::READ_ONLY } else { TransmissionFlags::SEND_TRIM };
    Terms {
        size: 1 << 40,
        flags: TransmissionFlags::KNOWN.without(absent),
        blocks: BlockSizes::DEFAULT,
        style,
        has_contexts: choice & 8 == 0,
    }
}

/// The headers of a read in pieces: they alone, since its bytes are no concern of the protocol.
fn read(replies: Replies, to: ReplyTo, span: Span, out: &mut Vec<Vec<u8>>) {
    let length = span.length as u32;
    let Some(mut pieces) = replies.pieces(to, length).filter(|_| length > 1) else {
        out.push(replies.read(to, length).to_vec());
        return;
    };
    out.push(pieces.hole(length / 2).to_vec());
    out.push(pieces.data(length - length / 2).to_vec());
}

/// The parts of the answer to a request.
fn answer(terms: &Terms, request: &Request) -> Vec<Vec<u8>> {
    let replies = Replies::new(terms.style);
    let to = request.reply_to();
    let mut out = Vec::new();
    match terms.check(request) {
        Err(error) => {
            let mut bytes = Vec::new();
            replies.error_with_text(to, error, "no", &mut bytes);
            out.push(bytes);
        }
        Ok(Checked::Disconnect) => {}
        Ok(Checked::Read { span, in_one_piece: true }) => {
            out.push(replies.read(to, span.length as u32).to_vec());
        }
        Ok(Checked::Read { span, .. }) => read(replies, to, span, &mut out),
        Ok(Checked::BlockStatus { span, count }) => {
            let mut extents = Extents::new(span, count, &Limits::default());
            for flags in [0, 3, 3, 0] {
                let _ = extents.push(Extent { length: span.length / 3 + 1, flags });
            }
            let mut bytes = Vec::new();
            replies.block_status(to, &[(1, &extents)], &mut bytes);
            out.push(bytes);
        }
        Ok(_) => out.push(replies.done(to).to_vec()),
    }
    out
}

/// The client takes every part, and the last one as the last.
fn accept(terms: &Terms, request: &Request, parts: &[Vec<u8>]) {
    let Some(pending) = Pending::of(request) else { return };
    let mut in_flight = BTreeMap::from([(request.cookie, pending)]);
    let replies = client::Replies::new(terms.style, &Limits::default());
    for (at, part) in parts.iter().enumerate() {
        let parsed = replies.next(part, &mut in_flight);
        let client::Parsed::Reply(reply) = parsed else { panic!("{parsed:?} to {request:?}") };
        assert_eq!(reply.is_last, at + 1 == parts.len());
        if matches!(reply.content, Content::Extents { .. }) {
            let payload = &part[reply.header_len..];
            assert_eq!(payload.len(), reply.payload_len as usize);
            let extents = client::Extents::read(payload, terms.style, &in_flight[&reply.cookie]);
            assert!(extents.is_ok(), "{extents:?}");
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let [choice, rest @ ..] = bytes else { return };
    let terms = terms(*choice);
    let requests = Requests::new(terms.style, &Limits::default());
    let mut rest = rest;
    loop {
        match requests.next(rest) {
            Parsed::Request { request, header_len, payload_len } => {
                accept(&terms, &request, &answer(&terms, &request));
                let payload = &rest[header_len..];
                rest = &payload[payload.len().min(payload_len as usize)..];
            }
            Parsed::NeedMore => return assert!(rest.len() < 32),
            Parsed::Malformed(server::Malformed::Payload(length)) => {
                return assert!(length > 64 << 20);
            }
            Parsed::Malformed(_) => return,
        }
    }
});
