//! Requests and replies between both halves, over a disk in memory: every byte and every error arrives in each form of
//! headers. The parser of requests and their check are compared with the naive twin, on random bytes and random
//! requests.

use crate::naive::{self, Fields, Naive};
use blkmq_nbd::client::{Content, Extents, Pending};
use blkmq_nbd::server::{Parsed, Requests};
use blkmq_nbd::{
    BlockSizes, Checked, Command, CommandFlags, Cookie, ErrorCode, Extent, HeaderStyle, Limits,
    Request, Span, Terms, TransmissionFlags, client, server,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

const STYLES: [HeaderStyle; 3] =
    [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended];
const BLOCK: usize = 512;

/// A server with one export in memory. Blocks of zeroes are holes.
struct Disk {
    bytes: Vec<u8>,
    terms: Terms,
}

/// The outcome of a request, from the client's side.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Outcome {
    error: Option<ErrorCode>,
    text: String,
    data: Vec<u8>,
    chunks: usize,
    extents: BTreeMap<u32, Vec<(u64, u64)>>,
}

impl Disk {
    fn new(style: HeaderStyle, flags: TransmissionFlags) -> Self {
        let bytes: Vec<u8> = (0..64 * BLOCK).map(|at| (at / BLOCK % 3) as u8).collect();
        let terms = Terms {
            size: bytes.len() as u64,
            flags,
            blocks: BlockSizes::DEFAULT.with_min(512).expect("a power of two"),
            style,
            has_contexts: style.has_chunks(),
        };
        Self { bytes, terms }
    }

    fn writable(style: HeaderStyle) -> Self {
        let absent = TransmissionFlags::READ_ONLY;
        Self::new(style, TransmissionFlags::KNOWN.without(absent))
    }

    /// Serves every request in `input`, and returns the replies and the number of requests.
    fn serve(&mut self, mut input: &[u8]) -> (Vec<u8>, usize) {
        let requests = Requests::new(self.terms.style, &Limits::default());
        let (mut out, mut count) = (Vec::new(), 0);
        while let Parsed::Request { request, header_len, payload_len } = requests.next(input) {
            let (payload, rest) = input[header_len..].split_at(payload_len as usize);
            self.execute(&request, payload, &mut out);
            input = rest;
            count += 1;
        }
        assert_eq!(requests.next(input), Parsed::NeedMore);
        assert_eq!(input, b"", "every byte was a request");
        (out, count)
    }

    fn execute(&mut self, request: &Request, payload: &[u8], out: &mut Vec<u8>) {
        let replies = server::Replies::new(self.terms.style);
        let to = request.reply_to();
        match self.terms.check(request) {
            Err(error) => replies.error_with_text(to, error, "refused", out),
            Ok(Checked::Disconnect) => {}
            Ok(Checked::Read { span, in_one_piece }) => self.read(to, span, in_one_piece, out),
            Ok(Checked::Write { span, .. }) => {
                self.bytes[range(span)].copy_from_slice(payload);
                out.extend_from_slice(&replies.done(to));
            }
            Ok(Checked::WriteZeroes { fast: true, .. }) => {
                out.extend_from_slice(&replies.error(to, ErrorCode::NotSupported));
            }
            Ok(Checked::WriteZeroes { span, .. } | Checked::Trim { span, .. }) => {
                self.bytes[range(span)].fill(0);
                out.extend_from_slice(&replies.done(to));
            }
            Ok(Checked::BlockStatus { span, count }) => {
                let mut base = server::Extents::new(span, count, &Limits::default());
                for block in self.bytes[range(span)].chunks(BLOCK) {
                    let flags = if block[0] == 0 { 3 } else { 0 };
                    if base.push(Extent { length: BLOCK as u64, flags }) == server::Room::Full {
                        break;
                    }
                }
                let mut tier = server::Extents::new(span, count, &Limits::default());
                let _ = tier.push(Extent { length: u64::MAX, flags: 9 });
                replies.block_status(to, &[(1, &base), (2, &tier)], out);
            }
            Ok(Checked::Nothing | Checked::Flush | Checked::Cache { .. }) => {
                out.extend_from_slice(&replies.done(to));
            }
        }
    }

