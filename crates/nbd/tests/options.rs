//! Options with wrong lengths, options that are too long or too many, and unknown options: each is answered and the
//! connection continues, or the connection ends.

use crate::by_hand::{
    ACK, EXT_HEADER_REQD, INFO, INVALID, META_CONTEXT, POLICY, SERVER, Server, TOO_BIG, UNKNOWN,
    UNSUP, answers, counted, info, option, queries,
};
use crate::directory::Directory;
use blkmq_nbd::server::{Closing, Config, Handshake, Listing, Next};
use blkmq_nbd::{ExportInfo, Exports, HeaderStyle, Limits};

fn closing(server: &mut Server, bytes: &[u8]) -> Closing {
    match server.feed(bytes) {
        (_, Next::Close(closing)) => closing,
        (_, next) => panic!("{next:?}"),
    }
}

fn server() -> Server {
    Server::new(Config::default())
}

/// `docs/spec/nbd.md`, *How to test this*, point 6.
#[test]
fn malformed_data_is_invalid_and_the_connection_goes_on() {
    let info = info("disk", &[3, 1]);
    let queries = queries("disk", &["base:allocation", "x"]);
    for (number, good) in [(6, &info), (7, &info), (9, &queries), (10, &queries)] {
        for end in 0..good.len() {
            let mut server = server();
            server.ask(8, &[]);
            assert_eq!(server.ask(number, &good[..end]), [INVALID], "{number} {end}");
            server.assert_answers();
        }
        for excess in [1, 2, 4, 100] {
            let mut server = server();
            server.ask(8, &[]);
            let long = [&good[..], &vec![0; excess]].concat();
            assert_eq!(server.ask(number, &long), [INVALID], "{number} {excess}");
            server.assert_answers();
        }
        let mut server = server();
        server.ask(8, &[]);
        let lie = [&[0xff; 4], &good[4..]].concat();
        assert_eq!(server.ask(number, &lie), [INVALID]);
        server.assert_answers();
    }
}

#[test]
fn options_without_data_refuse_some() {
    let mut server = server();
    for number in [3, 5, 8, 11] {
        for data in [&b"x"[..], &[0; 1000]] {
            assert_eq!(server.ask(number, data), [INVALID], "{number}");
        }
    }
    server.assert_answers();
}

#[test]
fn good_options_have_the_answers_of_the_protocol() {
    let mut server = server();
    assert_eq!(server.ask(8, &[]), [ACK]);
    assert_eq!(server.ask(6, &info("", &[3, 1, 2])), [INFO, INFO, INFO, INFO, ACK]);
    assert_eq!(server.ask(6, &info("rom", &[])), [INFO, ACK]);
    assert_eq!(server.ask(6, &info("x", &[])), [UNKNOWN]);
    let lists = [(&[][..], 2), (&["base:"], 1), (&["x-blkmq:tier"], 1), (&["qemu:", "y"], 0)];
    for (names, found) in lists {
        let contexts = answers(&server.ask_whole(9, &queries("disk", names)));
        assert_eq!(contexts.len(), found + 1, "{names:?}");
        assert!(
            contexts[..found].iter().all(|it| it.code == META_CONTEXT && it.data[..4] == [0; 4])
        );
    }
    let chosen = answers(&server.ask_whole(10, &queries("disk", &["x-blkmq:tier", "base:"])));
    assert_eq!((chosen.len(), &chosen[0].data[..]), (2, &b"\0\0\0\x02x-blkmq:tier"[..]));
    assert_eq!(server.ask(10, &queries("x", &[])), [UNKNOWN]);
    assert_eq!(server.ask(11, &[]), [ACK]);
    assert_eq!(server.ask(8, &[]), [EXT_HEADER_REQD]);
    assert_eq!(server.ask(5, &[]), [UNSUP], "no TLS here");
    for number in [0, 4, 12, u32::MAX] {
        assert_eq!(server.ask(number, b"whatever"), [UNSUP]);
    }
    let listed = answers(&server.ask_whole(3, &[]));
    assert_eq!(listed[0].data, [counted("disk"), b"a disk to write to".to_vec()].concat());
    let (out, next) = server.feed(&option(2, b"ignored"));
    assert_eq!(answers(&out).iter().map(|it| it.code).collect::<Vec<_>>(), [ACK]);
    assert!(matches!(next, Next::Close(Closing::Aborted)));
}

