//! The limits of HTTP. They are not configurable: no request that is answered here needs more.

use blkmq::Nanos;

/// Concurrent connections. A further one replaces the oldest that has not sent its request.
pub(super) const CONNECTIONS: usize = 32;
/// Bytes of a request's head.
pub(super) const HEAD: usize = 8 << 10;
/// Header fields.
pub(super) const FIELDS: usize = 48;
/// Bytes of a body.
pub(super) const BODY: usize = 4 << 10;
/// The maximum time for a request to arrive, from the first byte of the connection.
pub(super) const REQUEST: Nanos = Nanos::from_millis(5_000);
/// The maximum time for a client to take its answer.
pub(super) const ANSWER: Nanos = Nanos::from_millis(10_000);
/// How long bytes after a request are discarded, so that its answer is not lost.
pub(super) const FAREWELL: Nanos = Nanos::from_millis(500);
