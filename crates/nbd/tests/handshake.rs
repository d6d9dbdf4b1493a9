//! Both halves come to an agreement: every form of headers, contexts, lists, TLS, and the fallbacks of clients in use.
//!
//! Options with wrong lengths, options that are too long or too many, and unknown options are answered and the
//! connection continues, or the connection ends. Bytes before TLS have no effect afterwards (`docs/spec/nbd.md`,
//! sections 3 and 3.2).
//!
//! The same bytes in other portions give the same answers: whole, byte by byte, and cut anywhere. Hostile bytes make
//! neither half keep more than was sent, or answer beyond a bound.

use crate::talk::{
    ACK, Directory, EXT_HEADER_REQD, INFO, INVALID, META_CONTEXT, POLICY, SERVER, SIZE, Server,
    TLS_REQD, TOO_BIG, UNKNOWN, UNSUP, agreed, answers, counted, disk, go, info, option, queries,
    reply, rom, talk,
};
use blkmq_nbd::client::{BrokenHandshake, Details, Goal, Plan};
use blkmq_nbd::server::{Closing, Config, Handshake, Listing, Next, Tls};
use blkmq_nbd::{
    ExportInfo, Exports, HeaderStyle, Limits, OptionCode, OptionError, TransmissionFlags, client,
};
use proptest::prelude::*;

const STYLES: [HeaderStyle; 3] =
    [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended];

#[test]
fn the_least_able_side_decides_on_the_headers() {
    for most in STYLES {
        for offered in STYLES {
            let config = Config { most: offered, ..Config::default() };
            let (client, server) = agreed(Plan { most, ..go("disk") }, config);
            let style = most.min(offered);
            assert_eq!((client.style, server.terms.style), (style, style));
            assert_eq!(client.terms(), server.terms);
            let has_df = client.details.flags.contains(TransmissionFlags::SEND_DF);
            assert_eq!(has_df, style.has_chunks());
        }
    }
}

#[test]
fn facts_arrive_as_they_are() {
    let (client, server) = agreed(go(""), Config::default());
    let expected = disk();
    let details = client.details;
    assert_eq!(details.size, SIZE);
    assert_eq!(details.blocks, Some(expected.blocks));
    assert_eq!(details.name, Some(expected.name));
    assert_eq!(details.description, Some(expected.description));
    assert!((server.export.as_str(), server.asked_block_sizes, server.tls) == ("", true, false));

    let (client, server) = agreed(go("rom"), Config::default());
    assert_eq!(client.details.size, rom().size);
    assert_eq!(client.details.description, None);
    assert!(server.terms.flags.contains(TransmissionFlags::READ_ONLY));
}

#[test]
fn contexts_have_the_ids_that_the_server_gave_to_them() {
    let wanted = ["x-blkmq:tier", "qemu:dirty-bitmap:a", "base:allocation"];
    let plan = Plan { contexts: wanted.map(str::to_owned).to_vec(), ..go("disk") };
    let (client, server) = agreed(plan.clone(), Config::default());
    assert_eq!(client.contexts, server.contexts);
    let named: Vec<(u32, &str)> =
        client.contexts.iter().map(|context| (context.id, context.name.as_str())).collect();
    assert_eq!(named, [(1, "base:allocation"), (2, "x-blkmq:tier")]);
    assert!(server.terms.has_contexts);

    let simple = Config { most: HeaderStyle::Simple, ..Config::default() };
    let (client, server) = agreed(plan, simple);
    assert_eq!((client.contexts.len(), server.contexts.len()), (0, 0));
    assert!(!server.terms.has_contexts);
}

