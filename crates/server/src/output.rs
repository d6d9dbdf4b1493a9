//! Replies to be sent to a client: headers and payloads, gathered into as few writes as possible.

use crate::stream::Stream;
use blkmq::AlignedBuf;
use blkmq_nbd::Header;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};

/// The maximum number of pieces in a write. The kernel accepts up to 1024.
const GATHERED: usize = 128;

/// A part of the output.
#[derive(Debug)]
enum Piece {
    Header(Header),
    Bytes(Vec<u8>),
    Data(AlignedBuf),
}

impl Piece {
    fn bytes(&mut self) -> &[u8] {
        match self {
            Self::Header(header) => header,
            Self::Bytes(bytes) => bytes,
            Self::Data(data) => data.as_mut_slice(),
        }
    }
}

/// The result of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    /// Everything was passed to the kernel.
    All,
    /// The socket is full.
    Blocked,
    /// The socket may accept more, in another turn.
    Paused,
}

/// Bytes that wait for the socket, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pieces: VecDeque<Piece>,
    /// The number of bytes of the first piece that have been sent.
    sent: usize,
    /// Bytes that wait.
    waiting: usize,
}

impl Output {
    pub(crate) fn header(&mut self, header: Header) {
        self.push(Piece::Header(header));
    }

    pub(crate) fn bytes(&mut self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.push(Piece::Bytes(bytes));
        }
    }

    pub(crate) fn data(&mut self, data: AlignedBuf) {
        if !data.is_empty() {
            self.push(Piece::Data(data));
        }
    }

    fn push(&mut self, mut piece: Piece) {
        self.waiting += piece.bytes().len();
        self.pieces.push_back(piece);
    }

    /// Bytes that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Writes until everything is sent, the socket is full, or `most` bytes are sent. Buffers are dropped once they are
    /// sent.
    ///
    /// # Errors
    /// If the connection has failed.
    pub(crate) fn send(&mut self, stream: &mut Stream, most: usize) -> io::Result<Sent> {
        let mut left = most;
        while !self.pieces.is_empty() {
            if left == 0 {
                return Ok(Sent::Paused);
            }
            let mut slices = [IoSlice::new(&[]); GATHERED];
            let (mut count, mut room) = (0, left);
            for (slice, piece) in slices.iter_mut().zip(&mut self.pieces) {
                let skip = if count == 0 { self.sent } else { 0 };
                let bytes = &piece.bytes()[skip..];
                let bytes = &bytes[..bytes.len().min(room)];
                room -= bytes.len();
                *slice = IoSlice::new(bytes);
                count += 1;
                if room == 0 {
                    break;
                }
            }
            match stream.write(&slices[..count]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    left -= sent;
                    self.advance(sent);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Sent::Blocked),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        match stream.send_rest() {
            Ok(()) => Ok(Sent::All),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Sent::Blocked),
            Err(error) => Err(error),
        }
    }

    fn advance(&mut self, sent: usize) {
        self.waiting -= sent;
        self.sent += sent;
        while let Some(first) = self.pieces.front_mut() {
            let len = first.bytes().len();
            if self.sent < len {
                break;
            }
            self.sent -= len;
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn bytes_arrive_in_order_however_full_the_socket_is() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        ours.set_nonblocking(true).expect("no blocking");
        let mut stream = Stream::from(ours);
        let mut output = Output::default();
        let mut expected = Vec::new();
        for n in 0..300_u32 {
            let data: Vec<u8> = n.to_be_bytes().repeat(1000);
            expected.extend_from_slice(&data);
            if n % 3 == 0 {
                output.bytes(data);
            } else {
                output.data(AlignedBuf::copy_of(&data));
            }
        }
        output.bytes(Vec::new());
        assert_eq!(output.waiting(), expected.len());
        let (mut got, mut blocked) = (Vec::new(), 0);
        while output.send(&mut stream, usize::MAX).expect("the other side is there")
            == Sent::Blocked
        {
            blocked += 1;
            let mut part = [0; 10_007];
            let len = theirs.read(&mut part).expect("bytes are there");
            got.extend_from_slice(&part[..len]);
        }
        drop(stream);
        theirs.read_to_end(&mut got).expect("the rest is there");
        assert!(got == expected && blocked > 0 && output.waiting() == 0);
    }

    /// Regression test: a write sent as much as the socket accepted, two megabytes, while other clients waited.
    #[test]
    fn a_turn_sends_so_many_bytes_and_no_more() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        let mut stream = Stream::from(ours);
        let mut output = Output::default();
        (0..3).for_each(|n| output.bytes(vec![n; 1000]));
        let mut send =
            |most| (output.send(&mut stream, most).expect("it is there"), output.waiting());
        assert_eq!(send(1500), (Sent::Paused, 1500));
        assert_eq!(send(500), (Sent::Paused, 1000));
        assert_eq!(send(1000), (Sent::All, 0));
        drop(stream);
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).expect("it is there");
        assert!(got.chunks(1000).zip(0..).all(|(part, n)| part == [n; 1000]) && got.len() == 3000);
    }
}
