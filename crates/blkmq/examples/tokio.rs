//! Futures on tokio: a few dozen tasks share one reactor, and with it one submitter of the queue.
//!
//! It shows what a server does that has a task for each of its clients: `submit(io).await` for one I/O, several
//! submitted before the first is awaited where they belong together, a deadline that gives up waiting without
//! giving up the buffer. Nothing here is special to tokio: the futures need an executor that polls them when
//! they wake it, and no more.
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
const CLIENTS: u64 = 48;
/// Extents that each client writes.
const EXTENTS: u64 = 20;
/// Pages of an extent, written together.
const EXTENT: u64 = 8;

/// Runs the clients and prints what the queue made of them.
pub fn main() -> Result<(), Failure> {
    // A device that takes 20 us for each request, and 64 at once.
    let disk = blkmq::open("null,submit_queues=1,irqmode=2,completion_nsec=20000")?;
    let service = disk.start("mq-deadline")?;
    let reactor = service.reactor()?;

    let runtime = Builder::new_multi_thread().worker_threads(2).build()?;
    let tasks: Vec<_> =
        (0..CLIENTS).map(|id| runtime.spawn(client(reactor.handle(), id))).collect();
    let mut pages = 0;
    for task in tasks {
        pages += runtime.block_on(task)??;
    }
    // Nothing is left behind: it waits for what nobody else waits for any more.
    drop(reactor);

    let stats = service.stats();
    let (done, requests) = (stats.completed, stats.completed_requests);
    if done != pages {
        return Err(format!("{pages} pages were written, and the queue counts {done}").into());
    }
    println!("{CLIENTS} tasks wrote {pages} pages in {requests} requests");
    Ok(())
}

/// Writes extents, the pages of each at once. Says how many pages it wrote.
async fn client(disk: Handle<Page>, id: u64) -> Result<u64, Failure> {
    // As many buffers as an extent has pages: they go in with the I/Os and come back with the answers.
    let mut buffers: Vec<Page> = (0..EXTENT).map(|_| AlignedBuf::new(PAGE)).collect();
    buffers.iter_mut().for_each(|buffer| buffer.as_mut_slice().fill(id as u8));
    for extent in 0..EXTENTS {
        let first = (id * EXTENTS + extent) * EXTENT;
        // Submitted before anything is awaited, so neighbours can merge.
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
    // One more that is not waited for: dropping the future does not take the buffer from under the device.
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

/// Polls once and gives up: the shortest of deadlines.
async fn at_once<F: Future + Unpin>(mut future: F) -> Option<F::Output> {
    poll_fn(|cx| match Pin::new(&mut future).poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
