//! The input: decompressed if its first bytes say so, and read as lines or records through a buffer of fixed size.

use crate::error::{Error, Fault};
use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use std::io::{self, Read};

/// The size of the buffer, larger than the longest line.
const BUFFER: usize = 256 << 10;
/// The longest line that is read.
pub(crate) const MOST_LINE: usize = 64 << 10;

/// A decompressed stream with a buffer.
pub(crate) struct Input {
    source: Box<dyn Read>,
    buffer: Vec<u8>,
    /// The start of the bytes that are valid and not consumed.
    from: usize,
    to: usize,
    ended: bool,
    /// The number of bytes consumed.
    pub offset: u64,
    /// The number of lines consumed.
    pub line: u64,
}

/// A line, or the reason why it cannot be read.
pub(crate) type Line<'a> = Result<&'a [u8], Fault>;

impl Input {
    pub(crate) fn new(source: Box<dyn Read>) -> Result<Self, Error> {
        let source = decompressed(source).map_err(|error| Error::Read { offset: 0, error })?;
        let (from, to, ended) = (0, 0, false);
        Ok(Self { source, buffer: vec![0; BUFFER], from, to, ended, offset: 0, line: 0 })
    }

    /// Returns up to `most` of the next bytes without consuming them; fewer only at the end.
    pub(crate) fn peek(&mut self, most: usize) -> Result<&[u8], Error> {
        assert!(most <= BUFFER, "a buffer of {BUFFER} bytes");
        while self.to - self.from < most && !self.ended {
            self.fill()?;
        }
        Ok(&self.buffer[self.from..self.to.min(self.from + most)])
    }

    /// Consumes bytes returned by [`peek`](Self::peek).
    pub(crate) fn skip(&mut self, bytes: usize) {
        assert!(bytes <= self.to - self.from, "only bytes that were seen are taken");
        self.from += bytes;
        self.offset += bytes as u64;
    }

    /// The next line without its terminator, or `None` at the end. A line that is too long is consumed completely.
    pub(crate) fn next_line(&mut self) -> Result<Option<Line<'_>>, Error> {
        let mut seen = 0;
        loop {
            let rest = &self.buffer[self.from..self.to];
            if let Some(end) = memchr::memchr(b'\n', &rest[seen..]) {
                let from = self.from;
                self.skip(seen + end + 1);
                self.line += 1;
                let line = &self.buffer[from..from + seen + end];
                return Ok(Some(checked(line.strip_suffix(b"\r").unwrap_or(line))));
            }
            seen = rest.len();
            if self.ended {
                let from = self.from;
                self.skip(seen);
                self.line += u64::from(seen > 0);
                let line = &self.buffer[from..from + seen];
                return Ok((seen > 0).then(|| checked(line.strip_suffix(b"\r").unwrap_or(line))));
            }
            if seen > MOST_LINE {
                self.skip_line()?;
                return Ok(Some(Err(Fault::Long { most: MOST_LINE })));
            }
            self.fill()?;
        }
    }

    /// Consumes the rest of a line.
    fn skip_line(&mut self) -> Result<(), Error> {
        loop {
            let rest = &self.buffer[self.from..self.to];
            let end = memchr::memchr(b'\n', rest);
            self.skip(end.map_or(rest.len(), |end| end + 1));
            if end.is_some() || self.ended {
                self.line += 1;
                return Ok(());
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Result<(), Error> {
        if self.from > 0 {
            self.buffer.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        loop {
            match self.source.read(&mut self.buffer[self.to..]) {
                Ok(got) => {
                    self.to += got;
                    self.ended = got == 0;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let offset = self.offset + (self.to - self.from) as u64;
                    return Err(Error::Read { offset, error });
                }
            }
        }
    }
}

fn checked(line: &[u8]) -> Line<'_> {
    if line.len() > MOST_LINE { Err(Fault::Long { most: MOST_LINE }) } else { Ok(line) }
}

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

fn decompressed(source: Box<dyn Read>) -> io::Result<Box<dyn Read>> {
    let mut whole = Whole { head: Vec::new(), source };
    (&mut whole.source).take(4).read_to_end(&mut whole.head)?;
    Ok(if whole.head.starts_with(&GZIP) {
        Box::new(MultiGzDecoder::new(whole))
    } else if whole.head == ZSTD {
        Box::new(Frames { rest: Some(whole), frame: None })
    } else {
        Box::new(whole)
    })
}

/// A stream, preceded by its first bytes if they were inspected.
struct Whole {
    head: Vec<u8>,
    source: Box<dyn Read>,
}

impl Whole {
    /// Returns whether the stream has another byte.
    fn has_more(&mut self) -> io::Result<bool> {
        if self.head.is_empty() {
            (&mut self.source).take(1).read_to_end(&mut self.head)?;
        }
        Ok(!self.head.is_empty())
    }
}

impl Read for Whole {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.head.is_empty() {
            return self.source.read(out);
        }
        let got = self.head.len().min(out.len());
        out[..got].copy_from_slice(&self.head[..got]);
        self.head.drain(..got);
        Ok(got)
    }
}

/// The concatenated frames of a zstd stream: parallel compressors write several.
struct Frames {
    rest: Option<Whole>,
    frame: Option<Box<StreamingDecoder<Whole, ruzstd::decoding::FrameDecoder>>>,
}

impl Read for Frames {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let got = frame.read(out)?;
                if got > 0 || out.is_empty() {
                    return Ok(got);
                }
                self.rest = self.frame.take().map(|frame| frame.into_inner());
            }
            let Some(mut rest) = self.rest.take() else { return Ok(0) };
            if !rest.has_more()? {
                return Ok(0);
            }
            let frame = StreamingDecoder::new(rest).map_err(io::Error::other)?;
            self.frame = Some(Box::new(frame));
        }
    }
}
