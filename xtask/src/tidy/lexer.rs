//! Splits Rust source into code and comments, so that a rule about calls ignores prose and strings, and a rule about
//! prose ignores code.
//!
//! The tokens are those of `proc-macro2`; this file puts each back into its place. Both halves keep every byte offset
//! and every line break of the source.

use crate::Result;
use proc_macro2::{TokenStream, TokenTree};
use std::ops::Range;

/// The two halves of a source file: in each, the text of the other half and the contents of literals are blank. A
/// non-ASCII byte becomes a `?`.
pub(crate) struct Masked {
    /// Code, with literals reduced to their quotes.
    pub(crate) code: String,
    /// Comments, including doc comments.
    pub(crate) comments: String,
}

/// The tokens of `source`, in which doc comments are attributes.
///
/// # Errors
/// If a literal, a comment or a bracket has no end.
pub(crate) fn tokens(source: &str) -> Result<TokenStream> {
    source.parse().map_err(|error: proc_macro2::LexError| {
        format!("line {}: {error}", error.span().start().line).into()
    })
}

/// Splits `source`, which has these tokens.
pub(super) fn mask(source: &str, tokens: &TokenStream) -> Masked {
    let bytes = source.as_bytes();
    let ascii = |byte: &u8| if byte.is_ascii() { *byte } else { b'?' };
    let mut masks = Masks {
        source,
        code: bytes.iter().map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }).collect(),
        comments: bytes.iter().map(ascii).collect(),
    };
    masks.take_all(tokens);
    let text = |mask: Vec<u8>| String::from_utf8(mask).expect("masks are ASCII by construction");
    Masked { code: text(masks.code), comments: text(masks.comments) }
}

struct Masks<'a> {
    source: &'a str,
    code: Vec<u8>,
    /// The text without the tokens that have been taken out.
    comments: Vec<u8>,
}

impl Masks<'_> {
    fn take_all(&mut self, tokens: &TokenStream) {
        for token in tokens.clone() {
            let range = token.span().byte_range();
            let text = &self.source[range.clone()];
            if text.starts_with("//") || text.starts_with("/*") {
                continue;
            }
            match token {
                TokenTree::Group(group) => {
                    self.take(group.span_open().byte_range());
                    self.take_all(&group.stream());
                    self.take(group.span_close().byte_range());
                }
                TokenTree::Literal(_) => self.take_literal(range),
                TokenTree::Ident(_) | TokenTree::Punct(_) => self.take(range),
            }
        }
    }

    /// Moves a literal into the code half: all of a number; of a text, its quotes, and its prefix and suffix.
    fn take_literal(&mut self, range: Range<usize>) {
        let text = &self.source[range.clone()];
        let is_quote = ['"', '\''];
        if let (Some(open), Some(close)) = (text.find(is_quote), text.rfind(is_quote)) {
            let inside = range.start + open + 1..range.start + close;
            self.take(range.start..inside.start);
            self.blank(inside.clone());
            self.take(inside.end..range.end);
        } else {
            self.take(range);
        }
    }

    /// Moves a range from the comments into the code.
    fn take(&mut self, range: Range<usize>) {
        self.code[range.clone()].copy_from_slice(&self.comments[range.clone()]);
        self.blank(range);
    }

    fn blank(&mut self, range: Range<usize>) {
        self.comments[range]
            .iter_mut()
            .filter(|byte| **byte != b'\n')
            .for_each(|byte| *byte = b' ');
    }
}

/// Returns whether `byte` may be part of an identifier.
pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(source: &str) -> Masked {
        super::mask(source, &tokens(source).unwrap())
    }

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
        assert_eq!(code("{'{' }"), "{' ' }");
    }

    #[test]
    fn a_lifetime_is_not_a_character() {
        assert_eq!(code("fn f<'a>(x: &'a str);"), "fn f<'a>(x: &'a str);");
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
    fn a_string_without_an_end_is_an_error() {
        assert!(tokens("fn f() {\n\"abc\n}").unwrap_err().to_string().starts_with("line 2"));
    }
}
