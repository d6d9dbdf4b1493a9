//! An option's value while it is parsed, and the values with a grammar: patterns with their numbers, block sizes, rates,
//! percentiles and distributions. Errors give the accepted values; the caller adds the origin.

use crate::plan::Choice;
use blkmq_core::{Nanos, SECTOR_SIZE};
use blkmq_lab::workload::{Amount, BlockSize, Direction, Distribution, PerDirection, Rw, Zones};
use blkmq_terminal::UsageError;
use blkmq_terminal::units::{self, KbBase, TimeUnit};
use std::fmt::Display;
use std::ops::RangeInclusive;

/// A value and the meaning of `k` in it.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    /// The text as written.
    pub text: &'a str,
    /// The job's `kb_base`.
    pub base: KbBase,
}

type Parsed<T> = Result<T, UsageError>;

impl<'a> Value<'a> {
    /// A boolean.
    pub fn flag(self) -> Parsed<bool> {
        match self.text {
            "1" => Ok(true),
            "0" => Ok(false),
            _ => Err(UsageError::new("accepted: 0, 1, or the option without a value")),
        }
    }

    /// A number in a range.
    pub fn count<T>(self, range: RangeInclusive<T>) -> Parsed<T>
    where
        T: Copy + PartialOrd + Display + TryFrom<u64>,
    {
        units::count(self.text, range, self.base)
    }

    /// A time; a number without a unit is in `default`.
    pub fn time(self, default: TimeUnit) -> Parsed<Nanos> {
        units::time(self.text, default)
    }

    /// Bytes, or a share of the device.
    pub fn amount(self) -> Parsed<Amount> {
        match self.text.strip_suffix('%') {
            Some(share) => units::percent(share).map(Amount::Percent),
            None => units::bytes(self.text, self.base).map(Amount::Bytes),
        }
    }

    /// Parses one word of a closed set.
    pub fn choice<T: Choice>(self) -> Parsed<T> {
        T::from_word(self.text)
    }

    /// A text that is not empty.
    pub fn non_empty(self, what: &str) -> Parsed<&'a str> {
        if self.text.is_empty() {
            Err(UsageError::new(format!("no value; accepted: {what}")))
        } else {
            Ok(self.text)
        }
    }

    /// Parses fio's `r,w,t`: a value also applies to the directions after it, an empty position leaves its direction
    /// unchanged (`,8k` sets writes and trims), and a trailing comma leaves the rest unchanged (`8k,` sets reads).
    pub fn directions<T: Clone>(
        self,
        read: impl Fn(Self) -> Parsed<T>,
    ) -> Parsed<PerDirection<Option<T>>> {
        let parts = Vec::from_iter(self.text.split(',').map(str::trim));
        if parts.len() > 3 || parts.iter().all(|part| part.is_empty()) {
            let accepted = "accepted: up to three values, for reads, writes and trims: r,w,t";
            return Err(UsageError::new(accepted));
        }
        let mut values: [Option<T>; 3] = [None, None, None];
        for (at, part) in parts.iter().enumerate() {
            if !part.is_empty() {
                values[at] = Some(read(Self { text: part, ..self })?);
            }
        }
        let last = parts.len() - 1;
        for at in parts.len()..3 {
            values[at] = values[last].clone();
        }
        let [reads, writes, trims] = values;
        Ok(PerDirection::new(reads, writes, trims))
    }
}

/// A pattern, the sequential I/Os of a run (1 but for `randread:8`), and the bytes between sequential I/Os.
pub fn pattern(value: Value<'_>) -> Parsed<(Rw, u32, i64)> {
    let (name, number) = match value.text.split_once(':') {
        Some((name, number)) => (name, Some(number)),
        None => (value.text, None),
    };
    let rw = Rw::parse(name).ok_or_else(|| {
        let names = Rw::NAMES.iter().flat_map(|(_, names)| names.iter().copied());
        let names = Vec::from_iter(names).join(", ");
        UsageError::new(format!("accepted: {names}"))
    })?;
    let Some(number) = number else { return Ok((rw, 1, 0)) };
    if rw.is_random() {
        let run = units::count(number, 1..=u32::MAX, value.base)?;
        return Ok((rw, run, 0));
    }
    let (sign, bytes) = match number.strip_prefix('-') {
        Some(bytes) => (-1, bytes),
        None => (1, number),
    };
    let bytes = units::bytes(bytes, value.base)?;
    let bytes =
        i64::try_from(bytes).map_err(|_| UsageError::new("accepted: a hole of up to 7e"))?;
    Ok((rw, 1, sign * bytes))
}

