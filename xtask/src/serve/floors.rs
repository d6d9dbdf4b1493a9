//! `serve-floors`: a tenant with a floor beside one that floods the model of a cloud disk, with real clients and in
//! real time.
//!
//! The loads, the scheduler and the limits are those of `crates/lab/tests/cloud.rs`, which runs them in virtual time: A
//! keeps 128 I/Os of 1 MiB in flight, B has one at a time, 100 reads and 100 writes a second. The limits are the
//! measured figures of a repaired kernel. The server, the network protocol and the clients are real, so that the
//! figures include wake-ups, copies and processor time; B is measured alone as well, to show how much of that is not
//! due to A.

use crate::Result;
use crate::fio::{Figures, Fio, pause};
use crate::nbd::Server;
use crate::rounds::number;

const HELP: &str = "usage: cargo xtask serve-floors [SECONDS]

  SECONDS   each of the six runs takes so long, and two seconds before it counts (20)";

/// Each tenant has a half, so that I/Os of the flood do not merge with waiting I/Os.
const DEVICE: &str = "cloud,preset=azure-p20";
/// As in the test in virtual time: the capacity as measured, and room for two of A's I/Os in the disk.
const SCHEDULER: &str = "mclock:rrandiops=3566,rbps=173471131,inflight_usec=6500,pace_percent=99";
const EXPORTS: &str = "--export=a,size=256g --export=b,offset=256g,reserve_iops=200 --log=warn";
const FLOOD: &str = "--rw=randrw --bs=1m --iodepth=128";
const TENANT: &str = "--rw=randrw --iodepth=1 --rate_iops=100,100";
/// Seconds before the measurement: A's connection may have all its bytes in flight only after it has transferred as
/// many.
const RAMP: u32 = 2;
/// The least I/Os of B in a second, of the 200 that it asks for.
const FLOOR: f64 = 199.0;

/// A size of B's I/Os, and the limits for it.
struct Case {
    name: &'static str,
    bs: &'static str,
    /// The least that A has in a second.
    flood: f64,
    /// The most that B's p99 may be, in milliseconds.
    p99: f64,
}

const CASES: [Case; 3] = [
    Case { name: "4 KiB", bs: "4k", flood: 162.0, p99: 7.5 },
    Case { name: "32 KiB", bs: "32k", flood: 146.0, p99: 7.5 },
    Case { name: "256 KiB", bs: "256k", flood: 110.0, p99: 9.1 },
];

/// The figures beside one size of B's I/Os.
struct Measured {
    /// B without A.
    alone: Figures,
    /// B beside A.
    tenant: Figures,
    /// A's I/Os in a second beside B.
    flood: f64,
}

/// `cargo xtask serve-floors`, see [`HELP`].
///
/// # Errors
/// If the server or a client fails. Figures are printed, and no figure is an error.
pub(crate) fn main(args: &[String]) -> Result<()> {
    let seconds = match args {
        [] => 20,
        [seconds] if seconds != "--help" => number(seconds)?,
        _ => {
            println!("{HELP}");
            return Ok(());
        }
    };
    crate::shell::build()?;
    println!("\n{}", measure(&CASES, seconds)?);
    Ok(())
}

/// One size, for a second.
///
/// # Errors
/// As [`main`], and if A is not served at all.
pub(crate) fn test_size() -> Result<()> {
    measure(&CASES[..1], 1).map(|table| println!("{table}"))
}

/// The table over `cases`.
fn measure(cases: &[Case], seconds: u32) -> Result<String> {
    let mut text = format!(
        "{DEVICE}, {SCHEDULER}; {seconds} s each\n\n\
         | size of b's I/Os | a, IOPS | b, IOPS | p50, p99, longest of b (ms) | wanted: a, b, p99 | alone: b, p99 | |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n"
    );
    for case in cases {
        text.push_str(&case.row(&case.run(seconds)?));
    }
    Ok(text)
}

impl Case {
    /// B alone, then both together.
    fn run(&self, seconds: u32) -> Result<Measured> {
        let server = Server::blkmq("floors", DEVICE, SCHEDULER, EXPORTS)?;
        let client = |export: &str, load: &str, seconds: u32| {
            let time = format!(
                "--size=256g --norandommap --time_based --ramp_time={RAMP} --runtime={seconds}"
            );
            Fio::start(&server.uri(export), &server.path(export), &format!("{load} {time}"))
        };
        let load = format!("{TENANT} --bs={}", self.bs);
        let alone = client("b", &load, seconds)?.wait()?;
        // A second longer, so that A is counted while B runs all the time. B starts first: a pace above the rate of the
        // disk starves a tenant of large I/Os that starts later (`cloud.rs`).
        let tenant = client("b", &load, seconds + 1)?;
        server.connected(1)?;
        let flood = client("a", FLOOD, 3600)?;
        pause(RAMP.into())?;
        // The server's own counts: fio's rate includes the wait for its last I/Os.
        let counted = server.ctl(&format!("stat --interval={seconds} --count=1"))?;
        let tenant = tenant.wait()?;
        flood.kill()?;
        let kib = |at: usize| counted["rows"][0]["kib"][at].as_f64();
        let kib = kib(0).zip(kib(1)).map(|(read, written)| read + written);
        match kib.filter(|kib| *kib > 0.0) {
            Some(kib) => Ok(Measured { alone, tenant, flood: kib / 1024.0 }),
            None => Err(format!("A is not served: {counted}").into()),
        }
    }

    fn row(&self, Measured { alone, tenant, flood }: &Measured) -> String {
        let ms = |ns: u64| ns as f64 / 1e6;
        let holds = *flood >= self.flood && tenant.iops >= FLOOR && ms(tenant.p99) <= self.p99;
        format!(
            "| {} | {flood:.1} | {:.1} | {:.2}, {:.2}, {:.1} | {}, {FLOOR}, {} | {:.1}, {:.2} | {} |\n",
            self.name,
            tenant.iops,
            ms(tenant.p50),
            ms(tenant.p99),
            ms(tenant.longest),
            self.flood,
            self.p99,
            alone.iops,
            ms(alone.p99),
            if holds { "holds" } else { "missed" },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_holds_if_both_have_their_rates_and_the_tenant_its_p99() {
        let verdict = |flood: f64, iops: f64, p99: u64| {
            let figures = |iops, p99| Figures { iops, p50: 2_000_000, p99, ..Figures::default() };
            let alone = figures(200.0, 2_400_000);
            CASES[0].row(&Measured { alone, tenant: figures(iops, p99), flood })
        };
        assert_eq!(
            verdict(162.0, 199.0, 7_500_000),
            "| 4 KiB | 162.0 | 199.0 | 2.00, 7.50, 0.0 | 162, 199, 7.5 | 200.0, 2.40 | holds |\n"
        );
        assert!(verdict(161.9, 200.0, 2_000_000).contains("missed"), "A has too few");
        assert!(verdict(170.0, 198.9, 2_000_000).contains("missed"), "B has too few");
        assert!(verdict(170.0, 200.0, 7_500_001).contains("missed"), "B is too late");
    }
}