    fn read(&self, to: blkmq_nbd::ReplyTo, span: Span, in_one_piece: bool, out: &mut Vec<u8>) {
        let replies = server::Replies::new(self.terms.style);
        let bytes = &self.bytes[range(span)];
        let pieces = replies.pieces(to, span.length as u32).filter(|_| !in_one_piece);
        let Some(mut pieces) = pieces else {
            out.extend_from_slice(&replies.read(to, span.length as u32));
            out.extend_from_slice(bytes);
            return;
        };
        for block in bytes.chunks(BLOCK) {
            if block[0] == 0 {
                out.extend_from_slice(&pieces.hole(BLOCK as u32));
            } else {
                out.extend_from_slice(&pieces.data(BLOCK as u32));
                out.extend_from_slice(block);
            }
        }
        assert_eq!(pieces.left().length, 0);
    }
}

fn range(span: Span) -> std::ops::Range<usize> {
    span.offset as usize..(span.offset + span.length) as usize
}

fn request(command: Command, flags: CommandFlags, offset: u64, length: u64) -> Request {
    let cookie = Cookie(0xc0de);
    Request { command: Ok(command), flags, cookie, span: Span { offset, length } }
}

/// Sends one request with its payload, and gathers its reply.
fn ask(disk: &mut Disk, request: &Request, payload: &[u8]) -> Outcome {
    let header = client::Requests::new(disk.terms.style).header(request).expect("a short one");
    let (bytes, count) = disk.serve(&[&header, payload].concat());
    assert_eq!(count, 1);
    gather(&bytes, disk.terms.style, request)
}

fn gather(mut bytes: &[u8], style: HeaderStyle, request: &Request) -> Outcome {
    let replies = client::Replies::new(style, &Limits::default());
    let mut in_flight =
        BTreeMap::from([(request.cookie, Pending::of(request).expect("it has a reply"))]);
    let length = if request.command == Ok(Command::Read) { request.span.length } else { 0 };
    let mut outcome = Outcome { data: vec![0xee; length as usize], ..Outcome::default() };
    loop {
        let reply = match replies.next(bytes, &mut in_flight) {
            client::Parsed::Reply(reply) => reply,
            other => panic!("{other:?} of {bytes:x?}"),
        };
        let (payload, rest) = bytes[reply.header_len..].split_at(reply.payload_len as usize);
        let base = request.span.offset;
        let within = |span: Span| range(Span { offset: span.offset - base, ..span });
        match reply.content {
            Content::None => {}
            Content::Error { error, text, .. } => {
                outcome.error = Some(error);
                outcome.text = String::from_utf8(text.to_vec()).expect("a text");
            }
            Content::Data(span) => outcome.data[within(span)].copy_from_slice(payload),
            Content::Hole(span) => outcome.data[within(span)].fill(0),
            Content::Extents { context } => {
                let extents =
                    Extents::read(payload, style, &in_flight[&reply.cookie]).expect("good ones");
                let list = extents.map(|extent| (extent.length, extent.flags)).collect();
                outcome.extents.insert(context, list);
            }
        }
        outcome.chunks += 1;
        bytes = rest;
        if reply.is_last {
            assert_eq!(bytes, b"");
            return outcome;
        }
    }
}

#[test]
fn reads_come_back_with_holes_and_without() {
    for style in STYLES {
        let mut disk = Disk::writable(style);
        let whole = request(Command::Read, CommandFlags::NONE, 512, 3 * 512);
        let outcome = ask(&mut disk, &whole, &[]);
        assert_eq!((outcome.error, &outcome.data[..]), (None, &disk.bytes[512..2048]));
        assert_eq!(outcome.chunks, if style.has_chunks() { 3 } else { 1 });
        let flags = if style.has_chunks() { CommandFlags::DF } else { CommandFlags::NONE };
        let one = request(Command::Read, flags, 512, 3 * 512);
        let piece = ask(&mut disk, &one, &[]);
        assert_eq!((piece.data, piece.chunks), (outcome.data, 1));
    }
}

