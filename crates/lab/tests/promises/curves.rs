//! Shares against rate where both cannot be had: mclock with bounds set by hand, from tight to loose, beside what it finds.
//!
//! The rows are those of [`super::CELLS`] and of `unlike.rs` with less than the promise; their tests compare them.

use super::{CLIENT, DISK, TLC};

/// Options of mclock for the capacity, with [`DIVIDED`] before them in some points, and the values of `inflight_usec` to try with
/// them.
type Told = (&'static str, &'static [u32]);

/// Bounds set by hand for a row.
pub struct Curve {
    device: &'static str,
    load: &'static str,
    /// From tight to loose.
    points: &'static [Told],
    /// A bound set by hand has clearly more of one figure, and hardly less of the other: `docs/guarantees.md` says why.
    is_beaten: bool,
}

/// The point of a scheduler.
pub struct Point {
    /// As it is printed.
    pub shown: String,
    /// The least share of a tenant, relative to an even one; and the rate, relative to `none`'s.
    pub share: f64,
    pub rate: f64,
}

/// A parameter of the device: I/Os of a MiB are divided into parts of 128 KiB.
const DIVIDED: &str = "max_sectors=256";

/// A difference above `CLEAR` is clear, one below `HARDLY` negligible.
const CLEAR: f64 = 0.03;
const HARDLY: f64 = 0.02;

impl Point {
    /// Returns whether `other` has clearly more of one figure, and hardly less of the other.
    fn is_beaten_by(&self, other: &Self) -> bool {
        let (share, rate) = (other.share - self.share, other.rate - self.rate);
        share > CLEAR && rate >= -HARDLY || rate > CLEAR && share >= -HARDLY
    }
}

