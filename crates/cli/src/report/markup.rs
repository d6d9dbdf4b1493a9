//! HTML and SVG, well-formed by construction: elements nest through closures, text and attributes are escaped on input,
//! and raw markup cannot be added.

use std::fmt::{Display, Write as _};

/// Names and values of attributes; values are escaped.
pub type Attributes<'a> = &'a [(&'a str, &'a dyn Display)];

/// A document, or a part of one, under construction.
#[derive(Debug, Default)]
pub struct Markup {
    out: String,
}

impl Markup {
    /// An HTML document, with its first line.
    #[must_use]
    pub fn html() -> Self {
        Self { out: "<!DOCTYPE html>\n".into() }
    }

    /// An element with the content that `content` adds.
    pub fn element(
        &mut self,
        tag: &'static str,
        attributes: Attributes,
        content: impl FnOnce(&mut Self),
    ) {
        self.start(tag, attributes);
        self.out.push('>');
        content(self);
        write!(self.out, "</{tag}>").expect("a String takes every text");
        if !is_inline(tag) {
            self.out.push('\n');
        }
    }

    /// Adds an element that contains only text.
    pub fn leaf(&mut self, tag: &'static str, attributes: Attributes, text: &str) {
        self.element(tag, attributes, |m| m.text(text));
    }

    /// An element without content.
    pub fn empty(&mut self, tag: &'static str, attributes: Attributes) {
        self.start(tag, attributes);
        self.out.push_str("/>\n");
    }

    /// Text, escaped. Control characters, which neither HTML nor XML can hold, become U+FFFD.
    pub fn text(&mut self, text: &str) {
        escape_into(&mut self.out, text);
    }

    /// Adds a built-in style sheet, unescaped. No text of a report may be passed here.
    pub fn style(&mut self, sheet: &'static str) {
        assert!(!sheet.contains("</"), "a style sheet cannot end its element");
        write!(self.out, "<style>\n{sheet}</style>\n").expect("a String takes every text");
    }

    /// Appends a part that was built separately.
    pub fn append(&mut self, part: &Self) {
        self.out.push_str(&part.out);
    }

    /// The finished text.
    #[must_use]
    pub fn finish(self) -> String {
        self.out
    }

    fn start(&mut self, tag: &'static str, attributes: Attributes) {
        write!(self.out, "<{tag}").expect("a String takes every text");
        for (name, value) in attributes {
            write!(self.out, " {name}=\"").expect("a String takes every text");
            escape_into(&mut self.out, &value.to_string());
            self.out.push('"');
        }
    }
}

/// A coordinate or length, to a tenth of a pixel.
#[derive(Clone, Copy, Debug)]
pub struct Px(pub f64);

impl Display for Px {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Adding zero turns a minus zero into a plain one.
        write!(f, "{}", (self.0 * 10.0).round() / 10.0 + 0.0)
    }
}

/// Whether a line break after the element would be visible as a space.
fn is_inline(tag: &str) -> bool {
    matches!(tag, "b" | "code" | "span" | "text" | "tspan" | "title" | "pre")
}

fn escape_into(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_attributes_are_escaped() {
        let mut m = Markup::default();
        m.leaf("p", &[("class", &"\"><b>"), ("x", &Px(1.26))], "a < b & 'c'\u{1b}");
        m.empty("br", &[]);
        let expected = "<p class=\"&quot;&gt;&lt;b&gt;\" x=\"1.3\">a &lt; b &amp; &#39;c&#39;\u{fffd}</p>\n<br/>\n";
        assert_eq!(m.finish(), expected);
    }

    #[test]
    fn px_is_short() {
        assert_eq!((Px(10.0).to_string(), Px(-0.04).to_string()), ("10".into(), "0".into()));
    }
}
