//! Parses requests, or returns the reason why they are invalid.
//!
//! httparse parses the fields. In addition, this refuses repeated fields where one counts, bodies without a length, and
//! anything that two programs in series could parse differently.

use super::limits;
use super::reply::Refusal;

/// A request, with the relevant fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    /// The path, up to a `?`.
    pub(super) path: String,
    /// The name by which the client addresses the server, with a port unless it is 80.
    pub(super) host: String,
    /// The site whose page makes the request, if a browser says so.
    pub(super) origin: Option<String>,
    /// `Sec-Fetch-Site`: the relation of that site to this one.
    pub(super) fetch_site: Option<String>,
    pub(super) content_type: String,
    /// The types that the client prefers.
    pub(super) accept: String,
    /// The key, if present.
    pub(super) key: Option<String>,
    pub(super) body: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Method {
    Get,
    /// Like GET, but without the body of the answer.
    Head,
    Post,
}

/// Parses the request in `bytes`. Returns `None` if it is incomplete.
///
/// # Errors
/// The answer for an invalid or oversized request.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<Request>, Refusal> {
    let mut fields = [httparse::EMPTY_HEADER; limits::FIELDS];
    let mut head = httparse::Request::new(&mut fields);
    let length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length <= limits::HEAD => length,
        Ok(httparse::Status::Partial) if bytes.len() < limits::HEAD => return Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => {
            return Err(Refusal::new(431, "the head of the request is too long"));
        }
        Err(error) => return Err(Refusal::new(400, error.to_string())),
    };
    let method = match head.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        Some("POST") => Method::Post,
        _ => return Err(Refusal::new(405, "accepted: GET, HEAD, POST")),
    };
    let target = head.path.unwrap_or_default();
    if !target.starts_with('/') {
        return Err(Refusal::new(400, "the target of a request begins with /"));
    }
    let fields = Fields(head.headers);
    let body = match body_length(&fields, method)? {
        more if bytes.len() < length + more => return Ok(None),
        all => bytes[length..length + all].to_vec(),
    };
    let host = fields.one("host")?.ok_or_else(|| Refusal::new(400, "a request names its host"))?;
    let text = |name| fields.one(name).map(|text| text.map(str::to_owned));
    let key = fields.one("authorization")?.and_then(|it| it.strip_prefix("Bearer "));
    Ok(Some(Request {
        method,
        path: target.split('?').next().unwrap_or_default().to_owned(),
        host: host.to_ascii_lowercase(),
        origin: text("origin")?,
        fetch_site: text("sec-fetch-site")?,
        content_type: text("content-type")?.unwrap_or_default(),
        accept: fields.all("accept"),
        key: key.map(|key| key.trim().to_owned()),
        body,
    }))
}

/// The length of the body in bytes.
fn body_length(fields: &Fields<'_, '_>, method: Method) -> Result<usize, Refusal> {
    if fields.one("transfer-encoding")?.is_some() {
        return Err(Refusal::new(501, "a body has a Content-Length"));
    }
    let Some(text) = fields.one("content-length")? else {
        return if method == Method::Post {
            Err(Refusal::new(411, "a body has a Content-Length"))
        } else {
            Ok(0)
        };
    };
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(length) if digits && length <= limits::BODY => Ok(length),
        _ if digits => Err(Refusal::new(413, format!("accepted: {} bytes", limits::BODY))),
        _ => Err(Refusal::new(400, "Content-Length is a number")),
    }
}

struct Fields<'a, 'b>(&'a [httparse::Header<'b>]);

impl<'b> Fields<'_, 'b> {
    fn named(&self, name: &str) -> impl Iterator<Item = &'b [u8]> {
        self.0.iter().filter(move |it| it.name.eq_ignore_ascii_case(name)).map(|it| it.value)
    }

    /// The value of a field that may occur once.
    fn one(&self, name: &str) -> Result<Option<&'b str>, Refusal> {
        let mut all = self.named(name);
        let (first, second) = (all.next(), all.next());
        if second.is_some() {
            return Err(Refusal::new(400, format!("{name} is there twice")));
        }
        let text = first.map(std::str::from_utf8).transpose();
        let text = text.map_err(|_| Refusal::new(400, format!("{name} is no text")))?;
        Ok(text.map(str::trim))
    }

    /// Joins the values of a field that is a list.
    fn all(&self, name: &str) -> String {
        let all = self.named(name).map(String::from_utf8_lossy);
        Vec::from_iter(all).join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> u16 {
        parse(text.as_bytes()).expect_err(text).status
    }

    #[test]
    fn a_request_is_read_when_it_is_whole() {
        let text = "POST /api/export?x HTTP/1.1\r\nHost: LOCALHOST:1\r\nOrigin: http://localhost:1\r\n\
                    Content-Type: application/json\r\nAuthorization: Bearer abc\r\nContent-Length: 2\r\n\r\n{}";
        for end in 0..text.len() {
            assert_eq!(parse(&text.as_bytes()[..end]), Ok(None), "{end} bytes");
        }
        let request = parse(text.as_bytes()).expect("correct").expect("whole");
        assert_eq!((request.method, request.path.as_str()), (Method::Post, "/api/export"));
        assert_eq!((request.host.as_str(), request.key.as_deref()), ("localhost:1", Some("abc")));
        assert_eq!((request.body.as_slice(), request.fetch_site), (&b"{}"[..], None));
    }

    #[test]
    fn what_two_programs_could_read_differently_is_refused() {
        let with = |fields: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        assert_eq!(refused(&with("Content-Length: 1\r\nContent-Length: 1\r\n")), 400);
        assert_eq!(refused(&with("Transfer-Encoding: chunked\r\nContent-Length: 1\r\n")), 501);
        assert_eq!(refused(&with("Content-Length: +1\r\n")), 400);
        assert_eq!(refused(&with("Content-Length: 0\r\nHost: b\r\n")), 400);
        assert_eq!(refused(&with("Content-Length : 0\r\n")), 400);
        assert_eq!(refused(&with(" folded\r\n")), 400);
        assert_eq!(refused(&with("")), 411);
        assert_eq!(refused("GET / HTTP/1.1\r\n\r\n"), 400, "no host");
        assert_eq!(refused("GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
        assert_eq!(refused("DELETE / HTTP/1.1\r\nHost: a\r\n\r\n"), 405);
        assert_eq!(refused("\u{16}\u{3}\u{1}"), 400, "TLS");
    }

    #[test]
    fn everything_has_a_bound() {
        let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(limits::HEAD));
        assert_eq!(refused(&long), 431);
        assert_eq!(refused(&long[..limits::HEAD]), 431, "no end within the bound");
        let many = "a: b\r\n".repeat(limits::FIELDS + 1);
        assert_eq!(refused(&format!("GET / HTTP/1.1\r\n{many}\r\n")), 431);
        for length in ["4097", "99999999999999999999999"] {
            let text = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
            assert_eq!(refused(&text), 413);
        }
    }
}
