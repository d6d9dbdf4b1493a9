//! A second implementation of the parser of requests and of their check, written from `docs/spec/nbd.md` and not from
//! the code: byte by byte, in 128 bits, one rule after the other. The fuzz target `nbd_twins` uses it, too.

use blkmq_nbd::{HeaderStyle, Terms};

/// The twin's view of the beginning of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Naive {
    Request { fields: Fields, header: usize, payload: u128 },
    More,
    Bad,
}

/// The fields of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fields {
    pub flags: u128,
    pub command: u128,
    pub cookie: u128,
    pub offset: u128,
    pub length: u128,
}

/// The number in bytes `from..to` of a header.
fn number(bytes: &[u8], from: usize, to: usize) -> u128 {
    let mut value = 0;
    for byte in &bytes[from..to] {
        value = value * 256 + u128::from(*byte);
    }
    value
}

/// The request at the beginning of `bytes`; a payload of more than `bound` bytes makes it malformed.
pub fn parse(bytes: &[u8], style: HeaderStyle, bound: u128) -> Naive {
    let extended = style == HeaderStyle::Extended;
    let header = if extended { 32 } else { 28 };
    if bytes.len() < 4 {
        return Naive::More;
    }
    let magic = if extended { 0x21e4_1c71 } else { 0x2560_9513 };
    if number(bytes, 0, 4) != magic {
        return Naive::Bad;
    }
    if bytes.len() < header {
        return Naive::More;
    }
    let fields = Fields {
        flags: number(bytes, 4, 6),
        command: number(bytes, 6, 8),
        cookie: number(bytes, 8, 16),
        offset: number(bytes, 16, 24),
        length: number(bytes, 24, header),
    };
    let mut payload = 0;
    if fields.command == 1 {
        payload = fields.length;
    }
    if extended && fields.flags / 32 % 2 == 1 {
        payload = fields.length;
    }
    if payload > bound { Naive::Bad } else { Naive::Request { fields, header, payload } }
}

/// The error of a request, 0 for none. A client's disconnect has none.
pub fn judge(fields: &Fields, terms: &Terms) -> u32 {
    let (eperm, einval, enospc, eoverflow) = (1, 22, 28, 75);
    let announced = |bit: u32| terms.flags.to_wire() >> bit & 1 == 1;
    let has = |bit: u32| fields.flags >> bit & 1 == 1;
    let command = fields.command;
    if command > 7 {
        return einval;
    }
    let (read, write, trim, zeroes, status) =
        (command == 0, command == 1, command == 4, command == 6, command == 7);
    if announced(1) && (write || trim || zeroes) {
        return eperm;
    }
    if command == 2 {
        return 0;
    }
    if trim && !announced(5) || zeroes && !announced(6) {
        return einval;
    }
    if status && (!terms.has_contexts || terms.style == HeaderStyle::Simple) {
        return einval;
    }
    let bad_flag = has(0) && !announced(3)
        || has(1) && !zeroes
        || has(2) && !(read && announced(7))
        || has(3) && !status
        || has(4) && !(zeroes && announced(11))
        || has(5) && !(write && terms.style == HeaderStyle::Extended)
        || fields.flags >= 64;
    if bad_flag {
        return einval;
    }
    if command == 3 {
        return 0;
    }
    if fields.offset + fields.length > u128::from(terms.size) {
        return if write || zeroes { enospc } else { einval };
    }
    if (read || write) && fields.length > u128::from(terms.blocks.max_payload()) {
        return if has(2) { eoverflow } else { einval };
    }
    let min = u128::from(terms.blocks.min());
    if !fields.offset.is_multiple_of(min) || !fields.length.is_multiple_of(min) {
        return einval;
    }
    0
}
