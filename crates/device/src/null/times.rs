//! The times that null_blk fixes.

use blkmq_core::Nanos;

/// How long the engine waits for a request before it asks for it: null_blk's request timeout.
pub const REQUEST_TIMEOUT: Nanos = Nanos::from_secs(5);
/// How long a `dev_resource` fault lasts if no request is in service: no completion could keep the promise of
/// DEV_RESOURCE then.
pub const DEV_RESOURCE_DELAY: Nanos = Nanos::from_millis(1);
