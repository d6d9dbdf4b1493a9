//! A device that stores the data of writes, so that tests can check where bytes went.

use blkmq_core::{Instant, IoError, IoFlags, IoResult, Op, Payload};
use blkmq_engine::{
    BioTable, Config, DeviceQueue, DeviceShape, Enqueued, Finished, Inflight, Verdict,
};
use std::sync::{Arc, Mutex, MutexGuard};

/// One request as it arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    pub op: Op,
    pub sector: u64,
    pub sectors: u32,
    pub segments: u16,
    pub flags: IoFlags,
    pub bios: u32,
}

/// The storage behind the queue.
#[derive(Default)]
pub struct Disk {
    pub memory: Vec<u8>,
    /// Sectors that fail, and their errors.
    pub bad: Vec<(u64, IoError)>,
    /// Hold requests instead of finishing them.
    pub holds: bool,
    /// Finish the newest requests first.
    pub backwards: bool,
    pub taken: Vec<Taken>,
}

#[derive(Clone)]
pub struct DiskHandle(Arc<Mutex<Disk>>);

impl DiskHandle {
    pub fn lock(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("no test panics while holding it")
    }

    /// First sectors and lengths of the requests since the last call.
    pub fn requests(&self) -> Vec<(u64, u32)> {
        self.lock().taken.drain(..).map(|taken| (taken.sector, taken.sectors)).collect()
    }
}

struct Store {
    disk: DiskHandle,
    inside: Vec<(Inflight, IoResult)>,
}

impl Disk {
    fn transfer<P: Payload>(&mut self, bios: &BioTable<P>, rq: &Inflight) -> IoResult {
        rq.bios(bios).try_for_each(|bio| {
            let covers = |at: u64| (bio.sector..bio.sector + u64::from(bio.sectors)).contains(&at);
            if let Some((_, error)) = self.bad.iter().find(|(at, _)| covers(*at)) {
                return Err(*error);
            }
            let start = bio.sector as usize * 512;
            let memory = &mut self.memory[start..][..bio.sectors as usize * 512];
            match rq.op() {
                Op::Read | Op::Write
                    if bio.payload.data_len().is_none_or(|n| n != memory.len()) =>
                {
                    Err(IoError::INVALID)
                }
                Op::Read => bio.payload.read_from(0, memory),
                Op::Write => bio.payload.write_to(0, memory),
                Op::Discard | Op::WriteZeroes => {
                    memory.fill(0);
                    Ok(())
                }
                Op::Flush => Ok(()),
            }
        })
    }
}

impl<P: Payload> DeviceQueue<P> for Store {
    fn enqueue(&mut self, _: Instant, bios: &BioTable<P>, rq: Inflight) -> Enqueued {
        let mut disk = self.disk.lock();
        disk.taken.push(Taken {
            op: rq.op(),
            sector: rq.sector(),
            sectors: rq.sectors(),
            segments: rq.segments(),
            flags: rq.flags(),
            bios: rq.bio_count(),
        });
        let result = disk.transfer(bios, &rq);
        self.inside.push((rq, result));
        Enqueued::Accepted
    }

    fn reap(&mut self, _: Instant, _: &BioTable<P>, out: &mut Vec<Finished>) {
        let disk = self.disk.lock();
        if disk.holds {
            return;
        }
        if disk.backwards {
            self.inside.reverse();
        }
        let finished = |(rq, result)| Finished { rq, verdict: Verdict::Done(result) };
        out.extend(self.inside.drain(..).map(finished));
    }

    fn abandon(&mut self, out: &mut Vec<Inflight>) {
        out.extend(self.inside.drain(..).map(|(rq, _)| rq));
    }
}

/// A configuration around a device of one hardware queue that stores `sectors` sectors.
pub fn storing<P: Payload>(mut shape: DeviceShape, sectors: u64) -> (Config<P>, DiskHandle) {
    shape.limits.capacity = sectors;
    let memory = vec![0; sectors as usize * 512];
    let disk = DiskHandle(Arc::new(Mutex::new(Disk { memory, ..Disk::default() })));
    let store = Store { disk: disk.clone(), inside: Vec::new() };
    (Config::new(shape, vec![Box::new(store)]), disk)
}
