//! The parser of requests and their check against the naive twin, on random bytes and on random requests.

use crate::naive::{self, Fields, Naive};
use blkmq_nbd::server::{Parsed, Requests};
use blkmq_nbd::{
    BlockSizes, Command, CommandFlags, Cookie, HeaderStyle, Limits, Request, Span, Terms,
    TransmissionFlags,
};
use proptest::prelude::*;

fn style() -> impl Strategy<Value = HeaderStyle> {
    prop_oneof![
        Just(HeaderStyle::Simple),
        Just(HeaderStyle::Structured),
        Just(HeaderStyle::Extended)
    ]
}

/// Numbers near the bounds, and random ones.
fn length() -> impl Strategy<Value = u64> {
    let near = prop_oneof![
        Just(0u64),
        Just(512),
        Just(1 << 20),
        Just(32 << 20),
        Just(64 << 20),
        Just(u32::MAX.into()),
        Just(u64::MAX)
    ];
    prop_oneof![(near, -2i64..3).prop_map(|(at, by)| at.wrapping_add_signed(by)), any::<u64>()]
}

fn request() -> impl Strategy<Value = Request> {
    let flags =
        prop_oneof![4 => Just(0), 2 => (0u32..6).prop_map(|bit| 1 << bit), 1 => any::<u16>()];
    (0u16..10, flags, any::<u64>(), length(), length()).prop_map(
        |(number, flags, cookie, offset, length)| Request {
            command: Command::from_wire(number).ok_or(number),
            flags: CommandFlags::from_wire(flags),
            cookie: Cookie(cookie),
            span: Span { offset, length },
        },
    )
}

fn terms() -> impl Strategy<Value = Terms> {
    let sizes =
        (0u32..17).prop_map(|power| BlockSizes::DEFAULT.with_min(1 << power).expect("up to 65536"));
    let flags = prop_oneof![Just(0x1ffd), 0u16..0x2000];
    (length(), flags, sizes, style(), any::<bool>()).prop_map(
        |(size, flags, blocks, style, has_contexts)| Terms {
            size,
            flags: TransmissionFlags::from_wire(flags),
            blocks,
            style,
            has_contexts,
        },
    )
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

/// Both parsers' view of the bytes.
fn compare(bytes: &[u8], style: HeaderStyle) -> Naive {
    let limits = Limits::default();
    let ours = match Requests::new(style, &limits).next(bytes) {
        Parsed::Request { request, header_len, payload_len } => Naive::Request {
            fields: fields(&request),
            header: header_len,
            payload: payload_len.into(),
        },
        Parsed::NeedMore => Naive::More,
        Parsed::Malformed(_) => Naive::Bad,
    };
    assert_eq!(ours, naive::parse(bytes, style, limits.payload_dropped.into()), "{bytes:x?}");
    ours
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_parsers_agree_on_any_bytes(
        bytes in proptest::collection::vec(any::<u8>(), 0..40),
        magic in 0..3usize,
        style in style(),
    ) {
        compare(&bytes, style);
        let magic = [0x2560_9513_u32, 0x21e4_1c71, 0][magic];
        compare(&[&magic.to_be_bytes(), &bytes[..]].concat(), style);
    }

    #[test]
    fn the_parsers_agree_on_streams_of_requests(
        requests in proptest::collection::vec(request(), 1..8),
        style in style(),
        cut in any::<proptest::sample::Index>(),
    ) {
        let encoded: Vec<_> = requests.iter().filter_map(|request| request.encode(style)).collect();
        let bytes: Vec<u8> = encoded.iter().flat_map(|header| header.to_vec()).collect();
        let whole = bytes.len();
        compare(&bytes[..cut.index(whole + 1)], style);
        let mut rest = &bytes[..];
        while let Naive::Request { header, .. } = compare(rest, style) {
            rest = &rest[header..];
        }
    }

    #[test]
    fn a_request_comes_back_as_it_was_written(request in request(), style in style()) {
        let Some(bytes) = request.encode(style) else {
            prop_assert!(request.span.length > u32::MAX.into() && style != HeaderStyle::Extended);
            return Ok(());
        };
        match Requests::new(style, &Limits::default()).next(&bytes) {
            Parsed::Request { request: read, header_len, payload_len } => {
                prop_assert_eq!(read, request);
                prop_assert_eq!(header_len, style.request_len());
                prop_assert_eq!(u64::from(payload_len), request.payload_len(style));
            }
            Parsed::Malformed(_) => prop_assert!(request.payload_len(style) > 64 << 20),
            Parsed::NeedMore => prop_assert!(false, "the header is whole"),
        }
    }

    #[test]
    fn the_checks_agree(request in request(), terms in terms()) {
        let ours = terms.check(&request).map_or_else(blkmq_nbd::ErrorCode::to_wire, |_| 0);
        prop_assert_eq!(ours, naive::judge(&fields(&request), &terms));
    }
}