#[test]
fn every_error_has_a_text() {
    let mut server = server();
    for (number, data) in [(99, &b""[..]), (3, b"x"), (6, b""), (10, b""), (5, b"")] {
        let answers = answers(&server.ask_whole(number, data));
        assert!(!answers[0].data.is_empty() && answers[0].data.is_ascii(), "{number}");
    }
}

#[test]
fn contexts_are_for_replies_in_chunks() {
    let mut server = server();
    assert_eq!(server.ask(10, &queries("disk", &["base:allocation"])), [INVALID]);
    assert_eq!(server.ask(9, &queries("disk", &[])), [META_CONTEXT, META_CONTEXT, ACK]);
}

#[test]
fn options_beyond_the_offered_headers_are_unknown() {
    for (most, expected) in [
        (HeaderStyle::Simple, [UNSUP, UNSUP]),
        (HeaderStyle::Structured, [UNSUP, ACK]),
        (HeaderStyle::Extended, [ACK, EXT_HEADER_REQD]),
    ] {
        let mut server = Server::new(Config { most, ..Config::default() });
        assert_eq!([server.ask(11, &[])[0], server.ask(8, &[])[0]], expected, "{most:?}");
    }
}

#[test]
fn data_up_to_a_bound_is_dropped_and_refused() {
    let mut server = server();
    server.ask(8, &[]);
    for number in [6, 7, 9, 10] {
        assert_eq!(server.ask(number, &vec![0; 65_537]), [TOO_BIG], "{number}");
    }
    assert_eq!(server.ask(77, &vec![0; 1 << 20]), [UNSUP]);
    server.assert_answers();
    let mut long = counted(&"x".repeat(4097));
    long.extend([0, 0]);
    assert_eq!(server.ask(6, &long), [TOO_BIG]);
    assert_eq!(server.ask(10, &queries("disk", &["a"; 33])), [TOO_BIG]);
    let all = queries("disk", &["base:allocation"; 32]);
    assert_eq!(server.ask(10, &all), [META_CONTEXT, ACK]);
}

#[test]
fn an_abort_may_have_any_data_that_is_dropped() {
    let (out, next) = server().feed(&option(2, &vec![0; 100_000]));
    assert_eq!(answers(&out).iter().map(|it| it.code).collect::<Vec<_>>(), [ACK]);
    assert!(matches!(next, Next::Close(Closing::Aborted)));
}

#[test]
fn data_beyond_the_bound_ends_the_connection_before_it_arrives() {
    for number in [2, 6, 10, 77] {
        let header = &option(number, &vec![0; (1 << 20) + 1])[..16];
        let expected = Closing::TooMuchData { option: number, length: (1 << 20) + 1 };
        assert_eq!(closing(&mut server(), header), expected);
    }
    let header = [b"IHAVEOPT".as_slice(), &[0, 0, 0, 6], &[0xff; 4]].concat();
    let expected = Closing::TooMuchData { option: 6, length: u32::MAX };
    assert_eq!(closing(&mut server(), &header), expected);
}

/// Skipped data is consumed as it arrives: 1 MiB of it needs no buffer.
#[test]
fn dropped_data_need_not_be_kept() {
    let mut server = server();
    let bytes = option(77, &vec![0; 1 << 20]);
    for part in bytes.chunks(1000) {
        let mut out = Vec::new();
        let progress = server.0.feed(part, &Directory, &mut out);
        assert_eq!(progress.consumed, part.len());
        assert!(out.capacity() < 1000);
    }
    server.assert_answers();
}

