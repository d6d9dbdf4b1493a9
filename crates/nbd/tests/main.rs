//! Every file of tests here, in one program. `cargo test -p blkmq-nbd --test all options::` runs one file.
//!
//! In most tests the two halves talk to each other in memory; tests of hostile peers make their bytes by hand.

mod agreement;
mod by_hand;
mod directory;
mod hostile_handshake;
mod hostile_server;
mod naive;
mod options;
mod portions;
mod talk;
mod tls;
mod transmission;
mod twins;
