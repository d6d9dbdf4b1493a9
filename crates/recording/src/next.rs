//! [`Next`]: the outcome of a step of a reader.

use crate::fault::Fault;
use crate::record::Raw;

pub(crate) enum Next {
    Io(Raw),
    Other,
    Bad(Fault),
    End,
}
