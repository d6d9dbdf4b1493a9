//! Every file of tests here, in one program. `cargo test -p blkmq-nbd --test all hostile::` runs one file.
//!
//! In most tests the two halves talk to each other in memory; tests of hostile peers make their bytes by hand.

mod handshake;
mod hostile;
mod naive;
mod talk;
mod transmission;
