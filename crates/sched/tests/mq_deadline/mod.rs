//! `mq-deadline` against `spec/mq-deadline.md`: section 8 line by line, the consequences of section 4.2, and the
//! bounds of `doc/mq-deadline.md`; and plugs that leave in one step.

mod bounds;
mod common;
mod plugs;
mod section4;
mod section8;