/// Parses a block size in bytes, which need not be a multiple of a sector.
pub fn block_size(value: Value<'_>) -> Parsed<u32> {
    let bytes = units::bytes(value.text, value.base)?;
    let refuse = || UsageError::new(format!("{bytes} bytes; accepted: 1 to 1g"));
    let bs = u32::try_from(bytes).map_err(|_| refuse())?;
    if (1..=BlockSize::MAX).contains(&bs) { Ok(bs) } else { Err(refuse()) }
}

/// One direction of `bsrange`: two sizes with `-` or `:` between them.
pub fn range(value: Value<'_>) -> Parsed<BlockSize> {
    let refuse = || UsageError::new("accepted: a range of sizes, such as 1k-4k");
    let (min, max) = value.text.split_once(['-', ':']).ok_or_else(refuse)?;
    let [min, max] = [min, max].map(|text| block_size(Value { text, ..value }));
    let range = BlockSize::Range { min: min?, max: max? };
    in_sectors(&range).validate().map_err(|e| UsageError::new(e.to_string()))?;
    Ok(range)
}

/// `bytes`, rounded up to whole sectors.
pub fn to_sectors(bytes: u32) -> u32 {
    bytes.next_multiple_of(SECTOR_SIZE)
}

/// Block sizes, each rounded up to whole sectors.
pub fn in_sectors(size: &BlockSize) -> BlockSize {
    match size {
        BlockSize::Fixed(bs) => BlockSize::Fixed(to_sectors(*bs)),
        BlockSize::Range { min, max } => {
            BlockSize::Range { min: to_sectors(*min), max: to_sectors(*max) }
        }
        BlockSize::Split(parts) => {
            BlockSize::Split(parts.iter().map(|(bs, share)| (to_sectors(*bs), *share)).collect())
        }
    }
}

const DISTRIBUTIONS: &str = "random, zipf:THETA, pareto:POWER, normal:DEVIATION, each with :CENTRE, \
                             zoned:SHARE/PERCENT:..., zoned_abs:SHARE/SIZE:...";

/// `random_distribution`, with fio's default parameters.
pub fn distribution(value: Value<'_>) -> Parsed<Distribution> {
    let refuse = || UsageError::new(format!("accepted: {DISTRIBUTIONS}"));
    let (kind, rest) = match value.text.split_once(':') {
        Some((kind, rest)) => (kind, Some(rest)),
        None => (value.text, None),
    };
    let distribution = match (kind, rest) {
        ("random", None) => Distribution::Uniform,
        ("zoned", Some(list)) => {
            Distribution::Zoned(Zones::Percent(zones(list, 100, units::percent)?))
        }
        ("zoned_abs", Some(list)) => {
            let size = |text: &str| units::bytes(text, value.base);
            Distribution::Zoned(Zones::Bytes(zones(list, 0, size)?))
        }
        ("zipf" | "pareto" | "normal", rest) => {
            let mut numbers = rest.into_iter().flat_map(|rest| rest.splitn(2, ':'));
            let mut number =
                || numbers.next().map(|n| units::decimal(n, DISTRIBUTIONS)).transpose();
            let (parameter, centre) = (number()?, number()?);
            match kind {
                "zipf" => Distribution::Zipf(parameter.unwrap_or(1.1), centre),
                "pareto" => Distribution::Pareto(parameter.unwrap_or(0.2), centre),
                _ => Distribution::Normal(parameter.ok_or_else(refuse)?, centre),
            }
        }
        _ => return Err(refuse()),
    };
    distribution.validate().map_err(|e| UsageError::new(e.to_string()))?;
    Ok(distribution)
}

