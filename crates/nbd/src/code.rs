//! The codes of options, replies, commands, chunks and errors, as types, and sets of flags, a type for each place on
//! the wire (`docs/spec/nbd.md`, sections 3, 3.1 and 4). A set keeps unnamed bits, so that its reader can refuse them.

use std::fmt;

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