#[test]
fn writes_reach_the_disk() {
    for style in STYLES {
        let mut disk = Disk::writable(style);
        let write = request(Command::Write, CommandFlags::FUA, 1024, 1024);
        assert_eq!(ask(&mut disk, &write, &[7; 1024]).error, None);
        let read = request(Command::Read, CommandFlags::NONE, 1024, 1024);
        assert_eq!(ask(&mut disk, &read, &[]).data, [7; 1024]);
        let zeroes = request(Command::WriteZeroes, CommandFlags::NO_HOLE, 1024, 512);
        assert_eq!(ask(&mut disk, &zeroes, &[]).error, None);
        assert_eq!(disk.bytes[1024..1537], [&[0; 512][..], &[7]].concat());
        for command in [Command::Flush, Command::Trim, Command::Cache] {
            let length = if command == Command::Flush { 0 } else { 512 };
            let request = request(command, CommandFlags::NONE, 0, length);
            assert_eq!(ask(&mut disk, &request, &[]).error, None, "{command:?} {style:?}");
        }
    }
}

#[test]
fn errors_arrive_with_their_text_where_the_form_has_one() {
    for style in STYLES {
        let mut disk = Disk::writable(style);
        let text = if style.has_chunks() { "refused" } else { "" };
        for (command, expected) in [
            (Command::Read, ErrorCode::Invalid),
            (Command::Trim, ErrorCode::Invalid),
            (Command::WriteZeroes, ErrorCode::NoSpace),
        ] {
            let outcome = ask(&mut disk, &request(command, CommandFlags::NONE, 32768, 512), &[]);
            assert_eq!((outcome.error, outcome.text.as_str()), (Some(expected), text));
        }
        let write = request(Command::Write, CommandFlags::NONE, 32768, 512);
        assert_eq!(ask(&mut disk, &write, &[1; 512]).error, Some(ErrorCode::NoSpace));
    }
}

#[test]
fn a_length_of_zero_is_a_success_of_every_command() {
    for style in STYLES {
        let mut disk = Disk::writable(style);
        for command in Command::ALL.iter().filter(|it| **it != Command::Disconnect) {
            if *command == Command::BlockStatus && !style.has_chunks() {
                continue;
            }
            let outcome = ask(&mut disk, &request(*command, CommandFlags::NONE, 512, 0), &[]);
            assert_eq!(outcome.error, None, "{command:?} {style:?}");
        }
    }
}

#[test]
fn extents_arrive_for_each_context() {
    for style in [HeaderStyle::Structured, HeaderStyle::Extended] {
        let mut disk = Disk::writable(style);
        let all = request(Command::BlockStatus, CommandFlags::NONE, 512, 5 * 512);
        let outcome = ask(&mut disk, &all, &[]);
        assert_eq!(outcome.extents[&1], [(1024, 0), (512, 3), (1024, 0)]);
        assert_eq!(outcome.extents[&2], [(5 * 512, 9)]);
        let one = request(Command::BlockStatus, CommandFlags::REQ_ONE, 512, 5 * 512);
        let outcome = ask(&mut disk, &one, &[]);
        assert_eq!((outcome.extents[&1].len(), outcome.extents[&2].len()), (1, 1));
    }
}

