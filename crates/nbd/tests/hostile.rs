//! Peers that break the protocol: in the handshake the client gives up with a reason, or falls back, each wrong reply
//! has its own error, and no chunk reaches beyond its request.

use crate::talk::{ACK, INFO, META_CONTEXT, SERVER, TLS_REQD, UNSUP, go, option, reply};
use blkmq_nbd::client::{
    BrokenHandshake, BrokenReply, Content, Extents, Goal, Handshake, Next, Parsed, Pending, Plan,
    Replies, Tls,
};
use blkmq_nbd::{
    Command, CommandFlags, Cookie, ErrorCode, HeaderStyle, Limits, OptionCode, Request, Span,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";
/// The size and the flags of an export, as a reply to GO.
const EXPORT: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 1];

/// The next step after the greeting and these replies. Only the last reply may end the handshake.
fn after(plan: Plan, replies: &[Vec<u8>]) -> Next {
    let mut client = Handshake::new(plan);
    let mut next = client.feed(GREETING, &mut Vec::new()).next;
    for bytes in replies {
        assert!(matches!(next, Next::NeedMore), "{next:?}");
        let progress = client.feed(bytes, &mut Vec::new());
        let is_broken = matches!(progress.next, Next::Close(_));
        assert!(is_broken || progress.consumed == bytes.len());
        next = progress.next;
    }
    next
}

fn broken(plan: Plan, replies: &[Vec<u8>]) -> BrokenHandshake {
    match after(plan, replies) {
        Next::Close(broken) => broken,
        next => panic!("{next:?}"),
    }
}

/// A plan whose first option is GO.
fn simple() -> Plan {
    Plan { most: HeaderStyle::Simple, ..go("disk") }
}

/// A plan whose first option is STRUCTURED_REPLY, and the second one SET_META_CONTEXT.
fn with_context() -> Plan {
    let contexts = ["base:allocation", "x-blkmq:tier"].map(str::to_owned).to_vec();
    Plan { most: HeaderStyle::Structured, contexts, ..go("disk") }
}

fn context(id: u8, name: &str) -> Vec<u8> {
    reply(10, META_CONTEXT, &[&[0, 0, 0, id], name.as_bytes()].concat())
}

#[test]
fn a_stranger_is_recognised_by_its_first_bytes() {
    let feed = |bytes: &[u8]| Handshake::new(simple()).feed(bytes, &mut Vec::new()).next;
    assert!(matches!(feed(b"SSH-2.0-"), Next::Close(BrokenHandshake::NotNbd(_))));
    assert!(matches!(feed(b"NBDMAGICSSH-2.0-"), Next::Close(BrokenHandshake::NotNbd(_))));
    let oldstyle = b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53";
    assert!(matches!(feed(oldstyle), Next::Close(BrokenHandshake::Oldstyle)));
    assert!(matches!(feed(b"NBDMAGICIHAVEOPT\0"), Next::NeedMore));
}

#[test]
fn a_reply_must_be_one_to_the_option_that_was_sent() {
    let malformed = BrokenHandshake::Malformed(OptionCode::Go);
    assert_eq!(broken(simple(), &[reply(6, ACK, &[])]), BrokenHandshake::WrongOption(6));
    assert_eq!(broken(simple(), &[reply(7, SERVER, &[0; 4])]), malformed);
    assert_eq!(broken(simple(), &[reply(7, 5, &[])]), malformed, "an unknown reply");
    let wrong = option(7, &[0; 8]);
    assert!(matches!(broken(simple(), &[wrong]), BrokenHandshake::Magic(_)));
    let mut long = reply(7, INFO, &[]);
    long[16..20].copy_from_slice(&65_537u32.to_be_bytes());
    assert_eq!(broken(simple(), &[long]), BrokenHandshake::TooLong(65_537));
}

