//! Serves devices over NBD until standard input ends.
//!
//! `cargo run --release -p blkmq-server --example serve -- unix:disk.sock memory,size=1024 mq-deadline`

use blkmq_server::{Disk, Export, Listener, Rights, Server, Settings};
use std::io::Read;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, device, scheduler] = &arguments[..] else {
        return Err("usage: serve ADDRESS DEVICE SCHEDULER".into());
    };
    let workers = std::thread::available_parallelism()?.get() as u16;
    let disk = Disk::start("disk", blkmq::open(device)?, scheduler, workers)?;
    let listener = Listener::bind(&listen.parse()?, &Rights::default())?;
    let exports = [Export::new("disk", 0)];
    let server =
        Server::start(vec![disk], &exports, vec![listener], workers, &Settings::default())?;
    server.uris("disk").for_each(|uri| println!("{uri}"));
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.drain()?;
    Ok(())
}
