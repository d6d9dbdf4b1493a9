//! Random 4 KiB reads of a file or block device, with `none` and mq-deadline, at depths 1 and 32: the cost of a queue
//! around io_uring over io_uring itself.
//!
//! ```text
//! cargo run --release -p blkmq-uring --example rate -- FILE,size=256 2
//! fio --name=rate --filename=FILE --ioengine=io_uring --direct=1 --rw=randread --bs=4k --iodepth=32 \
//!     --time_based --runtime=2
//! ```
//!
//! The first argument is `PATH[,KEY=VALUE]...` with the device's parameters, the second the seconds for each of the
//! four runs. One thread submits and waits, like one job of fio. Buffers are registered.

#![forbid(unsafe_code)]

use std::error::Error;

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let text = args.next().ok_or("usage: rate PATH[,KEY=VALUE]... [SECONDS]")?;
    let seconds = args.next().map_or(Ok(2), |arg| arg.parse())?;
    let mut device = blkmq_uring::UringDevice::parse(&text)?;
    let pool = blkmq_buf::BufferPool::new(32, linux::BLOCK);
    device.register(&pool);
    device.notes.iter().for_each(|note| println!("note: {note}"));
    println!("{:<12} {:>5} {:>10} {:>12}", "scheduler", "depth", "IOPS", "mean us");
    for depth in [1, 32] {
        for scheduler in ["none", "mq-deadline"] {
            let iops = linux::measure(&device, &pool, scheduler, depth, seconds)?;
            let mean = f64::from(depth) * 1e6 / iops;
            println!("{scheduler:<12} {depth:>5} {iops:>10.0} {mean:>12.2}");
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() -> Result<(), Box<dyn Error>> {
    Err("there is io_uring on Linux only".into())
}

#[cfg(target_os = "linux")]
mod linux {
    use blkmq_buf::BufferPool;
    use blkmq_core::{Nanos, Op, Rng};
    use blkmq_engine::{BlockDevice, Io};
    use blkmq_runtime::Service;
    use blkmq_sched::registry;
    use blkmq_uring::UringDevice;
    use std::error::Error;

    pub const BLOCK: usize = 4096;
    const SECTORS: u32 = BLOCK as u32 / 512;

    /// I/Os per second.
    pub fn measure(
        device: &UringDevice,
        pool: &BufferPool,
        scheduler: &str,
        depth: u32,
        seconds: u64,
    ) -> Result<f64, Box<dyn Error>> {
        let factory = registry::find(scheduler).ok_or("no such scheduler")?;
        let service = Service::start(device.config()?.scheduler(factory))?;
        let mut client = service.client()?;
        let clock = client.clock();
        let blocks = device.shape.limits.capacity / u64::from(SECTORS);
        let mut rng = Rng::new(1);
        let mut free = Vec::from_iter((0..depth).map_while(|_| pool.take()));
        let (begin, mut done) = (clock.now(), 0_u64);
        let end = begin + Nanos::from_secs(seconds);
        loop {
            let now = clock.now();
            if now < end {
                while let Some(buf) = free.pop() {
                    let sector = rng.below(blocks) * u64::from(SECTORS);
                    client.push_at(now, Io::new(Op::Read, sector, SECTORS, 0, buf))?;
                }
            } else if client.in_flight() == 0 {
                break;
            }
            let mut failed = None;
            done += u64::from(client.wait(1, depth, |io| {
                failed = io.result.err().or(failed);
                free.push(io.payload);
            }));
            if let Some(e) = failed {
                return Err(e.into());
            }
        }
        Ok(done as f64 * 1e9 / (clock.now() - begin).0 as f64)
    }
}
