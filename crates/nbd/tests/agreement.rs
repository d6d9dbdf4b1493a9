//! Both halves come to an agreement: every form of headers, contexts, lists, and the fallbacks of clients in use.

use crate::by_hand::{Server, UNSUP, info, option, queries, reply};
use crate::directory::{SIZE, disk, rom};
use crate::talk::{agreed, go, talk};
use blkmq_nbd::client::{self, BrokenHandshake, Details, Goal, Plan};
use blkmq_nbd::server::{self, Closing, Config, Listing, Next};
use blkmq_nbd::{HeaderStyle, OptionCode, OptionError, TransmissionFlags};

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
        let mut server = server::Handshake::new(Config::default());
        let mut out = Vec::new();
        let bytes = [&flags.to_be_bytes(), &option(1, b"rom")[..]].concat();
        let progress = server.feed(&bytes, &crate::directory::Directory, &mut out);
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
