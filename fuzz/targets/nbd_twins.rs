//! The parser of requests and their check against the naive twin. The first byte chooses the form of headers, the next
//! sixteen the terms.

#![no_main]

#[path = "../../crates/nbd/tests/naive.rs"]
mod naive;

use blkmq_nbd::server::{Parsed, Requests};
use blkmq_nbd::{BlockSizes, ErrorCode, HeaderStyle, Limits, Request, Terms, TransmissionFlags};
use libfuzzer_sys::fuzz_target;
use naive::{Fields, Naive};

fn terms(choice: u8, [size, flags]: [[u8; 8]; 2]) -> Terms {
    let style = match choice & 3 {
        0 => HeaderStyle::Simple,
        1 => HeaderStyle::Structured,
        _ => HeaderStyle::Extended,
    };
    let blocks = BlockSizes::DEFAULT.with_min(1 << (choice >> 3 & 15));
    Terms {
        size: u64::from_le_bytes(size),
        flags: TransmissionFlags::from_wire(u64::from_le_bytes(flags) as u16),
        blocks: blocks.expect("a power of two up to 32768"),
        style,
        has_contexts: choice & 4 == 0,
    }
}

fn fields(request: &Request) -> Fields {
    Fields {
        flags: request.flags.to_wire().into(),
        command: request.command.map_or_else(u16::into, |command| command.to_wire().into()),
        cookie: request.cookie.0.into(),
        offset: request.span.offset.into(),
        length: request.span.length.into(),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((head, mut rest)) = bytes.split_first_chunk::<17>() else { return };
    let (size, flags) = head[1..].split_at(8);
    let [size, flags] = [size, flags].map(|part| part.try_into().expect("eight bytes"));
    let terms = terms(head[0], [size, flags]);
    let limits = Limits::default();
    let requests = Requests::new(terms.style, &limits);
    loop {
        let theirs = naive::parse(rest, terms.style, limits.payload_dropped.into());
        match requests.next(rest) {
            Parsed::NeedMore => return assert_eq!(theirs, Naive::More),
            Parsed::Malformed(_) => return assert_eq!(theirs, Naive::Bad),
            Parsed::Request { request, header_len, payload_len } => {
                let fields = fields(&request);
                let payload = payload_len.into();
                assert_eq!(theirs, Naive::Request { fields, header: header_len, payload });
                let outcome = terms.check(&request).map_or_else(ErrorCode::to_wire, |_| 0);
                assert_eq!(outcome, naive::judge(&fields, &terms), "{request:?} {terms:?}");
                let behind = &rest[header_len..];
                rest = &behind[behind.len().min(payload_len as usize)..];
            }
        }
    }
});
