//! The numbers by which messages are recognised, and the lengths of their fixed parts (`docs/spec/nbd.md`, section 2).

/// The first 8 bytes from a server: `NBDMAGIC`.
pub const GREETING: u64 = 0x4e42_444d_4147_4943;
/// The next 8 bytes from a server, and the first of every option: `IHAVEOPT`.
pub const OPTION: u64 = 0x4948_4156_454f_5054;
/// Replaces [`OPTION`] on a server that speaks the old handshake, which has no options. Clients here refuse it.
pub const OLDSTYLE: u64 = 0x0000_4202_8186_1253;
/// The beginning of every reply to an option.
pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// The beginning of a compact request.
pub const REQUEST: u32 = 0x2560_9513;
/// The beginning of an extended request.
pub const EXTENDED_REQUEST: u32 = 0x21e4_1c71;
/// The beginning of a simple reply.
pub const SIMPLE_REPLY: u32 = 0x6744_6698;
/// The beginning of a chunk of a structured reply.
pub const STRUCTURED_REPLY: u32 = 0x668e_33ef;
/// The beginning of a chunk of an extended reply.
pub const EXTENDED_REPLY: u32 = 0x6e8a_278c;

/// Bytes of a server's greeting.
pub const GREETING_LEN: usize = 18;
/// Bytes of an option in front of its data.
pub const OPTION_LEN: usize = 16;
/// Bytes of a reply to an option in front of its data.
pub const OPTION_REPLY_LEN: usize = 20;
/// Zero bytes behind the answer to EXPORT_NAME, unless both sides agreed to leave them out.
pub const EXPORT_NAME_ZEROES: usize = 124;
/// Bytes of a compact request.
pub const REQUEST_LEN: usize = 28;
/// Bytes of an extended request.
pub const EXTENDED_REQUEST_LEN: usize = 32;
/// Bytes of a simple reply in front of its data.
pub const SIMPLE_REPLY_LEN: usize = 16;
/// Bytes of a chunk of a structured reply in front of its payload.
pub const STRUCTURED_REPLY_LEN: usize = 20;
/// Bytes of a chunk of an extended reply in front of its payload.
pub const EXTENDED_REPLY_LEN: usize = 32;

/// The TCP port of NBD.
pub const PORT: u16 = 10809;
/// The longest name, query or error text in bytes.
pub const STRING: u32 = 4096;
