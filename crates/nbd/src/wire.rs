//! The bytes of messages: big-endian fields, taken from the front of bytes and appended, the forms of headers between
//! which a handshake chooses, and the codes of options, replies, commands, chunks and errors (`docs/spec/nbd.md`,
//! sections 3, 3.1 and 4). Independent of any message. [`Limits`] bounds what a peer can make this side keep, drop or
//! write.
//!
//! A [`Header`] keeps its bytes in place: no allocation for a request or for a reply in one piece. Codes are types, and
//! sets of flags have a type for each place on the wire. A set keeps unnamed bits, so that its reader can refuse them.

use crate::magic::{
    EXTENDED_REPLY_LEN, EXTENDED_REQUEST_LEN, REQUEST_LEN, SIMPLE_REPLY_LEN, STRING,
    STRUCTURED_REPLY_LEN,
};
use std::fmt;
use std::ops::Deref;

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

    /// A string preceded by its length.
    pub(crate) fn counted(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.bytes(len)
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// `Some` if no bytes are left.
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

/// The longest prefix of `text` that has at most `most` bytes and ends at a character boundary.
pub(crate) fn clipped(text: &str, most: u32) -> &str {
    let mut end = text.len().min(most as usize);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The longest header: an extended reply with an error at an offset.
const MOST: usize = 48;

/// The bytes of a header, at most 48. Dereferences to them.
#[derive(Clone, Copy)]
pub struct Header {
    bytes: [u8; MOST],
    len: u8,
}

impl Header {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; MOST], len: 0 }
    }
}

impl Put for Header {
    fn put(&mut self, bytes: &[u8]) {
        let len = usize::from(self.len);
        self.bytes[len..len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }
}

impl Deref for Header {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl AsRef<[u8]> for Header {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Header {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Header {}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The form of requests and replies of a connection, from the least to the most capable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum HeaderStyle {
    /// Compact requests, simple replies.
    #[default]
    Simple,
    /// Compact requests; reads, extents and errors are answered in chunks.
    Structured,
    /// Requests and replies with 64-bit lengths; every reply has chunks.
    Extended,
}

impl HeaderStyle {
    /// Bytes of a request without its payload.
    #[must_use]
    pub const fn request_len(self) -> usize {
        match self {
            Self::Simple | Self::Structured => REQUEST_LEN,
            Self::Extended => EXTENDED_REQUEST_LEN,
        }
    }

    /// Bytes of a chunk without its payload; under [`HeaderStyle::Simple`], bytes of a simple reply.
    #[must_use]
    pub const fn reply_len(self) -> usize {
        match self {
            Self::Simple => SIMPLE_REPLY_LEN,
            Self::Structured => STRUCTURED_REPLY_LEN,
            Self::Extended => EXTENDED_REPLY_LEN,
        }
    }

