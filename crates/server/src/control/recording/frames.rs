//! The format of a recording after its [`Answer::Recording`]: frames, each with a length of four bytes in big-endian
//! order, and as many bytes of the recording. An empty frame is the last one, and is followed by a line of JSON, an
//! [`Ended`]. A client that shuts down its writing side requests the end, and gets the remaining bytes.

use super::session::Ended;
use crate::control::{Answer, CallError, Request};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How often a client that waits for bytes checks whether it should request the end.
const LOOKS: Duration = Duration::from_millis(50);
/// The maximum number of bytes passed on at a time.
const AT_A_TIME: usize = 64 << 10;

/// Appends a frame with the bytes that `fill` appends, or nothing if there are none.
pub(super) fn frame<R>(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    let begin = out.len();
    out.extend_from_slice(&[0; 4]);
    let result = fill(out);
    match u32::try_from(out.len() - begin - 4).expect("a recording is bounded") {
        0 => out.truncate(begin),
        length => out[begin..begin + 4].copy_from_slice(&length.to_be_bytes()),
    }
    result
}

/// Appends the end of a recording.
pub(super) fn end(out: &mut Vec<u8>, ended: &Ended) {
    out.extend_from_slice(&[0; 4]);
    serde_json::to_writer(&mut *out, ended).expect("it has a form in JSON, and memory takes it");
    out.push(b'\n');
}

/// The reason why a client has no recording, or only a part.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The server did not answer.
    #[error("{0}")]
    Call(CallError),
    /// The server refused; the text names the accepted values.
    #[error("{0}")]
    Refused(String),
    /// The callback that takes the bytes has failed.
    #[error("{0}")]
    Taker(io::Error),
    /// The server disconnected before the end.
    #[error("the server went away before the end: {0}")]
    Cut(io::Error),
}

/// A stream whose reader periodically checks whether it should request the end.
struct Asking<'a> {
    stream: UnixStream,
    ends: &'a dyn Fn() -> bool,
    has_asked: bool,
}

impl Read for Asking<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.has_asked && (self.ends)() {
                self.has_asked = true;
                self.stream.shutdown(Shutdown::Write)?;
            }
            match self.stream.read(bytes) {
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                result => return result,
            }
        }
    }
}

/// Requests a recording, [`Request::Trace`] or [`Request::ElevatorLog`], from the server with its control socket at
/// `socket`, and passes its bytes to `take` as they arrive. Requests the end once `ends` returns true. Returns how the
/// recording ended.
///
/// # Errors
/// If the server does not answer, refuses or disconnects, or if `take` fails, which ends the recording.
pub fn record(
    socket: &Path,
    request: &Request,
    ends: &dyn Fn() -> bool,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<Ended, RecordError> {
    let call = |error| RecordError::Call(CallError::Socket(error));
    let answer = |error| RecordError::Call(CallError::Answer(error));
    let mut stream = UnixStream::connect(socket).map_err(call)?;
    let mut line = serde_json::to_string(request).expect("requests have a form in JSON");
    line.push('\n');
    stream.write_all(line.as_bytes()).map_err(call)?;
    stream.set_read_timeout(Some(LOOKS)).map_err(call)?;
    let mut from = BufReader::new(Asking { stream, ends, has_asked: false });
    let mut line = String::new();
    from.read_line(&mut line).map_err(call)?;
    match serde_json::from_str::<Answer>(&line).map_err(answer)? {
        Answer::Recording => {}
        Answer::Refused(why) => return Err(RecordError::Refused(why)),
        other => {
            return Err(RecordError::Refused(format!(
                "the server is of another version: {other:?}"
            )));
        }
    }
    let mut bytes = vec![0; AT_A_TIME];
    loop {
        let mut length = [0; 4];
        from.read_exact(&mut length).map_err(RecordError::Cut)?;
        let mut left = u32::from_be_bytes(length) as usize;
        if left == 0 {
            break;
        }
        while left > 0 {
            let some = left.min(AT_A_TIME);
            from.read_exact(&mut bytes[..some]).map_err(RecordError::Cut)?;
            take(&bytes[..some]).map_err(RecordError::Taker)?;
            left -= some;
        }
    }
    line.clear();
    from.read_line(&mut line).map_err(RecordError::Cut)?;
    serde_json::from_str(&line).map_err(answer)
}