#[test]
fn facts_have_their_lengths() {
    let malformed = BrokenHandshake::Malformed(OptionCode::Go);
    let blocks: &[u8] = &[0, 3, 0, 0, 2, 0, 0, 0, 0x10, 0, 2, 0, 0, 0];
    let with_byte = |fact: &[u8]| [fact, &[0]].concat();
    for good in [EXPORT, blocks, b"\0\x01name", b"\0\x02text", b"\0\x09unknown"] {
        assert!(matches!(after(simple(), &[reply(7, INFO, good)]), Next::NeedMore));
    }
    let bad =
        [&EXPORT[..11], &blocks[..13], &with_byte(EXPORT), &with_byte(blocks), &[0], b"\0\x01\xff"];
    for bad in bad {
        assert_eq!(broken(simple(), &[reply(7, INFO, bad)]), malformed, "{bad:?}");
    }
    let odd = [0, 3, 0, 0, 0, 3, 0, 0, 0x10, 0, 2, 0, 0, 0];
    assert_eq!(broken(simple(), &[reply(7, INFO, &odd)]), malformed, "a minimum of 3");
}

#[test]
fn transmission_does_not_begin_without_a_size() {
    assert_eq!(broken(simple(), &[reply(7, ACK, &[])]), BrokenHandshake::NoSize);
    let described = Plan { goal: Goal::Info(String::new()), ..simple() };
    assert_eq!(broken(described, &[reply(6, ACK, &[])]), BrokenHandshake::NoSize);
    let next = after(simple(), &[reply(7, INFO, EXPORT), reply(7, ACK, &[])]);
    let Next::Go(agreed) = next else { panic!("{next:?}") };
    assert_eq!((agreed.details.size, agreed.details.flags.to_wire()), (4096, 1));
}

/// Facts are void if the server then says that it has no GO: EXPORT_NAME sends them again.
#[test]
fn facts_in_front_of_a_refusal_are_void() {
    let mut name = reply(7, INFO, b"\0\x01name");
    name.extend(reply(7, UNSUP, &[]));
    let answer = [&[0; 8][..], &[0, 1]].concat();
    let next = after(simple(), &[name, answer]);
    let Next::Go(agreed) = next else { panic!("{next:?}") };
    assert_eq!((agreed.details.name, agreed.details.size), (None, 0));
}

#[test]
fn go_must_work_under_extended_headers() {
    let refused = broken(go("disk"), &[reply(11, ACK, &[]), reply(7, UNSUP, b"why")]);
    let BrokenHandshake::Refused(refused) = refused else { panic!("{refused:?}") };
    assert_eq!((refused.option, refused.text.as_str()), (OptionCode::Go, "why"));
}

#[test]
fn contexts_are_the_wanted_ones_with_an_id_each() {
    let ready = || vec![reply(8, ACK, &[])];
    let behind = |contexts: &[Vec<u8>]| [ready(), contexts.to_vec()].concat();
    let malformed = BrokenHandshake::Malformed(OptionCode::SetMetaContext);
    let base = context(1, "base:allocation");
    let twice = behind(&[base.clone(), context(1, "x-blkmq:tier")]);
    assert_eq!(broken(with_context(), &twice), malformed, "an id twice");
    assert_eq!(broken(with_context(), &behind(&[context(1, "qemu:x")])), malformed);
    assert_eq!(broken(with_context(), &behind(&[reply(10, META_CONTEXT, &[0; 3])])), malformed);

    // A refusal after some contexts leaves none.
    let refused = [base, reply(10, UNSUP, &[]), reply(7, INFO, EXPORT), reply(7, ACK, &[])];
    let next = after(with_context(), &behind(&refused));
    let Next::Go(agreed) = next else { panic!("{next:?}") };
    assert_eq!(agreed.contexts, []);
}

