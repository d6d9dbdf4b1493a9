//! Sets of flags, a type for each place on the wire (`docs/spec/nbd.md`, sections 3 and 4).
//!
//! A set keeps unnamed bits, so that its reader can refuse them.

use std::fmt;

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
