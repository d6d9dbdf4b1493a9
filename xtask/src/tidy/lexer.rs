//! Splits Rust source into code and comments, so that a rule about calls ignores prose and strings, and a rule about
//! prose ignores code.
//!
//! It knows strings, raw strings, byte and C strings, characters, lifetimes and nested comments, and nothing of the
//! grammar. Both halves keep every byte offset and every line break of the source.

/// The two halves of a source file: in each, the text of the other half and the inside of every literal are blank. A
/// byte that is not ASCII is a `?`.
pub(crate) struct Masked {
    /// Code, with literals reduced to their quotes.
    pub(crate) code: String,
    /// Comments, including doc comments.
    pub(crate) comments: String,
}

/// Splits `source`. An unterminated literal or comment extends to the end of the file.
pub(super) fn mask(source: &str) -> Masked {
    let bytes = source.as_bytes();
    let mut masks = Masks { code: blank(bytes), comments: blank(bytes), bytes };
    let mut at = 0;
    while at < bytes.len() {
        at = masks.step(at);
    }
    let text = |mask: Vec<u8>| String::from_utf8(mask).expect("masks are ASCII by construction");
    Masked { code: text(masks.code), comments: text(masks.comments) }
}

fn blank(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }).collect()
}

struct Masks<'a> {
    bytes: &'a [u8],
    code: Vec<u8>,
    comments: Vec<u8>,
}

impl Masks<'_> {
    /// Consumes one lexeme at `at` and returns the beginning of the next one.
    fn step(&mut self, at: usize) -> usize {
        let rest = &self.bytes[at..];
        if rest.starts_with(b"//") {
            let end = at + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            return self.comment(at, end);
        }
        if rest.starts_with(b"/*") {
            let end = block_comment_end(self.bytes, at);
            return self.comment(at, end);
        }
        match rest[0] {
            b'"' => self.string(at),
            b'\'' => self.character(at),
            byte if is_word(byte) => self.word(at),
            _ => self.copy(at, at + 1),
        }
    }

    /// A word, which may turn out to be the prefix of a literal: `r#"`, `b'`, `c"`.
    fn word(&mut self, at: usize) -> usize {
        let len = self.bytes[at..].iter().take_while(|byte| is_word(**byte)).count();
        let end = self.copy(at, at + len);
        let word = &self.bytes[at..end];
        let is_raw = matches!(word, b"r" | b"br" | b"cr");
        if is_raw && matches!(self.bytes.get(end), Some(b'"' | b'#')) {
            return self.raw_string(end);
        }
        if word == b"b" && self.bytes.get(end) == Some(&b'\'') {
            return self.character(end);
        }
        end
    }

    /// `#*" ... "#*` with as many hashes behind as in front. `r#name` is an identifier and ends at once.
    fn raw_string(&mut self, at: usize) -> usize {
        let hashes = self.bytes[at..].iter().take_while(|byte| **byte == b'#').count();
        let open = at + hashes;
        self.copy(at, open);
        if self.bytes.get(open) != Some(&b'"') {
            return open;
        }
        let closing: Vec<u8> = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
        let inside = &self.bytes[open + 1..];
        let len = inside.windows(closing.len()).position(|window| window == closing);
        self.literal(open, len.map_or(self.bytes.len(), |len| open + 1 + len + 1))
    }

    fn string(&mut self, at: usize) -> usize {
        let mut end = at + 1;
        while end < self.bytes.len() && self.bytes[end] != b'"' {
            end += if self.bytes[end] == b'\\' { 2 } else { 1 };
        }
        self.literal(at, (end + 1).min(self.bytes.len()))
    }

    /// `'x'`, `'\n'`, or the tick of a lifetime.
    fn character(&mut self, at: usize) -> usize {
        let rest = &self.bytes[at + 1..];
        let len = match rest.first() {
            Some(b'\\') => rest.iter().skip(2).position(|byte| *byte == b'\'').map(|n| n + 2),
            // One character of up to four bytes, then the closing tick.
            Some(_) => (1..=4)
                .find(|n| rest.get(*n) == Some(&b'\''))
                .filter(|n| *n == 1 || !rest[..*n].is_ascii()),
            None => None,
        };
        match len {
            Some(len) => self.literal(at, at + 1 + len + 1),
            None => self.copy(at, at + 1),
        }
    }

    /// Keeps the first and the last byte of the literal, its quotes.
    fn literal(&mut self, from: usize, to: usize) -> usize {
        self.copy(from, from + 1);
        self.copy(to - 1, to);
        to
    }

    fn comment(&mut self, from: usize, to: usize) -> usize {
        for at in from..to {
            self.comments[at] = ascii(self.bytes[at]);
        }
        to
    }

    fn copy(&mut self, from: usize, to: usize) -> usize {
        for at in from..to {
            self.code[at] = ascii(self.bytes[at]);
        }
        to
    }
}

/// Comments nest: `/* a /* b */ c */` is one.
fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0u32);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn ascii(byte: u8) -> u8 {
    if byte.is_ascii() { byte } else { b'?' }
}

/// May `byte` be part of an identifier?
pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code half with runs of blanks collapsed.
    fn code(source: &str) -> String {
        mask(source).code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn both_halves_keep_every_offset() {
        let source = "let a = \"x{\"; // why {\nlet b = 'y';\n";
        let masked = mask(source);
        assert_eq!(masked.code.len(), source.len());
        assert_eq!(masked.comments.find("why"), source.find("why"));
        assert_eq!(masked.code.find("let b"), source.find("let b"));
    }

    #[test]
    fn literals_lose_their_inside() {
        assert_eq!(code(r#"f("a \" {", b"}")"#), r#"f(" ", b" ")"#);
        assert_eq!(code("f(r#\"a \" { \"#); g"), "f(r#\" \"#); g");
    }

    #[test]
    fn a_brace_in_a_character_is_not_a_brace() {
        for source in ["'{'", "b'{'", r"'\''", "'\u{e4}'"] {
            assert!(!mask(source).code.contains('{'), "{source}");
        }
        assert!(code("'{' }").ends_with('}'));
    }

    #[test]
    fn a_lifetime_is_not_a_character() {
        assert_eq!(code("fn f<'a>(x: &'a str) {"), "fn f<'a>(x: &'a str) {");
    }

    #[test]
    fn comments_nest() {
        let masked = mask("a /* b /* c */ d */ e");
        assert_eq!(masked.code.split_whitespace().collect::<Vec<_>>(), ["a", "e"]);
        assert!(masked.comments.contains("d */"));
    }

    #[test]
    fn a_raw_identifier_is_code() {
        assert_eq!(code("r#type + 1"), "r#type + 1");
    }

    #[test]
    fn an_unterminated_string_ends_with_the_file() {
        assert_eq!(mask("x \"abc").code.trim_end().chars().next(), Some('x'));
    }
}
