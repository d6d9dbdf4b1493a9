//! Big-endian fields: taken from the front of bytes, and appended. It knows no message.

/// Bytes that are taken field by field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn bytes(&mut self, len: u32) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(len as usize)?;
        self.0 = rest;
        Some(field)
    }

    /// A string behind its length.
    pub(crate) fn counted(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.bytes(len)
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// `Some` if nothing is left.
    pub(crate) fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Bytes that grow field by field.
pub(crate) trait Put {
    fn put(&mut self, bytes: &[u8]);

    fn put_u16(&mut self, field: u16) {
        self.put(&field.to_be_bytes());
    }

    fn put_u32(&mut self, field: u32) {
        self.put(&field.to_be_bytes());
    }

    fn put_u64(&mut self, field: u64) {
        self.put(&field.to_be_bytes());
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A string of the protocol: UTF-8 without NUL.
pub(crate) fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

/// The longest beginning of `text` that has at most `most` bytes and ends with a character.
pub(crate) fn clipped(text: &str, most: u32) -> &str {
    let mut end = text.len().min(most as usize);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_in_their_order() {
        let mut bytes = Vec::new();
        bytes.put_u16(0x0102);
        bytes.put_u32(3);
        bytes.put(b"abc");
        bytes.put_u64(u64::MAX);
        assert_eq!(bytes[..6], [1, 2, 0, 0, 0, 3]);
        let mut fields = Fields::new(&bytes);
        assert_eq!(fields.u16(), Some(0x0102));
        assert_eq!(fields.counted(), Some(&b"abc"[..]));
        assert_eq!(fields.rest().len(), 8);
        assert_eq!(fields.end(), None);
        assert_eq!(fields.u64(), Some(u64::MAX));
        assert_eq!(fields.end(), Some(()));
        assert_eq!(fields.u16(), None);
    }

    #[test]
    fn a_length_beyond_the_bytes_takes_nothing() {
        let mut fields = Fields::new(&[0xff, 0xff, 0xff, 0xff, 1]);
        assert_eq!(fields.counted(), None);
        assert_eq!(fields.rest(), [1]);
    }

    #[test]
    fn strings_have_no_nul_and_end_with_a_character() {
        assert_eq!(text(b"a b"), Some("a b"));
        assert_eq!(text(b"a\0b"), None);
        assert_eq!(text(b"\xff"), None);
        let umlauts = "\u{e4}\u{e4}";
        assert_eq!(clipped(umlauts, 3), "\u{e4}");
        assert_eq!(clipped(umlauts, 9), umlauts);
    }
}
