//! Parses the bounds of the server in a configuration file.

use blkmq_server::Bounds;
use blkmq_terminal::UsageError;
use blkmq_terminal::units::{self, KbBase, TimeUnit};

/// The settings, in the order of [`Bounds`].
pub const KEYS: [&str; 15] = [
    "connections",
    "connections-per-export",
    "connections-per-identity",
    "connections-per-peer",
    "connections-per-second",
    "handshakes",
    "handshake",
    "requests",
    "bytes",
    "bytes-per-worker",
    "replies",
    "bytes-per-turn",
    "silence",
    "drain",
    "devices",
];

/// Sets the bound `key` to the value `text`: a count, an amount of bytes, or a time in seconds.
///
/// # Errors
/// If there is no such bound, or the value is invalid.
pub fn set(bounds: &mut Bounds, key: &str, text: &str) -> Result<(), UsageError> {
    let count = || units::count(text, 1..=1 << 20, KbBase::Binary);
    // A connection must be able to have the largest request in flight.
    let bytes = || units::count(text, 64 << 20..=1 << 40, KbBase::Binary);
    let time = || units::time(text, TimeUnit::Seconds);
    match key {
        "connections" => count().map(|n| bounds.connections = n),
        "connections-per-export" => count().map(|n| bounds.connections_per_export = n),
        "connections-per-identity" => count().map(|n| bounds.connections_per_identity = n),
        "connections-per-peer" => count().map(|n| bounds.connections_per_peer = n),
        "connections-per-second" => units::count(text, 1..=1 << 20, KbBase::Binary)
            .map(|n| bounds.connections_per_second = n),
        "handshakes" => count().map(|n| bounds.handshakes = n),
        "handshake" => time().map(|t| bounds.handshake = t),
        "requests" => count().map(|n| bounds.requests = n),
        "bytes" => bytes().map(|n| bounds.bytes = n),
        "bytes-per-worker" => bytes().map(|n| bounds.bytes_per_worker = n),
        "replies" => {
            units::count(text, 64 << 10..=1 << 40, KbBase::Binary).map(|n| bounds.replies = n)
        }
        "bytes-per-turn" => {
            units::count(text, 4 << 10..=1 << 40, KbBase::Binary).map(|n| bounds.bytes_per_turn = n)
        }
        "silence" => time().map(|t| bounds.silence = t),
        "drain" => time().map(|t| bounds.drain = t),
        "devices" => units::count(text, 0..=256, KbBase::Binary).map(|n| bounds.devices = n),
        _ => Err(UsageError::new(format!("no such bound; accepted: {}", KEYS.join(", ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkmq_core::Nanos;

    #[test]
    fn every_bound_can_be_set_and_has_a_unit() {
        let mut bounds = Bounds::default();
        for key in KEYS {
            let before = bounds;
            let value = if key.starts_with("bytes") || key == "replies" { "100m" } else { "7" };
            set(&mut bounds, key, value).expect(key);
            assert_ne!(bounds, before, "{key}");
        }
        assert_eq!((bounds.handshake, bounds.bytes), (Nanos::from_millis(7000), 100 << 20));
        let refused = set(&mut bounds, "bytes", "1k").expect_err("too few").to_string();
        assert!(refused.contains("accepted"), "{refused}");
        assert!(set(&mut bounds, "byte", "1g").is_err());
    }
}
