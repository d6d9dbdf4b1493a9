//! The arguments of a measurement in rounds: `[ROUNDS [SECONDS]]`.

use crate::Result;

/// The size of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rounds {
    pub(crate) rounds: u32,
    /// Seconds of a run.
    pub(crate) seconds: u32,
}

impl Rounds {
    /// The size given by `args`; `self` has the defaults. `None` if they ask for `help`, which is printed.
    ///
    /// # Errors
    /// If an argument is not a number of at least 1, or there are too many.
    pub(crate) fn or(self, args: &[String], help: &str) -> Result<Option<Self>> {
        let number = |text| number(text).map_err(|error| format!("{error}\n{help}"));
        Ok(match args {
            [] => Some(self),
            [word] if word == "--help" => {
                println!("{help}");
                None
            }
            [rounds] => Some(Self { rounds: number(rounds)?, ..self }),
            [rounds, seconds] => Some(Self { rounds: number(rounds)?, seconds: number(seconds)? }),
            _ => return Err(help.into()),
        })
    }
}

/// A number of rounds or seconds, at least 1.
///
/// # Errors
/// If it is none.
pub(crate) fn number(text: &str) -> Result<u32> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("'{text}' is no number from 1 on").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_and_refused() {
        let size = Rounds { rounds: 5, seconds: 6 };
        let read = |line: &str| {
            let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            size.or(&args, "usage")
        };
        assert_eq!(read("").unwrap(), Some(size));
        assert_eq!(read("2").unwrap(), Some(Rounds { rounds: 2, ..size }));
        assert_eq!(read("2 3").unwrap(), Some(Rounds { rounds: 2, seconds: 3 }));
        assert_eq!(read("--help").unwrap(), None);
        for line in ["0", "x", "1 x", "1 2 3"] {
            assert!(read(line).unwrap_err().to_string().contains("usage"), "{line}");
        }
    }
}