/// `docs/spec/nbd.md`, *How to test this*, point 9.
#[test]
fn contexts_count_for_the_export_that_they_were_chosen_for() {
    let base = queries("disk", &["base:allocation"]);
    let outcome = |options: &[(u32, &[u8])], go: &str| {
        let mut server = Server::new(Config::default());
        server.ask(8, &[]);
        for (number, data) in options {
            server.ask(*number, data);
        }
        match server.feed(&option(7, &info(go, &[]))).1 {
            Next::Go(negotiated) => (negotiated.contexts.len(), negotiated.terms.has_contexts),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(outcome(&[(10, &base)], "disk"), (1, true));
    assert_eq!(outcome(&[(10, &base)], "rom"), (0, false), "another export");
    let tier = queries("disk", &["x-blkmq:tier", "base:allocation"]);
    assert_eq!(outcome(&[(10, &base), (10, &tier)], "disk"), (2, true), "the second counts");
    assert_eq!(outcome(&[(10, &tier), (10, &queries("disk", &[]))], "disk"), (0, false));
    let unknown = queries("nothing", &["base:allocation"]);
    assert_eq!(outcome(&[(10, &base), (10, &unknown)], "disk"), (0, false), "a failed one clears");
    assert_eq!(
        outcome(&[(10, &base), (10, &base[..5])], "disk"),
        (0, false),
        "a malformed one too"
    );
}

#[test]
fn lists_and_facts_end_the_handshake() {
    let listed = talk(Plan::new(Goal::List), Config::default());
    let client::Next::Listed(exports) = listed.client else { panic!("{listed:?}") };
    let names: Vec<&str> = exports.iter().map(|export| export.name.as_str()).collect();
    assert_eq!(names, ["disk", "rom"]);
    assert_eq!(exports[0].description, disk().description);
    assert!(matches!(listed.server, Next::Close(Closing::Aborted)));

    let described = talk(Plan::new(Goal::Info("rom".to_owned())), Config::default());
    let client::Next::Described(Details { size, .. }) = described.client else {
        panic!("{described:?}")
    };
    assert_eq!(size, rom().size);
    assert!(matches!(described.server, Next::Close(Closing::Aborted)));
}

#[test]
fn refusals_reach_the_client_with_their_text() {
    let refused = |plan, config| match talk(plan, config).client {
        client::Next::Close(BrokenHandshake::Refused(refused)) => refused,
        other => panic!("{other:?}"),
    };
    let unknown = refused(go("nothing"), Config::default());
    assert_eq!((unknown.option, unknown.error), (OptionCode::Go, Ok(OptionError::Unknown)));
    assert_eq!(unknown.text, "there is no such export");
    let hidden = Config { listing: Listing::Hidden, ..Config::default() };
    assert_eq!(refused(Plan::new(Goal::List), hidden).error, Ok(OptionError::Policy));
}

#[test]
fn info_and_go_give_the_same_answers() {
    let data = info("disk", &[3, 1, 2]);
    let mut server = Server::new(Config::default());
    server.ask(11, &[]);
    let mut told = server.ask_whole(6, &data);
    let (went, next) = server.feed(&option(7, &data));
    assert!(matches!(next, Next::Go(_)));
    // Only the number of the option differs, in each of the five replies.
    let mut at = 0;
    for _ in 0..5 {
        told[at + 11] = 7;
        at += 20 + usize::from(told[at + 19]);
    }
    assert_eq!(at, told.len());
    assert_eq!(told, went);
}

/// A server of before 2016: the client falls back to EXPORT_NAME, with or without zeroes behind the answer.
#[test]
fn a_server_without_go_is_asked_by_name() {
    for (flags, zeroes) in [(1, 124), (3, 0)] {
        let mut client = client::Handshake::new(go("disk"));
        let mut sent = Vec::new();
        let greeting = [b"NBDMAGICIHAVEOPT".as_slice(), &[0, flags]].concat();
        client.feed(&greeting, &mut sent);
        assert_eq!(sent[..4], [0, 0, 0, flags]);
        for number in [11, 8, 7] {
            let progress = client.feed(&reply(number, UNSUP, b"no"), &mut sent);
            assert!(matches!(progress.next, client::Next::NeedMore));
        }
        assert!(sent.ends_with(&option(1, b"disk")));
        let mut answer = [4096u64.to_be_bytes().as_slice(), &[0, 7]].concat();
        answer.resize(10 + zeroes, 0);
        if zeroes > 0 {
            let short = client.feed(&answer[..answer.len() - 1], &mut sent);
            assert!(matches!(short.next, client::Next::NeedMore));
        }
        let progress = client.feed(&[&answer[..], b"x"].concat(), &mut sent);
        assert_eq!(progress.consumed, answer.len(), "the rest is of the transmission phase");
        let client::Next::Go(agreed) = progress.next else { panic!("{:?}", progress.next) };
        assert_eq!((agreed.details.size, agreed.details.flags.to_wire()), (4096, 7));
        assert_eq!(agreed.style, HeaderStyle::Simple);
    }
}

#[test]
fn export_name_is_answered_without_a_header() {
    for (flags, zeroes) in [(1u32, 124), (3, 0), (0, 124)] {
        let mut server = Handshake::new(Config::default());
        let mut out = Vec::new();
        let bytes = [&flags.to_be_bytes(), &option(1, b"rom")[..]].concat();
        let progress = server.feed(&bytes, &Directory, &mut out);
        let Next::Go(negotiated) = progress.next else { panic!("{:?}", progress.next) };
        assert_eq!(negotiated.export, "rom");
        assert!(!negotiated.asked_block_sizes);
        assert_eq!(out.len(), 10 + zeroes);
        assert_eq!(out[..10], [0, 0, 0, 0, 0, 0, 0x10, 0, 0, 3]);
    }
}

#[test]
fn a_server_without_replies_is_asked_by_name_only() {
    let greeting = b"NBDMAGICIHAVEOPT\0\0";
    let mut sent = Vec::new();
    client::Handshake::new(go("x")).feed(greeting, &mut sent);
    assert_eq!(sent, [&[0; 4], &option(1, b"x")[..]].concat());
    for plan in [Plan::new(Goal::List), Plan { tls: client::Tls::Required, ..go("x") }] {
        let next = client::Handshake::new(plan).feed(greeting, &mut Vec::new()).next;
        assert!(matches!(next, client::Next::Close(BrokenHandshake::NotFixedNewstyle)));
    }
}

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

fn forced() -> Config {
    Config { tls: Tls::Required, ..Config::default() }
}

#[test]
fn both_halves_agree_inside_tls() {
    let (client, server) = agreed(Plan { tls: client::Tls::Required, ..go("disk") }, forced());
    assert!(server.tls);
    assert_eq!(client.terms(), server.terms);
    let (_, server) = agreed(go("disk"), Config { tls: Tls::Established, ..Config::default() });
    assert!(server.tls, "TLS from the first byte");
}

/// `docs/spec/nbd.md`, *How to test this*, point 8.
#[test]
fn outside_of_tls_every_option_but_two_is_refused() {
    let mut server = Server::new(forced());
    let good: [(u32, Vec<u8>); 9] = [
        (3, vec![]),
        (4, vec![]),
        (6, info("disk", &[])),
        (7, info("disk", &[])),
        (8, vec![]),
        (9, queries("disk", &[])),
        (10, queries("disk", &[])),
        (11, vec![]),
        (99, b"x".to_vec()),
    ];
    for (number, data) in good {
        assert_eq!(server.ask(number, &data), [TLS_REQD], "{number}");
    }
    assert_eq!(server.ask(6, b"bad"), [TLS_REQD], "its data is not looked at");
    assert_eq!(server.ask(5, b"x"), [INVALID]);
    let (_, next) = server.feed(&option(1, b"disk"));
    assert!(matches!(next, Next::Close(Closing::ExportNameWithoutTls)));
    let (out, next) = Server::new(forced()).feed(&option(2, &[]));
    assert_eq!(crate::talk::codes(&out), [ACK]);
    assert!(matches!(next, Next::Close(Closing::Aborted)));
}

/// `docs/spec/nbd.md`, *How to test this*, point 7, with every option that could leave a trace.
#[test]
fn what_a_man_in_the_middle_says_before_tls_leaves_no_trace() {
    let mut server = Server::new(forced());
    for (number, data) in [(11, vec![]), (8, vec![]), (10, queries("disk", &["base:allocation"]))] {
        server.ask(number, &data);
    }
    // Options that arrive in one packet with STARTTLS are not executed, and a partial option is not completed by later
    // bytes.
    let injected = [option(5, &[]), option(11, &[]), option(3, &[]), b"IHAVE".to_vec()].concat();
    let (out, next) = server.feed(&injected);
    assert!(matches!(next, Next::StartTls));
    assert_eq!(crate::talk::codes(&out), [ACK], "to STARTTLS alone");
    server.assert_answers();
    assert_eq!(server.ask(5, &[]), [INVALID], "TLS is in use");
    assert_eq!(server.ask(10, &queries("disk", &["base:allocation"])), [INVALID], "no chunks");
    let (_, next) = server.feed(&option(7, &info("disk", &[])));
    let Next::Go(negotiated) = next else { panic!("{next:?}") };
    assert_eq!(negotiated.terms.style, HeaderStyle::Simple);
    assert_eq!((negotiated.contexts.len(), negotiated.tls), (0, true));
}

#[test]
fn a_client_without_replies_cannot_be_asked_for_tls() {
    let mut handshake = Handshake::new(forced());
    let progress = handshake.feed(&[0; 4], &Directory, &mut Vec::new());
    assert!(matches!(progress.next, Next::Close(Closing::NoRepliesForTls)));
    let mut handshake = Handshake::new(Config::default());
    let progress = handshake.feed(&[0; 4], &Directory, &mut Vec::new());
    assert!(matches!(progress.next, Next::NeedMore));
}

#[test]
fn a_client_that_wants_tls_does_without_nothing_less() {
    let plan = Plan { tls: client::Tls::Required, ..go("disk") };
    let refused = talk(plan.clone(), Config::default());
    let client::Next::Close(BrokenHandshake::Refused(refused)) = refused.client else {
        panic!("{refused:?}")
    };
    assert_eq!(refused.option, OptionCode::StartTls);
    assert_eq!(refused.error.map(OptionError::to_wire), Ok(UNSUP));
    // A client that does not ask for TLS is refused.
    let plain = talk(go("disk"), forced());
    let client::Next::Close(BrokenHandshake::Refused(refused)) = plain.client else {
        panic!("{plain:?}")
    };
    assert_eq!(refused.error, Ok(OptionError::TlsRequired));
}

#[test]
fn bytes_behind_the_servers_agreement_end_the_clients_connection() {
    let mut client = client::Handshake::new(Plan { tls: client::Tls::Required, ..go("disk") });
    let mut server = Handshake::new(forced());
    let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
    server.greeting(&mut to_client);
    client.feed(&to_client, &mut to_server);
    to_client.clear();
    let progress = server.feed(&to_server, &Directory, &mut to_client);
    assert!(matches!(progress.next, Next::StartTls));
    to_client.push(0);
    let next = client.feed(&to_client, &mut to_server).next;
    assert!(matches!(next, client::Next::Close(BrokenHandshake::BytesBeforeTls)));
}

/// The answers of a server, and the debug text of its end, to bytes that arrive in these portions.
fn served(config: Config, bytes: &[u8], portions: &[usize]) -> (Vec<u8>, String) {
    let mut server = Handshake::new(config);
    let (mut out, mut buffer) = (Vec::new(), Vec::new());
    let mut rest = bytes;
    for portion in portions.iter().chain([&usize::MAX]) {
        let (arrived, later) = rest.split_at((*portion).min(rest.len()));
        buffer.extend_from_slice(arrived);
        rest = later;
        let progress = server.feed(&buffer, &Directory, &mut out);
        buffer.drain(..progress.consumed);
        assert!(buffer.len() < (64 << 10) + 16, "the caller has to keep no more than an option");
        if !matches!(progress.next, Next::NeedMore) {
            return (out, format!("{:?}", progress.next));
        }
    }
    (out, "more".to_owned())
}

/// Like [`served`], for a client.
fn received(plan: &Plan, bytes: &[u8], portions: &[usize]) -> (Vec<u8>, String) {
    let mut client = client::Handshake::new(plan.clone());
    let (mut out, mut buffer) = (Vec::new(), Vec::new());
    let mut rest = bytes;
    for portion in portions.iter().chain([&usize::MAX]) {
        let (arrived, later) = rest.split_at((*portion).min(rest.len()));
        buffer.extend_from_slice(arrived);
        rest = later;
        let progress = client.feed(&buffer, &mut out);
        buffer.drain(..progress.consumed);
        if !matches!(progress.next, client::Next::NeedMore) {
            return (out, format!("{:?}", progress.next));
        }
    }
    (out, "more".to_owned())
}

/// An option: good, malformed, or unknown.
fn any_option() -> impl Strategy<Value = Vec<u8>> {
    let infos = proptest::collection::vec(0u16..5, 0..4);
    let name = prop_oneof![Just(""), Just("disk"), Just("rom"), Just("nothing")];
    let good = prop_oneof![
        (name.clone(), infos, 6u32..8).prop_map(|(name, infos, n)| option(n, &info(name, &infos))),
        (name, 9u32..11).prop_map(|(name, n)| option(n, &queries(name, &["base:allocation", "x"]))),
        (0u32..14).prop_map(|n| option(n, &[])),
    ];
    let wild = (0u32..14, proptest::collection::vec(any::<u8>(), 0..30))
        .prop_map(|(number, data)| option(number, &data));
    prop_oneof![4 => good, 1 => wild]
}

/// Client flags and options, with occasional faults.
fn any_stream() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![8 => Just(3u32), 1 => 0u32..5];
    let fault =
        prop_oneof![3 => Just(None), 1 => (any::<prop::sample::Index>(), 1u8..).prop_map(Some)];
    (flags, proptest::collection::vec(any_option(), 0..12), fault).prop_map(
        |(flags, options, fault)| {
            let mut bytes = [&flags.to_be_bytes()[..], &options.concat()].concat();
            if let Some((at, mask)) = fault {
                let at = at.index(bytes.len());
                bytes[at] ^= mask;
            }
            bytes
        },
    )
}

proptest! {
    #[test]
    fn a_server_does_not_see_the_portions(
        bytes in any_stream(),
        portions in proptest::collection::vec(0usize..50, 0..40),
        tls in prop_oneof![Just(Tls::Off), Just(Tls::Required), Just(Tls::Established)],
    ) {
        let config = Config { tls, ..Config::default() };
        let whole = served(config, &bytes, &[]);
        // Bytes behind STARTTLS are dropped together with their portion, so portions matter there.
        prop_assume!(whole.1 != "StartTls");
        prop_assert_eq!(&served(config, &bytes, &vec![1; bytes.len()]), &whole);
        prop_assert_eq!(&served(config, &bytes, &portions), &whole);
    }

    /// Here an option has at most five replies of 4 KiB, and lists are bounded, which bounds the answers.
    #[test]
    fn answers_are_bounded(bytes in any_stream()) {
        let (out, _) = served(Config::default(), &bytes, &[]);
        let options = bytes.len() / 16 + 1;
        prop_assert!(out.len() <= options * 300, "{} of {}", out.len(), bytes.len());
        prop_assert!(out.capacity() <= 2 * out.len().max(64));
    }

    #[test]
    fn a_client_does_not_see_the_portions(
        portions in proptest::collection::vec(0usize..50, 0..40),
        goal in prop_oneof![
            Just(Goal::List),
            Just(Goal::Info("rom".to_owned())),
            Just(Goal::Go("disk".to_owned())),
        ],
        fault in (any::<prop::sample::Index>(), any::<u8>()),
    ) {
        let plan = Plan { contexts: vec!["base:allocation".to_owned()], ..Plan::new(goal) };
        // The bytes of a correct server do not depend on the portions that its client received.
        let [_, mut bytes] = talk(plan.clone(), Config::default()).sent;
        let at = fault.0.index(bytes.len());
        bytes[at] ^= fault.1;
        let whole = received(&plan, &bytes, &[]);
        prop_assert_eq!(&received(&plan, &bytes, &vec![1; bytes.len()]), &whole);
        prop_assert_eq!(&received(&plan, &bytes, &portions), &whole);
        prop_assert!(whole.0.len() <= 16 * 8 + 200, "{} bytes", whole.0.len());
    }
}

/// A hostile server makes a list long: the client keeps what arrived, up to its bound.
#[test]
fn a_client_keeps_a_bounded_list() {
    let mut plan = Plan::new(Goal::List);
    plan.limits.listed = 100;
    let mut client = client::Handshake::new(plan);
    let [_, greeting] = talk(go("disk"), Config::default()).sent;
    let mut out = Vec::new();
    client.feed(&greeting[..18], &mut out);
    client.feed(&reply(11, 1, &[]), &mut out);
    let entry = reply(3, 2, &[0, 0, 0, 1, b'x']);
    for _ in 0..100 {
        assert!(matches!(client.feed(&entry, &mut out).next, client::Next::NeedMore));
    }
    let next = client.feed(&entry, &mut out).next;
    assert!(matches!(next, client::Next::Close(BrokenHandshake::TooMany)));
}
