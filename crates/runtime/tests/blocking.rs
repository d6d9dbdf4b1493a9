//! Blocking calls that take their length from the payload.

mod common;

use blkmq_core::Buffer;
use blkmq_engine::Refusal;
use common::{PUMPS, null};

#[test]
fn an_io_is_as_long_as_its_payload() {
    for pump in PUMPS {
        // 2048 sectors.
        let service = null::<Buffer>("null,size=1", |config| config.pump = pump);
        let mut client = service.blocking().unwrap();
        let buffer = Buffer::new(vec![7; 4096]);
        let (result, buffer) = client.write(2040, buffer).unwrap();
        assert_eq!(result, Ok(()));
        let (result, buffer) = client.read(2040, buffer).unwrap();
        assert_eq!((result, buffer.borrow().len()), (Ok(()), 4096));
        assert_eq!(client.flush(), Ok(()));
        // One sector further it does not fit any more.
        let refused = client.write(2041, buffer).unwrap_err().into_refused().unwrap();
        assert_eq!(refused.why, Refusal::OutOfRange { capacity: 2048 });
        let io = refused.into_io();
        assert_eq!((io.sectors, io.payload.borrow().len()), (8, 4096));
        assert_eq!(service.stats().completed, 3);
    }
}

#[test]
fn what_fills_no_whole_sectors_is_refused() {
    let service = null::<Vec<u8>>("null,size=1", |_| {});
    let mut client = service.blocking().unwrap();
    for bytes in [0, 1, 511, 513] {
        let refused = client.write(0, vec![0; bytes]).unwrap_err().into_refused().unwrap();
        assert_eq!(refused.why, Refusal::Misaligned { block: 512 });
        assert_eq!(refused.into_io().payload.len(), bytes);
    }
    // Carries no data, and so has no length.
    let service = null::<u64>("null,size=1", |_| {});
    let refused = service.blocking().unwrap().read(0, 1).unwrap_err().into_refused().unwrap();
    assert_eq!(refused.why, Refusal::Misaligned { block: 512 });
}