/// Parses `SHARE/LENGTH:SHARE/LENGTH`. For percentages, zones without a length divide the remainder of `whole` equally.
fn zones<L>(list: &str, whole: u32, length: impl Fn(&str) -> Parsed<L>) -> Parsed<Vec<(u8, L)>>
where
    L: Copy + Into<u64> + TryFrom<u32>,
{
    let refuse = || UsageError::new(format!("accepted: {DISTRIBUTIONS}"));
    let mut zones: Vec<(u8, Option<L>)> = Vec::new();
    for part in list.split(':') {
        let (share, len) = part.split_once('/').ok_or_else(refuse)?;
        let len = if len.is_empty() { None } else { Some(length(len)?) };
        zones.push((units::percent(share)?, len));
    }
    if zones.len() > Zones::MAX {
        return Err(UsageError::new(format!(
            "{} zones; accepted are up to {}",
            zones.len(),
            Zones::MAX
        )));
    }
    let given: u64 = zones.iter().filter_map(|(_, len)| len.map(Into::into)).sum();
    let open = zones.iter().filter(|(_, len)| len.is_none()).count() as u32;
    let rest = u64::from(whole).saturating_sub(given) as u32 / open.max(1);
    let filled = zones.into_iter().map(|(share, len)| {
        let len = match len {
            None if whole > 0 => L::try_from(rest).ok(),
            len => len,
        };
        Ok((share, len.ok_or_else(refuse)?))
    });
    filled.collect()
}

/// Parses one direction of `bssplit`: `4k/60:8k/40`. Sizes without a percentage divide the remainder equally; as in
/// fio, if every size has a percentage, the remainder goes to the last one.
pub fn block_sizes(value: Value<'_>) -> Result<BlockSize, UsageError> {
    let mut parts = Vec::new();
    for part in value.text.split(':') {
        let (size, share) = part.split_once('/').unwrap_or((part, ""));
        let share = if share.is_empty() { None } else { Some(units::percent(share)?) };
        parts.push((block_size(Value { text: size, ..value })?, share));
    }
    let given: u32 = parts.iter().filter_map(|(_, share)| share.map(u32::from)).sum();
    let blank = parts.iter().filter(|(_, share)| share.is_none()).count() as u32;
    if given > 100 {
        let text =
            format!("the shares sum to {given} percent; accepted: up to 100, as in 4k/60:8k/40");
        return Err(UsageError::new(text));
    }
    if let (0, Some((_, Some(last)))) = (blank, parts.last_mut()) {
        *last += (100 - given) as u8;
    }
    let mut left = 100 - given;
    let mut open = blank;
    let filled = parts.into_iter().map(|(bs, share)| {
        let share = share.unwrap_or_else(|| {
            let share = left / open;
            (left, open) = (left - share, open - 1);
            share as u8
        });
        (bs, share)
    });
    Ok(BlockSize::Split(filled.collect()))
}

/// Rates by direction; 0 is fio's "unlimited".
pub fn rates(value: Value<'_>) -> Result<PerDirection<Option<u64>>, UsageError> {
    let mut rates = value.directions(|value| value.count(0..=u64::MAX))?;
    for direction in Direction::ALL {
        rates[direction] = rates[direction].filter(|rate| *rate > 0);
    }
    Ok(rates)
}

