//! Numbers of a row: unsigned, with a fraction if the unit allows it, and exact.

use crate::error::{Fault, shown};

/// The most digits of a number that always fits.
const MOST_DIGITS: usize = 19;

/// Parses a whole number.
#[inline]
pub(crate) fn whole(field: &'static str, text: &[u8]) -> Result<u64, Fault> {
    digits(text).map_or_else(|| slowly(field, text), Ok)
}

/// Like [`whole`], one digit at a time, with a separate fault for a number that is too large.
#[cold]
fn slowly(field: &'static str, text: &[u8]) -> Result<u64, Fault> {
    let mut value: u64 = 0;
    if text.is_empty() {
        return Err(bad(field, text));
    }
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(bad(field, text));
        }
        let next = value.checked_mul(10).and_then(|value| value.checked_add(digit.into()));
        value = next.ok_or_else(|| range(field, text))?;
    }
    Ok(value)
}

/// Parses `text` if it has only digits, and few enough to fit. Takes eight at a time: most of a row is digits.
#[inline]
fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > MOST_DIGITS {
        return None;
    }
    let (first, eights) = text.as_rchunks::<8>();
    let mut value: u64 = 0;
    for byte in first {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + u64::from(digit);
    }
    for eight in eights {
        value = value * 100_000_000 + eight_digits(u64::from_le_bytes(*eight))?;
    }
    Some(value)
}

/// Parses eight digits, the first one in the lowest byte.
fn eight_digits(text: u64) -> Option<u64> {
    const ZEROES: u64 = 0x3030_3030_3030_3030;
    // The high nibble of a digit is 3, and stays so after adding 6 only if the low nibble is at most 9.
    let has_threes = |bytes: u64| bytes & 0xF0F0_F0F0_F0F0_F0F0 == ZEROES;
    if !has_threes(text) || !has_threes(text.wrapping_add(0x0606_0606_0606_0606)) {
        return None;
    }
    let ones = text - ZEROES;
    let pairs = (ones * 10 + (ones >> 8)) & 0x00FF_00FF_00FF_00FF;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_FFFF_0000_FFFF;
    Some((fours * 10_000 + (fours >> 32)) & 0xFFFF_FFFF)
}

/// Parses a number, which may have a fraction, and multiplies it by `unit`. The fraction of the product is truncated.
#[inline]
pub(crate) fn scaled(field: &'static str, text: &[u8], unit: u64) -> Result<u64, Fault> {
    let times = digits(text).and_then(|value| value.checked_mul(unit));
    times.map_or_else(|| with_fraction(field, text, unit), Ok)
}

fn with_fraction(field: &'static str, text: &[u8], unit: u64) -> Result<u64, Fault> {
    let Some(dot) = text.iter().position(|byte| *byte == b'.') else {
        let times = whole(field, text)?.checked_mul(unit);
        return times.ok_or_else(|| range(field, text));
    };
    let (before, after) = (&text[..dot], &text[dot + 1..]);
    if before.is_empty() && after.is_empty() {
        return Err(bad(field, text));
    }
    let before = if before.is_empty() { 0 } else { whole(field, before)? };
    // 18 digits are finer than any unit.
    let (kept, cut) = after.split_at(after.len().min(18));
    if !cut.iter().all(u8::is_ascii_digit) {
        return Err(bad(field, text));
    }
    let fraction = if kept.is_empty() { 0 } else { whole(field, kept)? };
    let tens = 10u128.pow(kept.len() as u32);
    let fraction = u128::from(fraction) * u128::from(unit) / tens;
    let sum = before.checked_mul(unit).and_then(|it| it.checked_add(fraction as u64));
    sum.ok_or_else(|| range(field, text))
}

fn bad(field: &'static str, text: &[u8]) -> Fault {
    let digits = text.strip_prefix(b"-").filter(|rest| !rest.is_empty());
    let is_number = |rest: &[u8]| rest.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    let text = shown(text);
    match digits {
        Some(rest) if is_number(rest) => Fault::Negative { field, text },
        _ => Fault::Number { field, text },
    }
}

fn range(field: &'static str, text: &[u8]) -> Fault {
    Fault::Range { field, text: shown(text) }
}

/// Parses a date such as `2024-05-01 12:34:56.789`, or with `T` in the middle. Returns nanoseconds since 1970; a time
/// zone is not read.
pub(crate) fn date(field: &'static str, text: &[u8]) -> Result<u64, Fault> {
    let bad = || Fault::Number { field, text: shown(text) };
    let part = |from: usize, to: usize| whole(field, text.get(from..to).ok_or_else(bad)?);
    let shape = text.len() >= 19 && matches!(text[10], b' ' | b'T');
    if !shape || text[4] != b'-' || text[7] != b'-' || text[13] != b':' || text[16] != b':' {
        return Err(bad());
    }
    let (year, month, day) = (part(0, 4)?, part(5, 7)?, part(8, 10)?);
    let (hour, minute) = (part(11, 13)?, part(14, 16)?);
    let seconds = scaled(field, &text[17..], 1_000_000_000)?;
    let fits =
        (1970..=2500).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !fits || hour > 23 || minute > 59 || seconds > 60_999_999_999 {
        return Err(bad());
    }
    // Days of the civil calendar, with years that begin in March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    let whole = ((days * 24 + hour) * 60 + minute) * 60;
    whole.checked_mul(1_000_000_000).and_then(|it| it.checked_add(seconds)).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_exact_and_what_is_finer_is_cut() {
        let ns = |text: &str| scaled("time", text.as_bytes(), 1_000_000_000);
        assert_eq!(ns("1538323200.123456789"), Ok(1_538_323_200_123_456_789));
        assert_eq!(ns("0.0000000019"), Ok(1));
        assert_eq!(ns(".5"), Ok(500_000_000));
        assert_eq!(ns("7."), Ok(7_000_000_000));
        assert!(matches!(ns("-1.5"), Err(Fault::Negative { .. })));
        assert!(matches!(ns("18446744074"), Err(Fault::Range { .. })));
        for text in ["", ".", "1e3", "-", "1.2.3", "0x1", "1.0000000000000000000x"] {
            assert!(matches!(ns(text), Err(Fault::Number { .. })), "{text}");
        }
    }

    #[test]
    fn eight_digits_are_as_one_at_a_time() {
        for value in [0, 7, 12_345_678, 99_999_999, 123_456_789_012_345_678, u64::MAX] {
            assert_eq!(whole("size", value.to_string().as_bytes()), Ok(value));
            assert_eq!(whole("size", format!("{value:019}").as_bytes()), Ok(value));
        }
        assert!(matches!(whole("size", b"18446744073709551616"), Err(Fault::Range { .. })));
        // Tries every byte that is not a digit at each of the eight positions.
        for place in 0..8 {
            for byte in (0..=u8::MAX).filter(|byte| !byte.is_ascii_digit()) {
                let mut text = *b"12345678";
                text[place] = byte;
                assert!(whole("size", &text).is_err(), "{text:?}");
            }
        }
    }

    #[test]
    fn dates_count_from_1970() {
        assert_eq!(date("time", b"1970-01-01 00:00:00"), Ok(0));
        assert_eq!(date("time", b"2024-02-29T12:00:00.5"), Ok(1_709_208_000_500_000_000));
        for text in
            ["2024-13-01 00:00:00", "2024-01-01", "2024-01-01 24:00:00", "abcd-ef-gh ij:kl:mn"]
        {
            assert!(date("time", text.as_bytes()).is_err(), "{text}");
        }
    }
}