/// The capacities are the figures of each load alone; in addition, prices of writes.
const CURVES: [Curve; 19] = [
    Curve {
        device: CLIENT,
        load: "RandRead, 4 KiB, 32",
        points: &[("", &[3_520, 4_100, 4_700, 5_280, 5_870])],
        is_beaten: false,
    },
    Curve {
        device: CLIENT,
        load: "RandRead, 64 KiB, 8",
        points: &[("", &[1_072, 1_206, 1_340, 1_474, 1_608])],
        is_beaten: false,
    },
    Curve {
        device: TLC,
        load: "RandRead, 4 KiB, 32",
        points: &[("", &[3_520, 4_100, 4_700, 5_280, 5_870])],
        is_beaten: false,
    },
    Curve {
        device: TLC,
        load: "Write, 128 KiB, 32",
        points: &[("", &[1_225, 4_900, 12_250, 14_700, 17_150])],
        is_beaten: true,
    },
    Curve {
        device: TLC,
        load: "RandRead, 64 KiB, 8",
        points: &[("", &[1_072, 1_206, 1_340, 1_474, 1_608])],
        is_beaten: false,
    },
    Curve {
        device: DISK,
        load: "RandRead, 64 KiB, 8",
        points: &[("", &[5_400, 10_800, 16_200, 21_600, 27_000, 32_400])],
        is_beaten: false,
    },
    Curve {
        device: CLIENT,
        load: "depth 1, depth 128",
        points: &[("", &[1_872, 3_744, 5_500, 7_488, 10_000])],
        is_beaten: true,
    },
    Curve {
        device: CLIENT,
        load: "4 KiB, 1 MiB",
        points: &[
            ("rrandiops=335000,rbps=7000000000,", &[100, 300, 600, 1_200]),
            ("max_sectors=256,rrandiops=335000,rbps=7000000000,", &[100, 300, 600]),
        ],
        is_beaten: true,
    },
    Curve {
        device: CLIENT,
        load: "reads, writes",
        points: &[
            ("rrandiops=335000,rbps=7000000000,wbps=7000000000,wrandiops=200000,", &[100, 120]),
            (
                "rrandiops=335000,rbps=7000000000,wbps=7000000000,wrandiops=100000,",
                &[120, 135, 150],
            ),
        ],
        is_beaten: true,
    },
    Curve {
        device: CLIENT,
        load: "reads, 1 MiB writes",
        points: &[
            ("rrandiops=335000,rbps=7000000000,wbps=400000000,", &[50, 80]),
            ("rrandiops=335000,rbps=7000000000,wbps=800000000,", &[70, 80]),
            ("rrandiops=335000,rbps=7000000000,wbps=1856000000,", &[70, 200]),
        ],
        is_beaten: true,
    },
    Curve {
        device: CLIENT,
        load: "db, web, backup",
        points: &[
            ("rrandiops=335000,rbps=7000000000,wbps=600000000,wrandiops=100000,", &[60, 90]),
            ("rrandiops=335000,rbps=7000000000,wbps=1856000000,wrandiops=464000,", &[50, 100, 150]),
        ],
        is_beaten: false,
    },
    Curve {
        device: TLC,
        load: "depth 1, depth 128",
        points: &[("", &[1_872, 3_744, 5_500, 6_500, 7_488])],
        is_beaten: true,
    },
    Curve {
        device: TLC,
        load: "4 KiB, 1 MiB",
        points: &[
            ("rrandiops=216000,rbps=3250000000,", &[100, 400, 800]),
            ("max_sectors=256,rrandiops=216000,rbps=3250000000,", &[150, 300, 600]),
        ],
        is_beaten: true,
    },
    Curve {
        device: TLC,
        load: "reads, writes",
        points: &[(
            "rrandiops=216000,rbps=3250000000,wbps=3250000000,wrandiops=157000,",
            &[80, 120, 160, 240, 300],
        )],
        is_beaten: true,
    },
    Curve {
        device: TLC,
        load: "db, web, backup",
        points: &[(
            "rrandiops=216000,rbps=3250000000,wbps=643000000,wrandiops=157000,",
            &[50, 100, 200, 600, 2_000],
        )],
        is_beaten: false,
    },
    Curve {
        device: DISK,
        load: "depth 1, depth 128",
        points: &[("", &[2_703, 10_800, 15_000, 21_600, 30_000, 43_200])],
        is_beaten: false,
    },
    Curve {
        device: DISK,
        load: "reads, 1 MiB writes",
        points: &[
            ("", &[21_600, 43_200]),
            ("rrandiops=340,wbps=65000000,", &[20_000, 40_000, 80_000]),
        ],
        is_beaten: true,
    },
    Curve {
        device: DISK,
        load: "random, sequential",
        points: &[("", &[2_703, 10_800, 21_600, 43_200, 64_000, 86_400])],
        is_beaten: true,
    },
    Curve {
        device: DISK,
        load: "db, web, backup",
        points: &[("", &[2_703, 10_800, 43_200, 64_000, 86_400])],
        is_beaten: false,
    },
];

impl Curve {
    pub fn find(device: &str, load: &str) -> Option<&'static Self> {
        CURVES.iter().find(|curve| curve.device == device && curve.load == load)
    }

    /// Prints the points of the row, measured on a device with options of mclock, and that of the default. Returns a
    /// failure as text.
    pub fn compare(
        &self,
        default: &Point,
        measure: impl Fn(&str, &str) -> Point,
    ) -> Option<String> {
        let Self { device, load, .. } = self;
        println!("| `{device}` | {load} | as it is typed | {} |", default.shown);
        let mut is_beaten = false;
        for (told, bound) in
            self.points.iter().flat_map(|(told, bounds)| bounds.iter().map(move |of| (told, of)))
        {
            let options = format!("{told}inflight_usec={bound}");
            let divided = options.split_once(',').filter(|(word, _)| *word == DIVIDED);
            let point = match divided {
                Some((_, options)) => measure(&format!("{device},{DIVIDED}"), options),
                None => measure(device, &options),
            };
            let beats = default.is_beaten_by(&point);
            let word = if beats { ", more" } else { "" };
            println!("| `{device}` | {load} | {options} | {}{word} |", point.shown);
            is_beaten |= beats;
        }
        let is_new = is_beaten && !self.is_beaten;
        is_new.then(|| format!("{device}, {load}: a bound set by hand has more"))
    }
}