/// `percentile_list`, in ascending order.
pub fn percentiles(text: &str) -> Result<Vec<f64>, UsageError> {
    const ACCEPTED: &str = "up to 20 numbers above 0 and up to 100, such as 50:99:99.9";
    let refuse = || UsageError::new(format!("accepted: {ACCEPTED}"));
    let mut list = Vec::new();
    for part in text.split([':', ',']) {
        let percentile = units::decimal(part, ACCEPTED)?;
        if !(percentile > 0.0 && percentile <= 100.0) {
            return Err(refuse());
        }
        list.push(percentile);
    }
    list.sort_by(f64::total_cmp);
    if list.len() > 20 { Err(refuse()) } else { Ok(list) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directions(text: &str) -> Parsed<[Option<u32>; 3]> {
        let value = Value { text, base: KbBase::Binary };
        let values = value.directions(|value| value.count(0..=99u32))?;
        Ok(Direction::ALL.map(|direction| values[direction]))
    }

    #[test]
    fn three_directions_are_filled_as_in_fio() {
        for (text, expected) in [
            ("8", [Some(8), Some(8), Some(8)]),
            ("8,9", [Some(8), Some(9), Some(9)]),
            ("8,9,7", [Some(8), Some(9), Some(7)]),
            ("8,", [Some(8), None, None]),
            (",9", [None, Some(9), Some(9)]),
            (",9,", [None, Some(9), None]),
            ("8,,7", [Some(8), None, Some(7)]),
        ] {
            assert_eq!(directions(text), Ok(expected), "{text}");
        }
        for text in ["", ",", ",,", "1,2,3,4", "x"] {
            assert!(directions(text).is_err(), "{text}");
        }
    }

    #[test]
    fn amounts_are_bytes_or_shares() {
        let amount = |text| Value { text, base: KbBase::Binary }.amount();
        assert_eq!(amount("20%"), Ok(Amount::Percent(20)));
        assert_eq!(amount("2k"), Ok(Amount::Bytes(2048)));
        assert!(amount("101%").is_err() && amount("%").is_err());
    }

    fn value(text: &str) -> Value<'_> {
        Value { text, base: KbBase::Binary }
    }

    #[test]
    fn the_number_of_a_pattern_is_a_run_or_a_hole() {
        for (text, expected) in [
            ("read", (Rw::Read, 1, 0)),
            ("randread:8", (Rw::RandRead, 8, 0)),
            ("randrw:4k", (Rw::RandRw, 4096, 0)),
            ("read:4k", (Rw::Read, 1, 4096)),
            ("rw:-8k", (Rw::ReadWrite, 1, -8192)),
        ] {
            assert_eq!(pattern(value(text)), Ok(expected), "{text}");
        }
        for text in ["reed", "randread:0", "randread:-1", "read:x", "read:", "read:9e"] {
            assert!(pattern(value(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn a_range_is_written_either_way_and_may_be_odd() {
        let odd = BlockSize::Range { min: 512, max: 1 << 20 };
        assert_eq!(range(value("512:1M")), Ok(odd.clone()));
        assert_eq!(range(value("512-1M")), Ok(odd));
        assert_eq!(range(value("4k-30k")), Ok(BlockSize::Range { min: 4096, max: 30720 }));
        let sizes = range(value("700-4000")).expect("a range");
        assert_eq!(in_sectors(&sizes), BlockSize::Range { min: 1024, max: 4096 });
        for text in ["4k", "8k-4k", "0-4k", "4k-2g", ":4k"] {
            assert!(range(value(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn distributions_have_centres_and_zones() {
        let percent = |zones: &[(u8, u8)]| Distribution::Zoned(Zones::Percent(zones.to_vec()));
        let bytes = |zones: &[(u8, u64)]| Distribution::Zoned(Zones::Bytes(zones.to_vec()));
        for (text, expected) in [
            ("zipf", Distribution::Zipf(1.1, None)),
            ("zipf:1.2:0.3", Distribution::Zipf(1.2, Some(0.3))),
            ("pareto:0.3:0", Distribution::Pareto(0.3, Some(0.0))),
            ("normal:25:0.5", Distribution::Normal(25.0, Some(0.5))),
            ("zoned:60/10:30/20:8/30:2/40", percent(&[(60, 10), (30, 20), (8, 30), (2, 40)])),
            ("zoned:50/5:50/", percent(&[(50, 5), (50, 95)])),
            ("zoned_abs:60/1m:40/3m", bytes(&[(60, 1 << 20), (40, 3 << 20)])),
        ] {
            assert_eq!(distribution(value(text)), Ok(expected.clone()), "{text}");
            assert_eq!(distribution(value(&expected.to_string())), Ok(expected), "{text}");
        }
        for text in [
            "normal",
            "zipf:1.2:2",
            "zipf:1:2:3",
            "zoned:",
            "zoned:50/5",
            "zoned:60/10:50/90",
            "zoned",
            "zoned:50/50:50/60",
            "zoned_abs:100/",
            "random:1",
            "x",
        ] {
            assert!(distribution(value(text)).is_err(), "{text}");
        }
    }
}
