//! From a program to an elevator: the plug, and the rings behind it.

pub(crate) mod follow;
pub(crate) mod holdup;
pub(crate) mod io;
pub(crate) mod parts;
pub(crate) mod plug;
pub(crate) mod plugged;
pub(crate) mod seats;
pub(crate) mod split;
pub(crate) mod staging;
pub(crate) mod submitter;
pub(crate) mod throttle;
