use super::*;

const REQUEST: Request = Request {
    command: Ok(Command::Write),
    flags: CommandFlags::FUA,
    cookie: Cookie(0x0102_0304_0506_0708),
    span: Span { offset: 0x1000, length: 0x200 },
};

#[test]
fn bytes_are_those_of_the_protocol() {
    let compact = REQUEST.encode(HeaderStyle::Structured).unwrap();
    let expected = [
        &[0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8][..],
        &[0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 2, 0],
    ];
    assert_eq!(*compact, expected.concat());
    let extended = REQUEST.encode(HeaderStyle::Extended).unwrap();
    assert_eq!(extended[..4], [0x21, 0xe4, 0x1c, 0x71]);
    assert_eq!(extended[24..], [0, 0, 0, 0, 0, 0, 2, 0]);
}

#[test]
fn a_compact_request_has_no_room_for_64_bits() {
    let long = Request { span: Span { offset: 0, length: 1 << 32 }, ..REQUEST };
    assert_eq!(long.encode(HeaderStyle::Simple), None);
    assert!(long.encode(HeaderStyle::Extended).is_some());
}

#[test]
fn payloads_follow_writes_and_the_flag() {
    let flagged =
        |command| Request { command: Ok(command), flags: CommandFlags::PAYLOAD_LEN, ..REQUEST };
    for style in [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended] {
        assert_eq!(REQUEST.payload_len(style), 0x200, "a write without the flag");
        assert_eq!(flagged(Command::Write).payload_len(style), 0x200);
        let expected = if style == HeaderStyle::Extended { 0x200 } else { 0 };
        assert_eq!(flagged(Command::Flush).payload_len(style), expected);
    }
    let read = Request { command: Ok(Command::Read), ..REQUEST };
    assert_eq!(read.payload_len(HeaderStyle::Extended), 0);
}

#[test]
fn spans_at_the_end_of_all_offsets_hold_nothing_behind() {
    let all = Span { offset: 0, length: u64::MAX };
    assert!(all.holds(Span { offset: u64::MAX, length: 0 }));
    assert!(!all.holds(Span { offset: u64::MAX, length: 1 }));
    let inner = Span { offset: 8, length: 8 };
    assert!(inner.holds(inner) && all.holds(inner));
    assert!(!inner.holds(Span { offset: 7, length: 2 }));
    assert!(!inner.holds(Span { offset: 15, length: 2 }));
}

const MIB: u64 = 1 << 20;

fn terms() -> Terms {
    Terms {
        size: 64 * MIB,
        flags: TransmissionFlags::KNOWN.without(TransmissionFlags::READ_ONLY),
        blocks: BlockSizes::DEFAULT.with_min(512).unwrap(),
        style: HeaderStyle::Extended,
        has_contexts: true,
    }
}

fn request(command: Command, flags: CommandFlags, offset: u64, length: u64) -> Request {
    Request { command: Ok(command), flags, cookie: Cookie(7), span: Span { offset, length } }
}

fn outcome(terms: &Terms, command: Command, flags: CommandFlags) -> Result<Checked, ErrorCode> {
    terms.check(&request(command, flags, 512, 512))
}

#[test]
fn flags_are_permitted_with_their_commands_only() {
    let terms = terms();
    let table = [
        (CommandFlags::NO_HOLE, &[Command::WriteZeroes][..]),
        (CommandFlags::DF, &[Command::Read]),
        (CommandFlags::REQ_ONE, &[Command::BlockStatus]),
        (CommandFlags::FAST_ZERO, &[Command::WriteZeroes]),
        (CommandFlags::PAYLOAD_LEN, &[Command::Write]),
        (CommandFlags::FUA, Command::ALL),
        (CommandFlags::from_wire(1 << 15), &[]),
    ];
    for (flag, commands) in table {
        for command in Command::ALL.iter().filter(|command| **command != Command::Disconnect) {
            let expected = commands.contains(command);
            assert_eq!(outcome(&terms, *command, flag).is_ok(), expected, "{command:?} {flag:?}");
        }
    }
}

#[test]
fn flags_reach_the_command() {
    let terms = terms();
    let span = Span { offset: 512, length: 512 };
    let all = CommandFlags::FUA | CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO;
    assert_eq!(
        outcome(&terms, Command::WriteZeroes, all),
        Ok(Checked::WriteZeroes { span, fua: true, no_hole: true, fast: true })
    );
    let one = CommandFlags::REQ_ONE;
    let status = Checked::BlockStatus { span, count: ExtentCount::One };
    assert_eq!(outcome(&terms, Command::BlockStatus, one), Ok(status));
    let read = Checked::Read { span, in_one_piece: true };
    assert_eq!(outcome(&terms, Command::Read, CommandFlags::DF), Ok(read));
    let write = Checked::Write { span, fua: false };
    assert_eq!(outcome(&terms, Command::Write, CommandFlags::NONE), Ok(write));
}