#[test]
fn a_server_that_requires_tls_is_not_asked_again_without() {
    for (plan, number) in [(go("disk"), 11), (with_context(), 8), (simple(), 7)] {
        let refused = broken(plan, &[reply(number, TLS_REQD, &[])]);
        let BrokenHandshake::Refused(refused) = refused else { panic!("{refused:?}") };
        assert_eq!(refused.option.to_wire(), number);
    }
    let unknown = broken(simple(), &[reply(7, 0x8000_ffff, b"\xff")]);
    let BrokenHandshake::Refused(refused) = unknown else { panic!("{unknown:?}") };
    assert_eq!((refused.error, refused.text.as_str()), (Err(0x8000_ffff), "\u{fffd}"));
}

#[test]
fn plain_bytes_in_place_of_tls_end_the_connection() {
    let mut client = Handshake::new(Plan { tls: Tls::Required, ..simple() });
    client.feed(GREETING, &mut Vec::new());
    let next = client.feed(&reply(5, ACK, &[]), &mut Vec::new()).next;
    assert!(matches!(next, Next::StartTls));
    let next = client.feed(&reply(7, INFO, EXPORT), &mut Vec::new()).next;
    assert!(matches!(next, Next::Close(BrokenHandshake::BytesBeforeTls)));
    let next = client.feed(b"x", &mut Vec::new()).next;
    assert!(matches!(next, Next::Close(BrokenHandshake::Over)));
}

const COOKIE: Cookie = Cookie(5);
const SPAN: Span = Span { offset: 4096, length: 1024 };

fn request(command: Command, flags: CommandFlags) -> Request {
    Request { command: Ok(command), flags, cookie: COOKIE, span: SPAN }
}

fn in_flight(command: Command) -> BTreeMap<Cookie, Pending> {
    BTreeMap::from([(
        COOKIE,
        Pending::of(&request(command, CommandFlags::NONE)).expect("it has a reply"),
    )])
}

