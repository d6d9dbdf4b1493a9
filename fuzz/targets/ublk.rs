//! Whatever the kernel has written into a descriptor, a description or parameters: a request that is carried out is
//! inside of the disk and of its tag's buffer, and a device that is taken has no more memory than was asked for.
#![no_main]

use blkmq_ublk::wire::{Allowed, Descriptor, Info, Op, Params};
use libfuzzer_sys::fuzz_target;

/// The head of an input: the bounds of requests.
const HEAD: usize = 13;
const WANTED: Info =
    Info { queues: 4, depth: 64, state: 0, max_bytes: 1 << 18, device: 0, pid: -1, flags: 0x58 };

fuzz_target!(|input: &[u8]| {
    let mut rest = input;
    let Some((head, after)) = rest.split_first_chunk::<HEAD>() else { return };
    rest = after;
    let allowed = Allowed {
        bytes: u64::from_ne_bytes(head[..8].try_into().expect("8 bytes")),
        most: u32::from_ne_bytes(head[8..12].try_into().expect("4 bytes")),
        discards: head[12] & 1 != 0,
        is_read_only: head[12] & 2 != 0,
    };
    while let Some((bytes, after)) = rest.split_first_chunk() {
        rest = after;
        request(&Descriptor::from_bytes(bytes), &allowed);
    }
    if let Some(bytes) = input.first_chunk() {
        let info = Info::from_bytes(bytes);
        assert_eq!(Info::from_bytes(&info.to_bytes()), info);
        if info.keeps(&WANTED) {
            let size =
                |it: &Info| u64::from(it.queues) * u64::from(it.depth) * u64::from(it.max_bytes);
            assert!(info.queues > 0 && size(&info) <= size(&WANTED), "{info:?}");
        }
    }
    if let Some(bytes) = input.first_chunk() {
        let params = Params::from_bytes(bytes);
        if params.max_discard_sectors > 0 || params.max_zeroes_sectors > 0 {
            assert_eq!(Params::from_bytes(&params.to_bytes()), params);
        }
    }
});

fn request(request: &Descriptor, allowed: &Allowed) {
    let Some(range) = request.range(allowed) else { return };
    assert!(range.start <= range.end && range.end <= allowed.bytes, "{request:?} {range:?}");
    let len = range.end - range.start;
    match request.op {
        Op::Read | Op::Write => assert!(1 <= len && len <= allowed.most.into(), "{request:?}"),
        Op::Discard => assert!(allowed.discards, "{request:?}"),
        Op::WriteZeroes { .. } => assert!(len > 0, "{request:?}"),
        Op::Flush | Op::Other(_) => assert_eq!(len, 0),
    }
    let writes = matches!(request.op, Op::Write | Op::Discard | Op::WriteZeroes { .. });
    assert!(!writes || !allowed.is_read_only, "{request:?}");
}