#[test]
fn what_is_not_announced_is_invalid_but_for_flushes_and_hints() {
    let bare = Terms {
        flags: TransmissionFlags::HAS_FLAGS,
        style: HeaderStyle::Simple,
        has_contexts: false,
        ..terms()
    };
    for command in [Command::Trim, Command::WriteZeroes, Command::BlockStatus] {
        assert_eq!(outcome(&bare, command, CommandFlags::NONE), Err(ErrorCode::Invalid));
    }
    for command in [Command::Flush, Command::Cache, Command::Read, Command::Write] {
        assert!(outcome(&bare, command, CommandFlags::NONE).is_ok(), "{command:?}");
        let fua = outcome(&bare, command, CommandFlags::FUA);
        assert_eq!(fua, Err(ErrorCode::Invalid), "{command:?}");
    }
    let zeroes = Terms { flags: TransmissionFlags::SEND_WRITE_ZEROES, ..terms() };
    let fast = outcome(&zeroes, Command::WriteZeroes, CommandFlags::FAST_ZERO);
    assert_eq!(fast, Err(ErrorCode::Invalid));
}

#[test]
fn an_unknown_command_is_invalid() {
    for number in [8, 9, u16::MAX] {
        let read = request(Command::Read, CommandFlags::NONE, 0, 512);
        let unknown = Request { command: Err(number), ..read };
        assert_eq!(terms().check(&unknown), Err(ErrorCode::Invalid));
    }
}

/// `docs/spec/nbd.md`, *How to test this*, point 14.
#[test]
fn a_read_only_export_permits_no_change() {
    let flags = TransmissionFlags::HAS_FLAGS | TransmissionFlags::READ_ONLY;
    let read_only = Terms { flags, ..terms() };
    for command in [Command::Write, Command::Trim, Command::WriteZeroes] {
        for flags in [CommandFlags::NONE, CommandFlags::FUA] {
            let outcome = outcome(&read_only, command, flags);
            assert_eq!(outcome, Err(ErrorCode::NotPermitted), "{command:?}");
        }
    }
    assert!(outcome(&read_only, Command::Read, CommandFlags::NONE).is_ok());
    assert!(outcome(&read_only, Command::Flush, CommandFlags::NONE).is_ok());
}

#[test]
fn ranges_beyond_the_end_have_the_error_of_their_command() {
    let terms = terms();
    let ends = [(64 * MIB, 512), (64 * MIB - 512, 1024), (u64::MAX - 511, 512), (0, 65 * MIB)];
    for (offset, length) in ends {
        for command in [Command::Read, Command::Trim, Command::Cache, Command::BlockStatus] {
            let outcome = terms.check(&request(command, CommandFlags::NONE, offset, length));
            assert_eq!(outcome, Err(ErrorCode::Invalid), "{command:?} {offset} {length}");
        }
        for command in [Command::Write, Command::WriteZeroes] {
            let outcome = terms.check(&request(command, CommandFlags::NONE, offset, length));
            assert_eq!(outcome, Err(ErrorCode::NoSpace), "{command:?} {offset} {length}");
        }
    }
    for command in [Command::Trim, Command::WriteZeroes, Command::BlockStatus] {
        let whole = request(command, CommandFlags::NONE, 0, 64 * MIB);
        assert!(terms.check(&whole).is_ok(), "{command:?} has no payload");
    }
}

#[test]
fn payloads_have_a_longest_length() {
    let terms = terms();
    for command in [Command::Read, Command::Write] {
        let longest = request(command, CommandFlags::NONE, 0, 32 * MIB);
        assert!(terms.check(&longest).is_ok());
        let longer = request(command, CommandFlags::NONE, 0, 32 * MIB + 512);
        assert_eq!(terms.check(&longer), Err(ErrorCode::Invalid));
    }
    let whole = request(Command::Read, CommandFlags::DF, 0, 32 * MIB + 512);
    assert_eq!(terms.check(&whole), Err(ErrorCode::Overflow));
}

#[test]
fn unaligned_ranges_are_invalid() {
    let terms = terms();
    for (offset, length) in [(1, 512), (512, 511), (256, 256)] {
        for command in [Command::Read, Command::Write, Command::Trim, Command::BlockStatus] {
            let outcome = terms.check(&request(command, CommandFlags::NONE, offset, length));
            assert_eq!(outcome, Err(ErrorCode::Invalid), "{command:?} {offset} {length}");
        }
    }
}

#[test]
fn a_length_of_zero_succeeds() {
    let terms = terms();
    for command in [Command::Read, Command::Write, Command::Trim, Command::WriteZeroes] {
        let outcome = terms.check(&request(command, CommandFlags::NONE, 512, 0));
        assert_eq!(outcome, Ok(Checked::Nothing), "{command:?}");
        let end = terms.check(&request(command, CommandFlags::NONE, 64 * MIB, 0));
        assert_eq!(end, Ok(Checked::Nothing), "{command:?}");
    }
    let beyond = terms.check(&request(Command::Read, CommandFlags::NONE, 64 * MIB + 1, 0));
    assert_eq!(beyond, Err(ErrorCode::Invalid), "there is no such place");
    let flush = terms.check(&request(Command::Flush, CommandFlags::NONE, 0, 0));
    assert_eq!(flush, Ok(Checked::Flush));
    assert_eq!(
        terms.check(&request(Command::Disconnect, CommandFlags::KNOWN, 9, 9)),
        Ok(Checked::Disconnect)
    );
}
