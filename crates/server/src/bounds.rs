//! The bounds of a server against clients that ask for too much (`docs/spec/nbd.md`, section 6).

use blkmq::Nanos;

/// Bounds on connections and on requests in flight. [`Bounds::default`] has those of the specification. The bounds on
/// bytes of the wire are `blkmq_nbd`'s.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Connections at a time. Further ones are accepted and closed.
    pub connections: usize,
    /// Connections to one export at a time.
    pub connections_per_export: usize,
    /// Connections of one identity (a name of a certificate, a user of this machine, an address) to exports at a time, on a
    /// server where rules say which clients may use it or an export. Without rules it is not in force.
    pub connections_per_identity: usize,
    /// Connections from one IP address at a time. Sockets in the file system are not counted by it.
    pub connections_per_peer: usize,
    /// Handshakes under way at a time, of which each worker has its part. Beyond, the oldest of the peer with the most
    /// is closed; a peer is an address, or a process of this machine.
    pub handshakes: usize,
    /// Connections from one peer, an address or a process of this machine, in a second, on average and in one burst.
    /// Further ones are accepted and closed by the thread that accepts, and cost the workers nothing.
    pub connections_per_second: u32,
    /// The longest handshake, TLS included.
    pub handshake: Nanos,
    /// Requests in flight for a connection. Beyond, its socket is not read.
    pub requests: usize,
    /// Bytes in flight for a connection: payloads, and replies that it has not taken. Beyond, its socket is not read. A
    /// new connection has 4 MiB, and as many more as have gone to and come from its client.
    pub bytes: usize,
    /// Bytes in flight for all connections of a worker. Beyond, a connection has at most 2 MiB: one that takes its
    /// replies continues beside others that do not.
    pub bytes_per_worker: usize,
    /// Bytes of replies that wait for a client to take them. Beyond, its next requests wait. While the socket takes
    /// nothing, they wait beyond `bytes_per_turn` in flight: a client that takes no replies costs its worker no more
    /// copies.
    pub replies: usize,
    /// Bytes of requests that begin, and of replies that are sent, for a connection before its worker looks at the
    /// others. All connections with an event share twice as many, and have 16 KiB each beyond; those that want more, and those
    /// that have just begun, share as many in each further turn. Longer reads and writes are carried out in portions of
    /// so many bytes, 256 KiB at most, and ranges are trimmed or zeroed by a step in each turn. A device that answers
    /// immediately, as memory does, has the worker copy them: the default takes about a tenth of a millisecond.
    pub bytes_per_turn: usize,
    /// The longest time without a byte in the middle of a request, or while replies wait that the client does not
    /// take.
    pub silence: Nanos,
    /// The longest drain. Clients that have not taken their replies by then, and requests that the device has not ended, are
    /// given up. Below the ten seconds after which `docker stop` kills.
    pub drain: Nanos,
    /// Block devices of this machine that can be added to each disk while the server runs, beside those that it begins with.
    /// A disk is [started](crate::Disk::start) for as many threads more, which costs memory only.
    pub devices: u16,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: 256,
            connections_per_export: 64,
            connections_per_identity: 64,
            connections_per_peer: 32,
            handshakes: 64,
            connections_per_second: 200,
            handshake: Nanos::from_millis(10_000),
            requests: 128,
            bytes: 64 << 20,
            bytes_per_worker: 512 << 20,
            replies: 2 << 20,
            bytes_per_turn: 256 << 10,
            silence: Nanos::from_millis(60_000),
            drain: Nanos::from_millis(8_000),
            devices: 4,
        }
    }
}
