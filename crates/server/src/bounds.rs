//! The limits of a server on greedy clients (`docs/spec/nbd.md`, section 6).

use blkmq::Nanos;

/// Limits on connections and on requests in flight. [`Bounds::default`] has those of the specification. Limits on the
/// wire format are in `blkmq_nbd`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Concurrent connections. Further ones are accepted and closed.
    pub connections: usize,
    /// Concurrent connections to one export.
    pub connections_per_export: usize,
    /// Concurrent connections to exports from one identity (a certificate name, a user of this machine, an address), if
    /// rules restrict the clients of the server or of an export. Without rules it is not enforced.
    pub connections_per_identity: usize,
    /// Concurrent connections from one IP address. Sockets in the file system are not counted.
    pub connections_per_peer: usize,
    /// Concurrent handshakes, divided among the workers. Beyond this, the oldest handshake of the peer with the most is
    /// closed. A peer is an address, or a process of this machine.
    pub handshakes: usize,
    /// Connections per second from one peer, an address or a process of this machine, on average and as a burst.
    /// Further ones are closed by the accepting thread at no cost to the workers.
    pub connections_per_second: u32,
    /// The maximum duration of a handshake, including TLS.
    pub handshake: Nanos,
    /// Requests in flight on a connection. At the limit, its socket is not read.
    pub requests: usize,
    /// Bytes in flight for a connection: payloads, and replies that it has not taken. At the limit, its socket is not
    /// read. The limit of a new connection is 4 MiB plus the bytes that it has transferred so far.
    pub bytes: usize,
    /// Bytes in flight on all connections of a worker. Beyond this, a connection has at most 2 MiB, so that a
    /// connection that takes its replies makes progress beside others that do not.
    pub bytes_per_worker: usize,
    /// Bytes of replies that a client has not taken. Beyond this, its next requests wait. While its socket is full,
    /// they already wait beyond `bytes_per_turn` in flight, so that a client that takes no replies costs its worker no
    /// more copies.
    pub replies: usize,
    /// Bytes of new requests, and of replies sent, for a connection before its worker serves the others. All
    /// connections with an event share twice this number in a turn, and get 16 KiB each beyond it; those that want
    /// more, and those that have just begun, share this number in each further turn. Longer reads and writes are split
    /// into portions of this size, at most 256 KiB, and ranges are trimmed or zeroed by one step in each turn. If the
    /// device completes immediately, like memory, the worker copies the bytes: the default takes about a tenth of a
    /// millisecond.
    pub bytes_per_turn: usize,
    /// The maximum time without a byte in the middle of a request, or while the client does not take waiting replies.
    pub silence: Nanos,
    /// The maximum duration of a drain. Clients that have not taken their replies by then, and requests that the device
    /// has not completed, are given up. Less than the ten seconds after which `docker stop` kills.
    pub drain: Nanos,
    /// Block devices of this machine that can be added to each disk while the server runs, in addition to the initial
    /// ones. A disk is [started](crate::Disk::start) for as many threads more, which costs memory only.
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
