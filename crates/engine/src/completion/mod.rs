//! Completions on their way back, and the requests that failed or stayed too long at the device.

pub(crate) mod apart;
pub(crate) mod completions;
pub(crate) mod expiry;
