//! From a program to an elevator, and back: submitters, and the I/Os that they hold back or divide.

pub(crate) mod io;
pub(crate) mod root;
pub(crate) mod split;
pub(crate) mod submitter;
pub(crate) mod throttle;
