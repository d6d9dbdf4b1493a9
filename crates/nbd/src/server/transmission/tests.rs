use super::*;
use crate::code::{Command, CommandFlags};
use crate::export::{Extent, ExtentCount};
use crate::request::{Cookie, Request};
use crate::wire::Limits;

const STYLES: [HeaderStyle; 3] =
    [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended];

fn request(command: Result<Command, u16>, length: u64) -> Request {
    Request {
        command,
        flags: CommandFlags::from_wire(0x8021),
        cookie: Cookie(u64::MAX - 1),
        span: Span { offset: u64::MAX, length },
    }
}

fn parsed(request: &Request, style: HeaderStyle) -> Parsed {
    let bytes = request.encode(style).unwrap();
    Requests::new(style, &Limits::default()).next(&bytes)
}

#[test]
fn a_request_is_read_as_it_was_written_once_its_header_is_whole() {
    for style in STYLES {
        for number in [0, 1, 2, 3, 4, 5, 6, 7, 8, u16::MAX] {
            let command = Command::from_wire(number).ok_or(number);
            let request = request(command, 512);
            let bytes = request.encode(style).unwrap();
            let requests = Requests::new(style, &Limits::default());
            for end in 0..bytes.len() {
                assert_eq!(requests.next(&bytes[..end]), Parsed::NeedMore);
            }
            let payload_len = request.payload_len(style) as u32;
            let expected = Parsed::Request { request, header_len: bytes.len(), payload_len };
            assert_eq!(requests.next(&bytes), expected);
            let more = [&bytes[..], &[0; 9]].concat();
            assert_eq!(requests.next(&more), expected, "bytes behind it do not matter");
        }
    }
}

#[test]
fn the_magic_of_another_form_ends_the_connection() {
    for (sent, agreed) in [
        (HeaderStyle::Extended, HeaderStyle::Structured),
        (HeaderStyle::Simple, HeaderStyle::Extended),
    ] {
        let bytes = request(Ok(Command::Read), 1).encode(sent).unwrap();
        let parsed = Requests::new(agreed, &Limits::default()).next(&bytes[..4]);
        assert!(matches!(parsed, Parsed::Malformed(Malformed::Magic(_))), "{parsed:?}");
    }
}

#[test]
fn a_payload_beyond_the_bound_ends_the_connection() {
    let write = |length| request(Ok(Command::Write), length);
    for style in STYLES {
        assert!(matches!(parsed(&write(64 << 20), style), Parsed::Request { .. }));
        let length = (64 << 20) + 1;
        let expected = Parsed::Malformed(Malformed::Payload(length));
        assert_eq!(parsed(&write(length), style), expected);
    }
    let length = u64::MAX;
    let expected = Parsed::Malformed(Malformed::Payload(length));
    assert_eq!(parsed(&write(length), HeaderStyle::Extended), expected);
    let zeroes = Request { flags: CommandFlags::NONE, ..request(Ok(Command::WriteZeroes), length) };
    assert!(matches!(parsed(&zeroes, HeaderStyle::Extended), Parsed::Request { .. }));
}

const SIMPLE: Replies = Replies::new(HeaderStyle::Simple);
const STRUCTURED: Replies = Replies::new(HeaderStyle::Structured);
const EXTENDED: Replies = Replies::new(HeaderStyle::Extended);

fn to(command: Command) -> ReplyTo {
    let span = Span { offset: 0x1000, length: 0x300 };
    let request =
        Request { command: Ok(command), flags: CommandFlags::NONE, cookie: Cookie(0xabcd), span };
    request.reply_to()
}

