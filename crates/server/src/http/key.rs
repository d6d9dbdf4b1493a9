//! The key of a server: the user that started the server gets it, and every change requires it.
//!
//! All users of this machine can reach its ports, and are not trusted to change settings.

use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;
use std::io;

/// 128 random bits, in hexadecimal.
pub(super) struct Key(String);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// Generates a key.
    ///
    /// # Errors
    /// If the system cannot provide random numbers.
    pub(super) fn new() -> io::Result<Self> {
        random().map(Self)
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Returns whether `text` is this key. The duration does not reveal the position of the first difference.
    pub(super) fn is(&self, text: &str) -> bool {
        let different = self.0.bytes().zip(text.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
        self.0.len() == text.len() && std::hint::black_box(different) == 0
    }
}

/// 128 random bits, in hexadecimal.
pub(super) fn random() -> io::Result<String> {
    let mut bytes = [0; 16];
    // Up to 256 bytes are returned completely, or not at all.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_is_the_key() {
        let key = Key::new().expect("the system has random numbers");
        assert_eq!(key.text().len(), 32);
        assert!(key.is(key.text()));
        let other = Key::new().expect("again");
        let short = &key.text()[..31];
        assert!(![other.text(), "", short].iter().any(|text| key.is(text)));
        assert_eq!(format!("{key:?}"), "Key(..)", "it is not logged by accident");
    }
}