/// `docs/spec/nbd.md`, *How to test this*, point 4.
#[test]
fn payloads_are_understood_with_the_flag_and_without() {
    let style = HeaderStyle::Extended;
    let mut disk = Disk::writable(style);
    let read = request(Command::Read, CommandFlags::NONE, 0, 512).encode(style).unwrap();
    let writes = [CommandFlags::NONE, CommandFlags::PAYLOAD_LEN, CommandFlags::FUA];
    for (value, flags) in (1..).zip(writes) {
        let write = request(Command::Write, flags, 0, 512).encode(style).unwrap();
        let (_, count) = disk.serve(&[&write, &[value; 512][..], &read].concat());
        assert_eq!((count, disk.bytes[0]), (2, value), "{flags:?}");
    }
    let flush = request(Command::Flush, CommandFlags::PAYLOAD_LEN, 0, 16);
    let bytes = [&flush.encode(style).unwrap(), &[0xff; 16][..], &read].concat();
    let (replies, count) = disk.serve(&bytes);
    assert_eq!(count, 2, "the next request is understood");
    let first = 32 + 6 + "refused".len();
    assert_eq!(gather(&replies[..first], style, &flush).error, Some(ErrorCode::Invalid));
    let read = request(Command::Read, CommandFlags::NONE, 0, 512);
    assert_eq!(gather(&replies[first..], style, &read).data, [3; 512]);
}

/// `docs/spec/nbd.md`, *How to test this*, point 14.
#[test]
fn a_read_only_export_refuses_changes_and_drains_their_payload() {
    for style in STYLES {
        let mut disk = Disk::new(style, TransmissionFlags::READ_ONLY);
        let before = disk.bytes.clone();
        for command in [Command::Write, Command::Trim, Command::WriteZeroes] {
            let payload = if command == Command::Write { &[9; 512][..] } else { &[] };
            let outcome = ask(&mut disk, &request(command, CommandFlags::NONE, 0, 512), payload);
            assert_eq!(outcome.error, Some(ErrorCode::NotPermitted));
        }
        assert_eq!(disk.bytes, before);
    }
}

/// `docs/spec/nbd.md`, *How to test this*, point 15.
#[test]
fn zeroes_that_are_not_fast_change_nothing() {
    for style in STYLES {
        let mut disk = Disk::writable(style);
        let before = disk.bytes.clone();
        let fast = request(Command::WriteZeroes, CommandFlags::FAST_ZERO, 0, 4096);
        assert_eq!(ask(&mut disk, &fast, &[]).error, Some(ErrorCode::NotSupported));
        assert_eq!(disk.bytes, before);
        let slow = request(Command::WriteZeroes, CommandFlags::NONE, 0, 4096);
        assert_eq!(ask(&mut disk, &slow, &[]).error, None);
    }
}

/// Replies of several requests between each other, and the last piece of a read behind another reply.
#[test]
fn replies_may_interleave() {
    let style = HeaderStyle::Structured;
    let numbered = |command, cookie| Request {
        cookie: Cookie(cookie),
        ..request(command, CommandFlags::NONE, 0, 8)
    };
    let (read, write) = (numbered(Command::Read, 1), numbered(Command::Write, 2));
    let replies = server::Replies::new(style);
    let mut pieces = replies.pieces(read.reply_to(), 8).unwrap();
    let mut bytes = [&pieces.data(3)[..], b"abc"].concat();
    bytes.extend_from_slice(&replies.done(write.reply_to()));
    bytes.extend_from_slice(&pieces.hole(5));
    let mut in_flight: BTreeMap<_, _> =
        [read, write].iter().map(|it| (it.cookie, Pending::of(it).unwrap())).collect();
    let parser = client::Replies::new(style, &Limits::default());
    let (mut rest, mut seen) = (&bytes[..], Vec::new());
    while let client::Parsed::Reply(reply) = parser.next(rest, &mut in_flight) {
        rest = &rest[reply.header_len + reply.payload_len as usize..];
        seen.push((reply.cookie.0, reply.is_last));
    }
    assert_eq!(seen, [(1, false), (2, true), (1, true)]);
    assert_eq!(rest, b"");
}

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

fn any_request() -> impl Strategy<Value = Request> {
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
        requests in proptest::collection::vec(any_request(), 1..8),
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
    fn a_request_comes_back_as_it_was_written(request in any_request(), style in style()) {
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
    fn the_checks_agree(request in any_request(), terms in terms()) {
        let ours = terms.check(&request).map_or_else(ErrorCode::to_wire, |_| 0);
        prop_assert_eq!(ours, naive::judge(&fields(&request), &terms));
    }
}
