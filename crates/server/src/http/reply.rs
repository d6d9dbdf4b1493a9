//! Answers and their encoding.
//!
//! Every answer forbids what no answer needs: caching, framing by other sites, a guess at the content type, and loading
//! anything from elsewhere.

use serde::Serialize;
use std::borrow::Cow;

/// JSON.
pub(super) const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) content_type: &'static str,
    /// `Content-Security-Policy`.
    pub(super) policy: Cow<'static, str>,
    pub(super) body: Vec<u8>,
}

/// The reason why a request is refused: a line that lists the accepted values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    pub(super) status: u16,
    why: String,
}

impl Refusal {
    pub(super) fn new(status: u16, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Self {
        Self::text(refusal.status, &refusal.why)
    }
}

impl Reply {
    /// Creates an answer that may load nothing.
    pub(super) fn new(status: u16, content_type: &'static str, body: Vec<u8>) -> Self {
        Self { status, content_type, policy: "default-src 'none'".into(), body }
    }

    /// One line.
    pub(super) fn text(status: u16, line: &str) -> Self {
        Self::new(status, TEXT, format!("{line}\n").into_bytes())
    }

    pub(super) fn json(status: u16, value: &impl Serialize) -> Self {
        let body = serde_json::to_vec(value).expect("answers have a form in JSON");
        Self::new(status, JSON, body)
    }

    /// Encodes the answer; the connection ends after it.
    pub(super) fn bytes(self, with_body: bool) -> Vec<u8> {
        let mut bytes = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\
             Cache-Control: no-store\r\nContent-Security-Policy: {}\r\nX-Content-Type-Options: nosniff\r\n\
             X-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
             Cross-Origin-Opener-Policy: same-origin\r\n",
            self.status,
            reason(self.status),
            self.content_type,
            self.body.len(),
            self.policy,
        )
        .into_bytes();
        if self.status == 405 {
            bytes.extend_from_slice(b"Allow: GET, HEAD, POST\r\n");
        }
        if self.status == 401 {
            bytes.extend_from_slice(b"WWW-Authenticate: Bearer\r\n");
        }
        bytes.extend_from_slice(b"\r\n");
        if with_body {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        411 => "Length Required",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_its_length_and_ends_the_connection() {
        let text = String::from_utf8(Reply::text(200, "ok").bytes(true)).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        for field in ["Content-Length: 3", "Connection: close", "Cache-Control: no-store"] {
            assert!(head.lines().any(|line| line == field), "{head}");
        }
        assert_eq!(body, "ok\n");
        let head = String::from_utf8(Reply::text(200, "ok").bytes(false)).expect("text");
        assert!(head.ends_with("\r\n\r\n") && head.contains("Content-Length: 3"), "{head}");
    }
}
