//! A server that breaks the rules of the handshake, or refuses: the client gives up with a reason, or falls back.

use crate::by_hand::{ACK, INFO, META_CONTEXT, SERVER, TLS_REQD, UNSUP, option, reply};
use crate::talk::go;
use blkmq_nbd::client::{BrokenHandshake, Goal, Handshake, Next, Plan, Tls};
use blkmq_nbd::{HeaderStyle, OptionCode};

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
