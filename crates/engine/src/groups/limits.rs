//! [`IoMax`]: the limits of a group, spelled as cgroup v2 spells `io.max`.

use std::fmt;

/// Limits per second; `None` is `max`, no limit. The limits of the groups above hold as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoMax {
    /// Bytes read.
    pub rbps: Option<u64>,
    /// Bytes written.
    pub wbps: Option<u64>,
    /// Reads.
    pub riops: Option<u64>,
    /// Writes, discards and writes of zeroes.
    pub wiops: Option<u64>,
}

/// Why a text is no `io.max`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IoMaxError {
    /// The word that was not understood.
    pub word: String,
}

impl fmt::Display for IoMaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "io.max: '{}' is not possible; accepted: rbps=N, wbps=N, riops=N, wiops=N, N a number from 1 or 'max'",
            self.word
        )
    }
}

impl std::error::Error for IoMaxError {}

impl fmt::Display for IoMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            ("rbps", self.rbps),
            ("wbps", self.wbps),
            ("riops", self.riops),
            ("wiops", self.wiops),
        ];
        for (at, (name, limit)) in all.into_iter().enumerate() {
            let gap = if at > 0 { " " } else { "" };
            match limit {
                Some(limit) => write!(f, "{gap}{name}={limit}")?,
                None => write!(f, "{gap}{name}=max")?,
            }
        }
        Ok(())
    }
}

impl IoMax {
    /// Is there any limit?
    #[must_use]
    pub fn is_limited(&self) -> bool {
        *self != Self::default()
    }

    /// These limits with the changes in `text`: pairs like `rbps=1048576 wiops=max`, separated by spaces.
    ///
    /// # Errors
    /// For the first word that is no such pair.
    pub fn set(mut self, text: &str) -> Result<Self, IoMaxError> {
        for word in text.split_whitespace() {
            let refused = || IoMaxError { word: word.into() };
            let (name, value) = word.split_once('=').ok_or_else(refused)?;
            let limit = match value {
                "max" => None,
                number => Some(number.parse().ok().filter(|n| *n > 0).ok_or_else(refused)?),
            };
            *match name {
                "rbps" => &mut self.rbps,
                "wbps" => &mut self.wbps,
                "riops" => &mut self.riops,
                "wiops" => &mut self.wiops,
                _ => return Err(refused()),
            } = limit;
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let max = IoMax::default().set("rbps=1048576 wiops=100").expect("right");
        assert_eq!(max.to_string(), "rbps=1048576 wbps=max riops=max wiops=100");
        assert_eq!(IoMax::default().set(&max.to_string()), Ok(max));
        assert_eq!(max.set("rbps=max wiops=max"), Ok(IoMax::default()));
        assert!(max.is_limited() && !IoMax::default().is_limited());
    }

    #[test]
    fn what_is_wrong_is_said() {
        for bad in
            ["rbps", "rbps=", "rbps=0", "rbps=-1", "rbps=1k", "bps=1", "rbps=18446744073709551616"]
        {
            let error = IoMax::default().set(bad).expect_err(bad).to_string();
            assert!(error.contains(bad) && error.contains("riops=N"), "{error}");
        }
    }
}
