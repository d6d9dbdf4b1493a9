//! The same bytes in other portions give the same answers: whole, byte by byte, and cut anywhere. Hostile bytes make
//! neither half keep more than was sent, or answer beyond a bound.

use crate::by_hand::{info, option, queries, reply};
use crate::directory::Directory;
use crate::talk::{go, talk};
use blkmq_nbd::client::{self, Goal, Plan};
use blkmq_nbd::server::{Config, Handshake, Next, Tls};
use proptest::prelude::*;

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
    assert!(matches!(next, client::Next::Close(client::BrokenHandshake::TooMany)));
}