    /// Returns whether replies may have chunks.
    #[must_use]
    pub const fn has_chunks(self) -> bool {
        !matches!(self, Self::Simple)
    }
}

/// Bounds on bytes. [`Limits::default`] has those of `docs/spec/nbd.md`, section 6.
///
/// Bounds on time, connections and requests in flight belong to the server, which has clocks and sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The longest data of an option, or of a reply to one, that is read, in bytes.
    pub option_data: u32,
    /// The longest data of an option that is skipped and answered by an error, in bytes. Longer data ends the
    /// connection.
    pub option_dropped: u32,
    /// The longest name, query or text, in bytes.
    pub string: u32,
    /// The most queries of an option about metadata contexts.
    pub queries: u32,
    /// The most options of a handshake, besides the ones that a list adds.
    pub options: u32,
    /// Additional options for each export of an answered LIST: clients that show a list send one for each of its
    /// exports.
    pub options_listed: u32,
    /// The most LISTs of a handshake that are answered.
    pub lists: u32,
    /// The most exports of a LIST that a client keeps.
    pub listed: u32,
    /// The longest payload that is announced and accepted, in bytes.
    pub payload: u32,
    /// The longest payload that is skipped and answered by an error, in bytes. A longer one ends the connection.
    pub payload_dropped: u32,
    /// The most extents of a context in an answer to BLOCK_STATUS.
    pub extents: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            option_data: 64 << 10,
            option_dropped: 1 << 20,
            string: STRING,
            queries: 32,
            options: 64,
            options_listed: 8,
            lists: 3,
            listed: 10_000,
            payload: 32 << 20,
            payload_dropped: 64 << 20,
            extents: 1024,
        }
    }
}

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident: $int:ty { $($(#[$code_doc:meta])* $code:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum $name {
            $($(#[$code_doc])* $code,)*
        }

        impl $name {
            /// Every code, in the order of the numbers.
            pub const ALL: &'static [Self] = &[$(Self::$code),*];

            /// The code of this number, if it has one.
            #[must_use]
            pub const fn from_wire(number: $int) -> Option<Self> {
                match number {
                    $($number => Some(Self::$code),)*
                    _ => None,
                }
            }

            /// The number of the code.
            #[must_use]
            pub const fn to_wire(self) -> $int {
                match self {
                    $(Self::$code => $number,)*
                }
            }
        }
    };
}

codes! {
    /// An option of the handshake. PEEK_EXPORT (4) is withdrawn, and counts as unknown.
    OptionCode: u32 {
        /// Ends the handshake with an export; cannot be answered by an error.
        ExportName = 1,
        /// Ends the handshake and the connection.
        Abort = 2,
        /// The names of the exports.
        List = 3,
        /// TLS from here on.
        StartTls = 5,
        /// The answer that GO would get.
        Info = 6,
        /// Ends the handshake with an export.
        Go = 7,
        /// Replies in chunks.
        StructuredReply = 8,
        /// The metadata contexts of an export.
        ListMetaContext = 9,
        /// Chooses metadata contexts.
        SetMetaContext = 10,
        /// Requests and replies of 64-bit lengths.
        ExtendedHeaders = 11,
    }
}

codes! {
    /// A successful reply to an option.
    ReplyCode: u32 {
        /// The last reply: the option is done.
        Ack = 1,
        /// An export.
        Server = 2,
        /// A fact about an export.
        Info = 3,
        /// A metadata context.
        MetaContext = 4,
    }
}

codes! {
    /// The error of an option. Its numbers have the top bit set.
    OptionError: u32 {
        /// Unknown, or not available here.
        Unsupported = 0x8000_0001,
        /// Forbidden by the server's configuration.
        Policy = 0x8000_0002,
        /// The data of the option is malformed.
        Invalid = 0x8000_0003,
        /// The server was built without it.
        Platform = 0x8000_0004,
        /// TLS is required first.
        TlsRequired = 0x8000_0005,
        /// There is no such export.
        Unknown = 0x8000_0006,
        /// The server is shutting down.
        Shutdown = 0x8000_0007,
        /// The client has to ask for block sizes.
        BlockSizeRequired = 0x8000_0008,
        /// The data of the option is too long.
        TooBig = 0x8000_0009,
        /// Extended headers were agreed, and exclude this option.
        ExtendedHeadersRequired = 0x8000_000a,
    }
}

codes! {
    /// A fact about an export in a reply to INFO or GO.
    InfoType: u16 {
        /// Size and transmission flags.
        Export = 0,
        /// Its canonical name.
        Name = 1,
        /// A text for users.
        Description = 2,
        /// The block sizes that requests must respect.
        BlockSize = 3,
    }
}

codes! {
    /// A command of the transmission phase. RESIZE (8), which no client uses, counts as unknown.
    Command: u16 {
        /// Reads.
        Read = 0,
        /// Writes the payload.
        Write = 1,
        /// Ends the connection; has no reply.
        Disconnect = 2,
        /// Makes the answered writes stable.
        Flush = 3,
        /// Discards.
        Trim = 4,
        /// A hint to read ahead.
        Cache = 5,
        /// Writes zeroes, without a payload.
        WriteZeroes = 6,
        /// The extents of the chosen contexts.
        BlockStatus = 7,
    }
}

codes! {
    /// A chunk of a structured or extended reply.
    ChunkType: u16 {
        /// No content.
        None = 0,
        /// Bytes that were read.
        OffsetData = 1,
        /// Zeroes that were read.
        OffsetHole = 2,
        /// Extents with 32-bit lengths, under structured replies.
        BlockStatus = 5,
        /// Extents with 64-bit lengths, under extended headers.
        BlockStatusExtended = 6,
        /// An error.
        Error = 0x8001,
        /// An error at an offset.
        ErrorOffset = 0x8002,
    }
}

codes! {
    /// The error of a request.
    ErrorCode: u32 {
        /// EPERM: a write to a read-only export.
        NotPermitted = 1,
        /// EIO: the device failed.
        Io = 5,
        /// ENOMEM.
        NoMemory = 12,
        /// EINVAL: an unknown command or flag, unaligned, or beyond the end.
        Invalid = 22,
        /// ENOSPC: a write or zeroes beyond the end.
        NoSpace = 28,
        /// EOVERFLOW: too long for one chunk.
        Overflow = 75,
        /// ENOTSUP: zeroes would not be fast.
        NotSupported = 95,
        /// ESHUTDOWN: the server takes no more requests; the client has to disconnect.
        Shutdown = 108,
    }
}

impl ErrorCode {
    /// The error for an errno of Linux. [`ErrorCode::Io`] for an errno that NBD does not have: the device failed, and
    /// the request was not at fault.
    #[must_use]
    pub const fn from_linux(errno: u32) -> Self {
        match errno {
            // EPERM, EROFS
            1 | 30 => Self::NotPermitted,
            12 => Self::NoMemory,
            22 => Self::Invalid,
            // EFBIG, ENOSPC, EDQUOT
            27 | 28 | 122 => Self::NoSpace,
            75 => Self::Overflow,
            // EOPNOTSUPP
            95 => Self::NotSupported,
            108 => Self::Shutdown,
            _ => Self::Io,
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotPermitted => "not permitted",
            Self::Io => "I/O error",
            Self::NoMemory => "out of memory",
            Self::Invalid => "invalid request",
            Self::NoSpace => "beyond the end",
            Self::Overflow => "too long",
            Self::NotSupported => "not supported",
            Self::Shutdown => "the server shuts down",
        })
    }
}

macro_rules! flags {
    ($(#[$doc:meta])* $name:ident: $int:ty { $($(#[$flag_doc:meta])* $flag:ident = $bit:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name($int);

        impl $name {
            $($(#[$flag_doc])* pub const $flag: Self = Self(1 << $bit);)*
            /// No flag.
            pub const NONE: Self = Self(0);
            /// Every flag that has a name.
            pub const KNOWN: Self = Self(0 $(| 1 << $bit)*);

            /// The set of these bits, named or not.
            #[must_use]
            pub const fn from_wire(bits: $int) -> Self {
                Self(bits)
            }

            /// The bits.
            #[must_use]
            pub const fn to_wire(self) -> $int {
                self.0
            }

            /// Returns whether all of `flags` are in the set.
            #[must_use]
            pub const fn contains(self, flags: Self) -> bool {
                self.0 & flags.0 == flags.0
            }

            /// Returns whether the set contains no flags other than some of `flags`.
            #[must_use]
            pub const fn is_within(self, flags: Self) -> bool {
                self.0 & !flags.0 == 0
            }

            /// The set with `flags` added.
            #[must_use]
            pub const fn with(self, flags: Self) -> Self {
                Self(self.0 | flags.0)
            }

            /// The set without `flags`.
            #[must_use]
            pub const fn without(self, flags: Self) -> Self {
                Self(self.0 & !flags.0)
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                self.with(other)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut set = f.debug_set();
                $(if self.contains(Self::$flag) {
                    set.entry(&format_args!(stringify!($flag)));
                })*
                let unnamed = self.without(Self::KNOWN);
                if unnamed != Self::NONE {
                    set.entry(&format_args!("{:#x}", unnamed.0));
                }
                set.finish()
            }
        }
    };
}

flags! {
    /// The abilities that a server announces in its greeting.
    HandshakeFlags: u16 {
        /// The server replies to options, so that others can follow an unknown one.
        FIXED_NEWSTYLE = 0,
        /// The zeroes behind the answer to EXPORT_NAME may be left out.
        NO_ZEROES = 1,
    }
}

flags! {
    /// A client's answer to [`HandshakeFlags`].
    ClientFlags: u32 {
        /// The client handles replies to options.
        FIXED_NEWSTYLE = 0,
        /// The client expects no zeroes behind the answer to EXPORT_NAME.
        NO_ZEROES = 1,
    }
}

flags! {
    /// The abilities of an export.
    TransmissionFlags: u16 {
        /// Always set.
        HAS_FLAGS = 0,
        /// Writes, trims and zeroes are refused.
        READ_ONLY = 1,
        /// FLUSH is supported.
        SEND_FLUSH = 2,
        /// [`CommandFlags::FUA`] is supported.
        SEND_FUA = 3,
        /// Seeks cost time.
        ROTATIONAL = 4,
        /// TRIM is supported.
        SEND_TRIM = 5,
        /// WRITE_ZEROES is supported.
        SEND_WRITE_ZEROES = 6,
        /// [`CommandFlags::DF`] is supported; only where replies have chunks.
        SEND_DF = 7,
        /// A FLUSH on one connection covers the answered writes of all (`docs/spec/nbd.md`, section 4.1).
        CAN_MULTI_CONN = 8,
        /// RESIZE is supported. No client uses it, and this crate does not have it.
        SEND_RESIZE = 9,
        /// CACHE is supported.
        SEND_CACHE = 10,
        /// [`CommandFlags::FAST_ZERO`] is supported; only with [`SEND_WRITE_ZEROES`](Self::SEND_WRITE_ZEROES).
        SEND_FAST_ZERO = 11,
        /// BLOCK_STATUS with a payload is supported. This crate does not have it.
        BLOCK_STATUS_PAYLOAD = 12,
    }
}

flags! {
    /// The flags of a request.
    CommandFlags: u16 {
        /// The reply is sent when the data is stable. Permitted with every command.
        FUA = 0,
        /// WRITE_ZEROES must allocate.
        NO_HOLE = 1,
        /// READ is answered by one chunk.
        DF = 2,
        /// BLOCK_STATUS is answered by one extent.
        REQ_ONE = 3,
        /// WRITE_ZEROES fails immediately if it is not faster than writing.
        FAST_ZERO = 4,
        /// The length of the request is that of a payload; only under extended headers.
        PAYLOAD_LEN = 5,
    }
}

flags! {
    /// The flags of a chunk of a reply.
    ChunkFlags: u16 {
        /// The last chunk of its reply.
        DONE = 0,
    }
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

    macro_rules! round_trip {
        ($($name:ident: $numbers:expr),* $(,)?) => {
            $(
                let known: Vec<_> = (0..0x1_0000).filter(|n| $name::from_wire(*n as _).is_some()).collect();
                assert_eq!(known, $numbers, stringify!($name));
                for code in $name::ALL {
                    assert_eq!($name::from_wire(code.to_wire()), Some(*code));
                }
            )*
        };
    }

    #[test]
    fn numbers_are_those_of_the_protocol() {
        round_trip! {
            OptionCode: [1, 2, 3, 5, 6, 7, 8, 9, 10, 11],
            ReplyCode: [1, 2, 3, 4],
            InfoType: [0, 1, 2, 3],
            Command: [0, 1, 2, 3, 4, 5, 6, 7],
            ChunkType: [0, 1, 2, 5, 6, 0x8001, 0x8002],
            ErrorCode: [1, 5, 12, 22, 28, 75, 95, 108],
        }
        let errors: Vec<u32> = OptionError::ALL.iter().map(|error| error.to_wire()).collect();
        assert_eq!(errors, (0x8000_0001..=0x8000_000a).collect::<Vec<_>>());
        for error in OptionError::ALL {
            assert_eq!(OptionError::from_wire(error.to_wire()), Some(*error));
        }
    }

    #[test]
    fn an_errno_that_nbd_lacks_is_a_failed_device() {
        for errno in [5, 2, 110, 121, 0, u32::MAX] {
            assert_eq!(ErrorCode::from_linux(errno), ErrorCode::Io, "{errno}");
        }
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_linux(code.to_wire()), *code);
            assert!(!code.to_string().is_empty());
        }
        assert_eq!(ErrorCode::from_linux(30), ErrorCode::NotPermitted);
        assert_eq!(ErrorCode::from_linux(122), ErrorCode::NoSpace);
    }

    #[test]
    fn bits_without_a_name_are_kept_and_shown() {
        let flags = CommandFlags::from_wire(0x8005);
        assert_eq!(flags.to_wire(), 0x8005);
        assert!(flags.contains(CommandFlags::FUA | CommandFlags::DF));
        assert!(!flags.is_within(CommandFlags::KNOWN));
        assert_eq!(format!("{flags:?}"), "{FUA, DF, 0x8000}");
    }

    #[test]
    fn bits_are_where_the_protocol_has_them() {
        assert_eq!(HandshakeFlags::KNOWN.to_wire(), 3);
        assert_eq!(ClientFlags::KNOWN.to_wire(), 3);
        assert_eq!(TransmissionFlags::KNOWN.to_wire(), 0x1fff);
        assert_eq!(TransmissionFlags::SEND_CACHE.to_wire(), 1 << 10);
        assert_eq!(CommandFlags::KNOWN.to_wire(), 0x3f);
        assert_eq!(CommandFlags::FAST_ZERO.to_wire(), 16);
        assert_eq!(ChunkFlags::KNOWN.to_wire(), 1);
    }

    #[test]
    fn sets_are_added_and_subtracted() {
        let both = CommandFlags::FUA | CommandFlags::NO_HOLE;
        assert_eq!(both.without(CommandFlags::FUA), CommandFlags::NO_HOLE);
        assert!(!CommandFlags::FUA.contains(both) && CommandFlags::FUA.is_within(both));
        assert_eq!(CommandFlags::default(), CommandFlags::NONE);
    }
}