/// Bytes as hexadecimal digits, a blank between fields.
fn hex(parts: &str) -> Vec<u8> {
    let digits: Vec<u8> = parts.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

#[test]
fn successes_without_content() {
    let simple = hex("67446698 00000000 000000000000abcd");
    let structured = hex("668e33ef 0001 0000 000000000000abcd 00000000");
    let extended = hex("6e8a278c 0001 0000 000000000000abcd 0000000000001000 0000000000000000");
    for command in [Command::Write, Command::Flush, Command::Trim, Command::WriteZeroes] {
        assert_eq!(*SIMPLE.done(to(command)), simple);
        assert_eq!(*STRUCTURED.done(to(command)), simple);
        assert_eq!(*EXTENDED.done(to(command)), extended);
    }
    for command in [Command::Read, Command::BlockStatus] {
        assert_eq!(*SIMPLE.done(to(command)), simple);
        assert_eq!(*STRUCTURED.done(to(command)), structured, "it must have chunks");
        assert_eq!(*EXTENDED.done(to(command)), extended);
    }
}

#[test]
fn errors_with_a_text_and_without() {
    let write = to(Command::Write);
    let simple = hex("67446698 0000001c 000000000000abcd");
    let structured = hex("668e33ef 0001 8001 000000000000abcd 00000006 0000001c 0000");
    assert_eq!(*SIMPLE.error(write, ErrorCode::NoSpace), simple);
    assert_eq!(*STRUCTURED.error(write, ErrorCode::NoSpace), structured);
    let mut out = Vec::new();
    SIMPLE.error_with_text(write, ErrorCode::NoSpace, "full", &mut out);
    assert_eq!(out, simple);
    out.clear();
    EXTENDED.error_with_text(write, ErrorCode::NoSpace, "full", &mut out);
    let expected = "6e8a278c 0001 8001 000000000000abcd 0000000000001000 000000000000000a \
                    0000001c 0004 66756c6c";
    assert_eq!(out, hex(expected));
}

#[test]
fn a_text_is_cut_at_the_bound() {
    let mut out = Vec::new();
    STRUCTURED.error_with_text(to(Command::Read), ErrorCode::Io, &"x".repeat(70_000), &mut out);
    assert_eq!(out.len(), 20 + 6 + 4096);
    assert_eq!(out[24..26], 4096u16.to_be_bytes());
}

#[test]
fn a_read_in_one_piece() {
    let read = to(Command::Read);
    assert_eq!(*SIMPLE.read(read, 0x300), hex("67446698 00000000 000000000000abcd"));
    let structured = hex("668e33ef 0001 0001 000000000000abcd 00000308 0000000000001000");
    assert_eq!(*STRUCTURED.read(read, 0x300), structured);
    let extended = "6e8a278c 0001 0001 000000000000abcd 0000000000001000 0000000000000308 \
                    0000000000001000";
    assert_eq!(*EXTENDED.read(read, 0x300), hex(extended));
}

#[test]
fn a_read_in_pieces_of_which_the_last_one_is_marked() {
    let read = to(Command::Read);
    assert!(SIMPLE.pieces(read, 0x300).is_none());
    let mut pieces = STRUCTURED.pieces(read, 0x300).unwrap();
    let data = hex("668e33ef 0000 0001 000000000000abcd 00000108 0000000000001000");
    assert_eq!(*pieces.data(0x100), data);
    assert_eq!(pieces.left(), Span { offset: 0x1100, length: 0x200 });
    let hole = hex("668e33ef 0001 0002 000000000000abcd 0000000c 0000000000001100 00000200");
    assert_eq!(*pieces.hole(0x200), hole);
    assert_eq!(pieces.left().length, 0);

    let mut pieces = EXTENDED.pieces(read, 0x300).unwrap();
    let _ = pieces.hole(0x100);
    let failed = "6e8a278c 0001 8002 000000000000abcd 0000000000001000 000000000000000e \
                  00000005 0000 0000000000001100";
    assert_eq!(*pieces.failed(ErrorCode::Io), hex(failed));
}

#[test]
#[should_panic(expected = "a piece lies in what is left")]
fn a_piece_beyond_the_range_is_a_bug() {
    let _ = STRUCTURED.pieces(to(Command::Read), 8).unwrap().data(9);
}

#[test]
fn extents_have_a_chunk_for_each_context() {
    let status = to(Command::BlockStatus);
    let span = Span { offset: 0x1000, length: 0x300 };
    let extents = |list: &[(u64, u64)]| {
        let mut extents = Extents::new(span, ExtentCount::Many, &Limits::default());
        for (length, flags) in list {
            let _ = extents.push(Extent { length: *length, flags: *flags });
        }
        extents
    };
    let (base, tier) = (extents(&[(0x100, 0), (0x200, 3)]), extents(&[(0x300, 7)]));
    let mut out = Vec::new();
    STRUCTURED.block_status(status, &[(1, &base), (2, &tier)], &mut out);
    let expected = "668e33ef 0000 0005 000000000000abcd 00000014 00000001 \
                    00000100 00000000 00000200 00000003 \
                    668e33ef 0001 0005 000000000000abcd 0000000c 00000002 00000300 00000007";
    assert_eq!(out, hex(expected));
    out.clear();
    EXTENDED.block_status(status, &[(2, &tier)], &mut out);
    let expected = "6e8a278c 0001 0006 000000000000abcd 0000000000001000 0000000000000018 \
                    00000002 00000001 0000000000000300 0000000000000007";
    assert_eq!(out, hex(expected));
}

const SPAN: Span = Span { offset: 4096, length: 100 };

fn extent(length: u64, flags: u64) -> Extent {
    Extent { length, flags }
}

fn extents(count: ExtentCount, most: u32) -> Extents {
    Extents::new(SPAN, count, &Limits { extents: most, ..Limits::default() })
}

#[test]
fn neighbours_in_one_state_are_one_extent() {
    let mut all = extents(ExtentCount::Many, 9);
    for (length, flags) in [(10, 0), (0, 1), (10, 0), (30, 3), (20, 3)] {
        assert_eq!(all.push(extent(length, flags)), Room::More);
    }
    assert_eq!(all.push(extent(1000, 0)), Room::Full, "the range ends");
    assert_eq!(all.as_slice(), [extent(20, 0), extent(50, 3), extent(30, 0)]);
    assert_eq!(all.push(extent(1, 0)), Room::Full);
    assert_eq!(all.as_slice().len(), 3);
}

#[test]
fn the_bound_is_reached_by_the_first_extent_that_is_too_many() {
    let mut all = extents(ExtentCount::Many, 2);
    assert_eq!(all.push(extent(1, 0)), Room::More);
    assert_eq!(all.push(extent(1, 1)), Room::More, "it may become longer");
    assert_eq!(all.push(extent(1, 1)), Room::More);
    assert_eq!(all.push(extent(1, 0)), Room::Full);
    assert_eq!(all.as_slice(), [extent(1, 0), extent(2, 1)]);
}

#[test]
fn one_extent_is_one_that_ends_within_the_range() {
    let mut one = extents(ExtentCount::One, 9);
    assert_eq!(one.push(extent(60, 0)), Room::More);
    assert_eq!(one.push(extent(60, 0)), Room::Full);
    assert_eq!(one.as_slice(), [extent(100, 0)]);
}
