//! Futures on tokio: a few dozen tasks share a reactor that consists of tasks of the same runtime, one for each worker.
//!
//! It shows the patterns of a server with a task for each of its clients: `submit(io).await` for one I/O; several I/Os
//! submitted before the first is awaited, if they belong together; a deadline that stops waiting for an I/O while the
//! device still has its buffer. Only [`reactor_on`](Service::reactor_on) is specific to tokio, and needs the feature of
//! that name: with [`reactor`](Service::reactor), which starts a thread, the futures run on any executor.
//!
//! `cargo run --release --example tokio`

use blkmq::prelude::*;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use tokio::runtime::Builder;

type Failure = Box<dyn Error + Send + Sync>;
type Page = AlignedBuf;

const PAGE: usize = 4096;
const WORKERS: usize = 2;
const CLIENTS: u64 = 48;
/// The number of extents that each client writes.
const EXTENTS: u64 = 20;
/// The number of pages in an extent, which are written together.
const EXTENT: u64 = 8;

/// Runs the clients and prints how many requests their writes became.
pub fn main() -> Result<(), Failure> {
    // The device takes 20 us for each request and serves 64 requests at once.
    let disk = blkmq::open("null,submit_queues=1,irqmode=2,completion_nsec=20000")?;
    let scheduler = blkmq::scheduler("mq-deadline")?;
    // One submitter for each worker of the runtime.
    let config = Config { submitters: WORKERS as u16, ..disk.config()? };
    let service = Service::start(config.scheduler(scheduler))?;

    let runtime = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let reactor = service.reactor_on(runtime.handle())?;
    let tasks: Vec<_> =
        (0..CLIENTS).map(|id| runtime.spawn(client(reactor.handle(), id))).collect();
    let mut pages = 0;
    for task in tasks {
        pages += runtime.block_on(task)??;
    }
    // Outside of the runtime, dropping the reactor waits for abandoned I/Os, too.
    drop(reactor);

    let stats = service.stats();
    let (done, requests) = (stats.completed, stats.completed_requests);
    if done != pages {
        return Err(format!("{pages} pages were written, and the queue counts {done}").into());
    }
    println!("{CLIENTS} tasks wrote {pages} pages in {requests} requests");
    Ok(())
}

/// Writes extents, all pages of an extent at once. Returns the number of pages written.
async fn client(disk: Handle<Page>, id: u64) -> Result<u64, Failure> {
    // One buffer for each page of an extent: a buffer travels with its I/O and returns with the answer.
    let mut buffers: Vec<Page> = (0..EXTENT).map(|_| AlignedBuf::new(PAGE)).collect();
    buffers.iter_mut().for_each(|buffer| buffer.as_mut_slice().fill(id as u8));
    for extent in 0..EXTENTS {
        let first = (id * EXTENTS + extent) * EXTENT;
        // All pages are submitted before the first is awaited, so that neighbours can merge.
        let pages: Vec<Submitted<Page>> = (first..)
            .zip(buffers.drain(..))
            .map(|(page, buffer)| disk.submit(write(page, buffer)))
            .collect();
        for page in pages {
            let done = page.await?;
            done.result?;
            buffers.push(done.payload);
        }
    }
    // The first client abandons one more write. The I/O keeps its buffer after its future is dropped.
    if id == 0 {
        let buffer = buffers.pop().expect("all have come back");
        let hasty = disk.submit(write(CLIENTS * EXTENTS * EXTENT, buffer));
        let answered_already = at_once(hasty).await.is_some();
        return Ok(EXTENTS * EXTENT + 1).inspect(|_| {
            println!(
                "gave up on one page, {}",
                if answered_already { "too late" } else { "in time" }
            );
        });
    }
    Ok(EXTENTS * EXTENT)
}

fn write(page: u64, buffer: Page) -> Io<Page> {
    Io::write(Bytes(page * PAGE as u64), buffer).cookie(page)
}

/// Polls a future once and drops it: the shortest possible deadline.
async fn at_once<F: Future + Unpin>(mut future: F) -> Option<F::Output> {
    poll_fn(|cx| match Pin::new(&mut future).poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