#[test]
fn a_handshake_has_a_bounded_number_of_options_and_lists() {
    let mut lists = server();
    for _ in 0..3 {
        lists.assert_answers();
    }
    assert_eq!(lists.ask(3, &[]), [POLICY]);
    assert_eq!(lists.ask(8, &[]), [ACK]);

    let mut server = server();
    for _ in 0..64 {
        assert_eq!(server.ask(77, &[]), [UNSUP]);
    }
    assert_eq!(closing(&mut server, &option(77, &[])), Closing::TooManyOptions);
    assert_eq!(closing(&mut server, &option(3, &[])), Closing::Over);
}

#[test]
fn nonsense_ends_the_connection() {
    assert!(matches!(closing(&mut server(), b"GET / HTTP/1.1\r\n"), Closing::NoOption(_)));
    for flags in [4u32, 0x8000_0003, u32::MAX] {
        let mut handshake = Handshake::new(Config::default());
        let progress = handshake.feed(&flags.to_be_bytes(), &Directory, &mut Vec::new());
        assert!(matches!(progress.next, Next::Close(Closing::UnknownFlags(seen)) if seen == flags));
    }
}

#[test]
fn export_name_succeeds_or_ends_the_connection() {
    assert_eq!(closing(&mut server(), &option(1, b"nothing")), Closing::UnknownExport);
    assert_eq!(closing(&mut server(), &option(1, b"di\0sk")), Closing::NoName);
    assert_eq!(closing(&mut server(), &option(1, &[0xff])), Closing::NoName);
    assert_eq!(closing(&mut server(), &option(1, &[b'x'; 4097])[..16]), Closing::NoName);
    let mut extended = server();
    extended.ask(11, &[]);
    let expected = Closing::ExportNameWithExtendedHeaders;
    assert_eq!(closing(&mut extended, &option(1, b"disk")), expected);
    let mut structured = server();
    structured.ask(8, &[]);
    let (_, next) = structured.feed(&option(1, b"disk"));
    let Next::Go(negotiated) = next else { panic!("{next:?}") };
    assert_eq!(negotiated.terms.style, HeaderStyle::Structured);
}

/// Texts of the configuration that the protocol cannot carry.
struct Odd;

impl Exports for Odd {
    fn find(&self, _: &str) -> Option<ExportInfo> {
        let description = format!("{}\0hidden", "d".repeat(5000));
        Some(ExportInfo { name: "a\0b".to_owned(), description, ..ExportInfo::default() })
    }

    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        each(&"n".repeat(5000), "");
        each("nul\0", "");
        each("good", "one\0two");
    }
}

#[test]
fn texts_that_the_protocol_cannot_carry_are_cut() {
    let mut server = server();
    let mut out = Vec::new();
    server.0.feed(&option(3, &[]), &Odd, &mut out);
    let listed = answers(&out);
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[0].data, [counted("good"), b"one".to_vec()].concat());
    out.clear();
    server.0.feed(&option(6, &info("", &[1, 2])), &Odd, &mut out);
    let infos = answers(&out);
    assert_eq!((&infos[1].data[..], infos[2].data.len()), (&b"\0\x01a"[..], 2 + 4096));
}

#[test]
fn a_hidden_list_is_refused_and_names_are_served() {
    let mut server = Server::new(Config { listing: Listing::Hidden, ..Config::default() });
    assert_eq!(server.ask(3, &[]), [POLICY]);
    assert_eq!(server.ask(6, &info("disk", &[])), [INFO, ACK]);
}

#[test]
fn the_longest_payload_is_that_of_the_limits() {
    let limits = Limits { payload: 1 << 20, ..Limits::default() };
    let mut server = Server::new(Config { limits, ..Config::default() });
    let infos = answers(&server.ask_whole(6, &info("disk", &[3])));
    assert_eq!(infos[1].data, [0, 3, 0, 0, 2, 0, 0, 0, 0x10, 0, 0, 0x10, 0, 0]);
    assert_eq!(infos.last().unwrap().code, ACK);
    assert_eq!(SERVER, 2);
}
