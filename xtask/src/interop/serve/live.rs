//! Schedulers, weights, limits and depths of a running server are changed while clients verify their data.

use super::super::Outcome;
use crate::Result;
use crate::fio::{Figures, Fio};
use crate::nbd::Server;

/// Changes, a call of `blkmq ctl` each.
const CHANGES: usize = 200;
/// Seconds that clients run; the changes take less.
const SECONDS: u32 = 10;
/// The longest latency that a change may cause, in milliseconds. Beyond, the figure is printed with a remark: it is one
/// of the machine, too.
const STALL: u64 = 100;
/// A latency, in milliseconds, that no busy machine explains.
const HANG: u64 = 2000;

const EXPORTS: [&str; 4] = ["a", "b", "c", "d"];

/// See above.
pub(in crate::interop) fn changed() -> Result<Outcome> {
    let exports: String = (0..)
        .zip(EXPORTS)
        .map(|(at, name)| format!(" --export={name},offset={}m,size=64m", at * 64))
        .collect();
    let server = Server::blkmq("serve-live", "memory,size=256", "mq-deadline", &exports)?;
    let io = "--rw=randrw --bs=4k --iodepth=8 --size=16m";
    let verify = "--verify=crc32c --verify_state_save=0 --verify_fatal=1";
    let options = format!("{io} {verify} --time_based --runtime={SECONDS}");
    let clients: Result<Vec<Fio>> = EXPORTS
        .iter()
        .map(|name| Fio::start(&server.uri(name), &server.path(&format!("fio-{name}")), &options))
        .collect();
    let clients = clients?;
    server.connected(4)?;
    for n in 0..CHANGES {
        server.ctl(&change(n))?;
    }
    if server.connections()? != 4 {
        return Err(format!("{CHANGES} changes took longer than {SECONDS} s").into());
    }
    let figures: Result<Vec<Figures>> = clients.into_iter().map(Fio::wait).collect();
    let figures = figures?;
    let longest = figures.iter().map(|it| it.longest / 1_000_000).max().unwrap_or(0);
    let ios: u64 = figures.iter().map(|it| it.ios).sum();
    let remark = if longest > STALL { ", more than is wanted" } else { "" };
    println!("{CHANGES} changes under {ios} I/Os: the longest took {longest} ms{remark}");
    if longest > HANG { Err("an I/O hung".into()) } else { Ok(Outcome::Passed) }
}

/// The change number `n`. Half of them switch the scheduler.
fn change(n: usize) -> String {
    let (round, export) = (n / 8, EXPORTS[n / 8 % 4]);
    match n % 8 {
        0 => "switch bfq".to_owned(),
        1 => format!("export {export} --weight={}", 1 + round * 37 % 1000),
        2 => "switch none".to_owned(),
        3 => format!("export {export} --max=wiops={}", 5000 + round * 100),
        4 => "switch kyber".to_owned(),
        5 => format!("set queue/nr_requests {}", 16 + round),
        6 => "switch mq-deadline".to_owned(),
        _ => format!("export {export} --max=wiops=max"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_lifted_again() {
        let mut limited = std::collections::BTreeSet::new();
        for words in (0..CHANGES).map(change) {
            let mut words = words.split(' ').skip(1);
            match (words.next(), words.next()) {
                (Some(name), Some("--max=wiops=max")) => {
                    limited.remove(name);
                }
                (Some(name), Some(limit)) if limit.starts_with("--max") => {
                    limited.insert(name.to_owned());
                }
                _ => {}
            }
        }
        assert!(limited.is_empty(), "{limited:?}");
    }
}
