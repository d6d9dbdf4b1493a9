//! A client and a server in one thread, with the bytes between them.

use crate::directory::Directory;
use blkmq_nbd::client::{self, Goal, Plan};
use blkmq_nbd::server::{self, Config};

/// Both ends of a handshake.
#[derive(Debug)]
pub struct Talk {
    pub client: client::Next,
    pub server: server::Next,
    /// All bytes sent by the client, and all bytes sent by the server.
    pub sent: [Vec<u8>; 2],
}

/// Runs a handshake to its end. TLS is only agreed on, not carried out.
pub fn talk(plan: Plan, config: Config) -> Talk {
    let mut client = client::Handshake::new(plan);
    let mut server = server::Handshake::new(config);
    let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
    let mut sent = [Vec::new(), Vec::new()];
    server.greeting(&mut to_client);
    let mut ends = (None, None);
    // A handshake has at most a few dozen turns.
    for _ in 0..1000 {
        if ends.0.is_none() {
            sent[1].extend_from_slice(&to_client);
            let progress = client.feed(&to_client, &mut to_server);
            to_client.drain(..progress.consumed);
            match progress.next {
                client::Next::NeedMore => {}
                client::Next::StartTls => client.secured(&mut to_server),
                end => ends.0 = Some(end),
            }
        }
        if ends.1.is_none() {
            sent[0].extend_from_slice(&to_server);
            let progress = server.feed(&to_server, &Directory, &mut to_client);
            to_server.drain(..progress.consumed);
            match progress.next {
                server::Next::NeedMore | server::Next::StartTls => {}
                end => ends.1 = Some(end),
            }
        }
        if let (Some(client), Some(server)) = ends {
            return Talk { client, server, sent };
        }
        // A client that gives up closes; the server sees the end of the stream.
        if let Some(end @ client::Next::Close(_)) = ends.0 {
            return Talk { client: end, server: server::Next::NeedMore, sent };
        }
        if let Some(server @ server::Next::Close(_)) = ends.1 {
            return Talk { client: client::Next::NeedMore, server, sent };
        }
    }
    panic!("the handshake has no end");
}

/// The agreement of both sides.
pub fn agreed(plan: Plan, config: Config) -> (client::Agreed, server::Negotiated) {
    match talk(plan, config) {
        Talk { client: client::Next::Go(agreed), server: server::Next::Go(negotiated), .. } => {
            (agreed, negotiated)
        }
        other => panic!("no agreement: {other:?}"),
    }
}

pub fn go(name: &str) -> Plan {
    Plan::new(Goal::Go(name.to_owned()))
}
