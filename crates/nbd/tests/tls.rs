//! TLS in the handshake: nothing that was said before it counts afterwards (`docs/spec/nbd.md`, sections 3 and 3.2).

use crate::by_hand::{ACK, INVALID, Server, TLS_REQD, UNSUP, info, option, queries};
use crate::directory::Directory;
use crate::talk::{agreed, go, talk};
use blkmq_nbd::client::{self, BrokenHandshake, Plan};
use blkmq_nbd::server::{Closing, Config, Handshake, Next, Tls};
use blkmq_nbd::{HeaderStyle, OptionCode, OptionError};

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
    assert_eq!(crate::by_hand::codes(&out), [ACK]);
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
    assert_eq!(crate::by_hand::codes(&out), [ACK], "to STARTTLS alone");
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