/// A chunk of a structured reply.
fn chunk(flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = 0x668e_33ef_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(COOKIE.0.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn data(offset: u64, length: usize) -> Vec<u8> {
    [&offset.to_be_bytes()[..], &vec![1; length]].concat()
}

fn hole(offset: u64, length: u32) -> Vec<u8> {
    [&offset.to_be_bytes()[..], &length.to_be_bytes()].concat()
}

/// The outcome of the last chunk; the chunks before it are valid.
fn outcome(command: Command, chunks: &[Vec<u8>]) -> Result<(), BrokenReply> {
    let replies = Replies::new(HeaderStyle::Structured, &Limits::default());
    let mut in_flight = in_flight(command);
    let mut last = Ok(());
    for bytes in chunks {
        assert_eq!(last, Ok(()));
        last = match replies.next(bytes, &mut in_flight) {
            Parsed::Reply(_) => Ok(()),
            Parsed::Broken(broken) => Err(broken),
            Parsed::NeedMore => panic!("the chunk is whole"),
        };
    }
    last
}

#[test]
fn chunks_outside_of_their_request_are_found() {
    let outside = Err(BrokenReply::Outside(COOKIE));
    for bad in [data(4095, 1), data(5120, 1), data(4096, 1025), data(u64::MAX, 2), data(0, 1024)] {
        assert_eq!(outcome(Command::Read, &[chunk(0, 1, &bad)]), outside);
    }
    for bad in [hole(4095, 1), hole(5119, 2), hole(4096, u32::MAX), hole(u64::MAX, 1)] {
        assert_eq!(outcome(Command::Read, &[chunk(0, 2, &bad)]), outside);
    }
    let twice = [chunk(0, 1, &data(4096, 600)), chunk(0, 2, &hole(4096, 600))];
    assert_eq!(outcome(Command::Read, &twice), outside, "more bytes than were asked for");
}

#[test]
fn replies_that_end_too_early_are_found() {
    let incomplete = Err(BrokenReply::Incomplete(COOKIE));
    assert_eq!(outcome(Command::Read, &[chunk(1, 1, &data(4096, 1023))]), incomplete);
    assert_eq!(outcome(Command::Read, &[chunk(1, 0, &[])]), incomplete);
    assert_eq!(outcome(Command::BlockStatus, &[chunk(1, 0, &[])]), incomplete);
    assert_eq!(outcome(Command::Write, &[chunk(1, 0, &[])]), Ok(()));
    let error = chunk(0, 0x8001, &[0, 0, 0, 5, 0, 0]);
    assert_eq!(outcome(Command::Read, &[error, chunk(1, 0, &[])]), Ok(()), "it has failed");
}

#[test]
fn chunks_of_a_wrong_length_are_found() {
    let wrong = Err(BrokenReply::WrongLength(COOKIE));
    let bad_reads = [
        (0, &b"x"[..]),
        (1, &[0; 8]),
        (2, &[0; 11]),
        (2, &[0; 13]),
        (0x8001, &[0, 0, 0, 5, 0]),
        (0x8001, &[0, 0, 0, 5, 0, 1]),
        (0x8001, &[0, 0, 0, 5, 0, 0, 0]),
        (0x8001, &[0, 0, 0, 0, 0, 0]),
        (0x8002, &[0, 0, 0, 5, 0, 0]),
    ];
    for (kind, payload) in bad_reads {
        assert_eq!(outcome(Command::Read, &[chunk(1, kind, payload)]), wrong, "{kind:#x}");
    }
    assert_eq!(outcome(Command::Read, &[chunk(0, 0, &[])]), wrong, "nothing, and more to come");
    for payload in [&[][..], &[0; 4], &[0; 8], &[0; 13]] {
        assert_eq!(outcome(Command::BlockStatus, &[chunk(1, 5, payload)]), wrong);
    }
    let long = [&[0, 0, 0, 5, 0x10, 1][..], &[b'x'; 4097]].concat();
    assert_eq!(outcome(Command::Read, &[chunk(1, 0x8001, &long)]), wrong, "a long text");
    assert_eq!(outcome(Command::Read, &[chunk(1, 0x8001, &[0, 0, 0, 5, 0, 1, b'x'])]), Ok(()));
    let hole = Err(BrokenReply::EmptyHole(COOKIE));
    assert_eq!(outcome(Command::Read, &[chunk(1, 2, &self::hole(4096, 0))]), hole);
}

#[test]
fn chunks_that_do_not_belong_to_their_request_are_found() {
    let wrong = Err(BrokenReply::WrongContent(COOKIE));
    assert_eq!(outcome(Command::Write, &[chunk(1, 1, &data(4096, 1))]), wrong);
    assert_eq!(outcome(Command::BlockStatus, &[chunk(1, 2, &hole(4096, 1))]), wrong);
    assert_eq!(outcome(Command::Read, &[chunk(1, 5, &[0; 12])]), wrong);
    assert_eq!(outcome(Command::BlockStatus, &[chunk(1, 6, &[0; 24])]), wrong, "a 64-bit one");
    let simple = [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0][..], &COOKIE.0.to_be_bytes()].concat();
    assert_eq!(outcome(Command::Read, std::slice::from_ref(&simple)), wrong, "a simple read");
    assert_eq!(outcome(Command::Write, &[simple]), Ok(()));
    let unknown = Err(BrokenReply::UnknownChunk(3));
    assert_eq!(outcome(Command::Read, &[chunk(1, 3, &[])]), unknown);
}

/// Errors of unknown types, with all of the fields of an error, with some, and with others behind them.
#[test]
fn an_error_of_an_unknown_type_fails_its_request() {
    let text: &[u8] = b"full";
    let with_text = [&[0, 0, 0, 28, 0, 4][..], text, &[0; 8]].concat();
    for (kind, payload, expected) in [
        (0x8055, &with_text[..], (ErrorCode::NoSpace, text)),
        (0x8000, &with_text[..6], (ErrorCode::NoSpace, b"")),
        (0x8003, &[0, 0, 0, 22], (ErrorCode::Invalid, b"")),
        (0xffff, &[0, 0, 0, 22, 0xff, 0xff, 1], (ErrorCode::Invalid, b"")),
        (0x8055, &[], (ErrorCode::Io, b"")),
        (0x8055, &[0, 0, 0, 0, 0, 0], (ErrorCode::Io, b"")),
    ] {
        let bytes = [chunk(0, kind, payload), chunk(1, 0, &[])].concat();
        let replies = Replies::new(HeaderStyle::Structured, &Limits::default());
        let mut in_flight = in_flight(Command::Read);
        let Parsed::Reply(reply) = replies.next(&bytes, &mut in_flight) else {
            panic!("{kind:#x} {payload:?}");
        };
        let Content::Error { error, text, offset: None } = reply.content else {
            panic!("{reply:?}")
        };
        assert_eq!((error, text), expected);
        assert_eq!((reply.header_len, reply.payload_len), (20 + payload.len(), 0));
        let end = replies.next(&bytes[reply.header_len..], &mut in_flight);
        assert!(matches!(end, Parsed::Reply(_)), "the connection goes on: {end:?}");
    }
    let long = chunk(1, 0x8055, &[0; 4096 + 15]);
    assert_eq!(outcome(Command::Read, &[long]), Err(BrokenReply::WrongLength(COOKIE)));
}

#[test]
fn the_magic_and_the_cookie_must_be_known() {
    let replies = |style| Replies::new(style, &Limits::default());
    let structured = chunk(1, 0, &[]);
    for style in [HeaderStyle::Simple, HeaderStyle::Extended] {
        let parsed = replies(style).next(&structured, &mut in_flight(Command::Write));
        assert_eq!(parsed, Parsed::Broken(BrokenReply::Magic(0x668e_33ef)));
    }
    let mut none = BTreeMap::new();
    let parsed = replies(HeaderStyle::Structured).next(&structured, &mut none);
    assert_eq!(parsed, Parsed::Broken(BrokenReply::UnknownCookie(COOKIE)));
    let mut long = structured;
    long[16..20].copy_from_slice(&(64u32 << 20 | 9).to_be_bytes());
    let parsed = replies(HeaderStyle::Structured).next(&long, &mut in_flight(Command::Write));
    assert_eq!(parsed, Parsed::Broken(BrokenReply::TooLong(64 << 20 | 9)));

    let mut extended =
        [&[0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 0][..], &COOKIE.0.to_be_bytes()].concat();
    extended.extend([0; 16]);
    let parsed = replies(HeaderStyle::Extended).next(&extended, &mut in_flight(Command::Write));
    assert_eq!(parsed, Parsed::Broken(BrokenReply::WrongOffset(COOKIE)));
}

#[test]
fn the_number_of_extents_must_be_that_of_the_length() {
    let parse = |count: u32| {
        let mut bytes =
            [&[0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 6][..], &COOKIE.0.to_be_bytes()].concat();
        bytes.extend(SPAN.offset.to_be_bytes());
        bytes.extend((8u64 + 2 * 16).to_be_bytes());
        bytes.extend([0, 0, 0, 1]);
        bytes.extend(count.to_be_bytes());
        let replies = Replies::new(HeaderStyle::Extended, &Limits::default());
        match replies.next(&bytes, &mut in_flight(Command::BlockStatus)) {
            Parsed::Reply(reply) => Ok((reply.header_len, reply.payload_len)),
            Parsed::Broken(broken) => Err(broken),
            Parsed::NeedMore => panic!("the header is whole"),
        }
    };
    assert_eq!(parse(2), Ok((40, 32)));
    for count in [0, 1, 3, u32::MAX] {
        assert_eq!(parse(count), Err(BrokenReply::WrongLength(COOKIE)));
    }
}

#[test]
fn extents_that_make_no_sense_are_found() {
    let read = |list: &[[u32; 2]], flags| {
        let payload: Vec<u8> =
            list.as_flattened().iter().flat_map(|word| word.to_be_bytes()).collect();
        let pending = Pending::of(&request(Command::BlockStatus, flags)).expect("it has a reply");
        let extents = Extents::read(&payload, HeaderStyle::Structured, &pending);
        extents.map(Iterator::count)
    };
    let (many, one) = (CommandFlags::NONE, CommandFlags::REQ_ONE);
    assert_eq!(read(&[[512, 0], [9999, 1]], many), Ok(2), "the last one may reach beyond");
    assert_eq!(read(&[[1024, 0]], one), Ok(1));
    let wrong = Err(BrokenReply::WrongExtents(COOKIE));
    assert_eq!(read(&[[512, 0], [0, 1]], many), wrong);
    assert_eq!(read(&[[512, 0], [512, 1]], one), wrong);
    assert_eq!(read(&[[1025, 0]], one), wrong);
    assert_eq!(read(&[[1024, 0], [1, 1]], many), Err(BrokenReply::Outside(COOKIE)));
}

fn style() -> impl Strategy<Value = HeaderStyle> {
    prop_oneof![
        Just(HeaderStyle::Simple),
        Just(HeaderStyle::Structured),
        Just(HeaderStyle::Extended)
    ]
}

/// Bytes that are likely to be a reply.
fn any_reply() -> impl Strategy<Value = Vec<u8>> {
    let magic = prop_oneof![Just(0x6744_6698_u32), Just(0x668e_33ef), Just(0x6e8a_278c)];
    let kind = prop::sample::select(vec![0u16, 1, 2, 5, 6, 0x8000, 0x8001, 0x8002, 0x8055]);
    let small = || prop_oneof![0u64..64, 4090u64..5130, any::<u64>()];
    let tail = proptest::collection::vec(any::<u8>(), 0..80);
    (magic, 0u16..2, kind, small(), small(), small(), tail).prop_map(
        |(magic, flags, kind, a, b, c, tail)| {
            let mut bytes = magic.to_be_bytes().to_vec();
            if magic == 0x6744_6698 {
                bytes.extend((a as u32).to_be_bytes());
                bytes.extend(COOKIE.0.to_be_bytes());
            } else {
                bytes.extend(flags.to_be_bytes());
                bytes.extend(kind.to_be_bytes());
                bytes.extend(COOKIE.0.to_be_bytes());
                if magic == 0x6e8a_278c {
                    bytes.extend(SPAN.offset.to_be_bytes());
                    bytes.extend(a.to_be_bytes());
                } else {
                    bytes.extend((a as u32).to_be_bytes());
                }
                bytes.extend(b.to_be_bytes());
                bytes.extend(c.to_be_bytes());
            }
            bytes.extend(tail);
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any bytes can be parsed. A complete reply names bytes of its request only, and is not complete in any shorter
    /// prefix.
    #[test]
    fn any_reply_is_judged(bytes in any_reply(), style in style(), command in 0..Command::ALL.len()) {
        let command = Command::ALL[command];
        prop_assume!(command != Command::Disconnect);
        let replies = Replies::new(style, &Limits::default());
        let parsed = replies.next(&bytes, &mut in_flight(command));
        if let Parsed::Reply(reply) = parsed {
            prop_assert!(reply.header_len <= bytes.len());
            prop_assert!(reply.payload_len <= 64 << 20);
            if let Content::Data(span) | Content::Hole(span) = reply.content {
                prop_assert!(SPAN.holds(span) && command == Command::Read);
            }
            let short = &bytes[..reply.header_len - 1];
            let again = replies.next(short, &mut in_flight(command));
            prop_assert_eq!(again, Parsed::NeedMore);
            let exact = &bytes[..reply.header_len];
            let again = replies.next(exact, &mut in_flight(command));
            prop_assert_eq!(again, parsed);
        }
    }
}
