//! The bounds of HTTP. They are no settings: nothing that is answered here needs more.

use blkmq::Nanos;

/// Connections at a time. A further one takes the place of the oldest that has not sent its request.
pub(super) const CONNECTIONS: usize = 32;
/// Bytes of a request before its body.
pub(super) const HEAD: usize = 8 << 10;
/// Header fields.
pub(super) const FIELDS: usize = 48;
/// Bytes of a body.
pub(super) const BODY: usize = 4 << 10;
/// How long a request may take to arrive, from the first byte of the connection.
pub(super) const REQUEST: Nanos = Nanos::from_millis(5_000);
/// How long a client may take for its answer.
pub(super) const ANSWER: Nanos = Nanos::from_millis(10_000);
/// How long bytes behind a request are thrown away, so that its answer is not lost with them.
pub(super) const FAREWELL: Nanos = Nanos::from_millis(500);
