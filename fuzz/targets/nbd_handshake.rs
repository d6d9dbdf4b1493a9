//! A server's handshake with any client: the first byte chooses the configuration, the second one where the bytes are
//! cut. In two portions they give the answers that they give whole.

#![no_main]

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../crates/nbd/tests/talk.rs"]
mod talk;

use blkmq_nbd::HeaderStyle;
use blkmq_nbd::server::{Config, Handshake, Listing, Next, Tls};
use libfuzzer_sys::fuzz_target;
use talk::Directory;

/// The most bytes of answers: 64 options, each with less than five replies of 100 bytes.
const MOST_ANSWERS: usize = 64 * 5 * 100;

fn config(choice: u8) -> Config {
    Config {
        tls: [Tls::Off, Tls::Off, Tls::Required, Tls::Established][usize::from(choice & 3)],
        listing: if choice & 4 == 0 { Listing::Shown } else { Listing::Hidden },
        most: match choice >> 3 & 3 {
            0 => HeaderStyle::Simple,
            1 => HeaderStyle::Structured,
            _ => HeaderStyle::Extended,
        },
        ..Config::default()
    }
}

/// The answers to bytes that arrive in two portions, and the text of the end.
fn serve(choice: u8, bytes: &[u8], cut: usize) -> (Vec<u8>, String) {
    let mut server = Handshake::new(config(choice));
    let (mut out, mut buffer) = (Vec::new(), Vec::new());
    let (first, second) = bytes.split_at(cut.min(bytes.len()));
    for portion in [first, second] {
        buffer.extend_from_slice(portion);
        let progress = server.feed(&buffer, &Directory, &mut out);
        buffer.drain(..progress.consumed);
        if !matches!(progress.next, Next::NeedMore) {
            return (out, format!("{:?}", progress.next));
        }
        assert!(buffer.len() < (64 << 10) + 16);
    }
    (out, String::new())
}

fuzz_target!(|bytes: &[u8]| {
    let [choice, cut, bytes @ ..] = bytes else { return };
    let whole = serve(*choice, bytes, bytes.len());
    assert!(whole.0.len() <= MOST_ANSWERS && whole.0.capacity() <= 2 * MOST_ANSWERS);
    // Bytes behind STARTTLS are dropped with the portion that they came in.
    if whole.1 != "StartTls" {
        assert_eq!(serve(*choice, bytes, usize::from(*cut)), whole);
    }
});
