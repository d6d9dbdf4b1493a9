//! The grammar of `--scheduler`: names with options, several in one list.
//!
//! ```text
//! list  = word { "," word }
//! word  = name [ ":" pair ] | pair
//! pair  = key "=" value
//! ```
//!
//! A word that contains `=` before any `:` sets an option of the preceding name; any other word is a name. So
//! `mq-deadline:fifo_batch=8,read_expire=100,none` and `bfq,slice_idle=0` need no quoting: names do not contain `=`,
//! and every option has one.

use crate::error::UsageError;

/// A name and its options, as written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    /// The name of the scheduler or access.
    pub name: String,
    /// Options in the order given.
    pub params: Vec<(String, String)>,
}

/// Reads a list of names with options.
///
/// # Errors
/// If a word is empty, or an option comes before any name or lacks its key.
pub fn parse(text: &str) -> Result<Vec<Spec>, UsageError> {
    const ACCEPTED: &str = "NAME[:KEY=VALUE[,KEY=VALUE]...][,NAME...]";
    let refuse = |what: &str| UsageError::new(format!("{what}; accepted: {ACCEPTED}"));
    let mut specs: Vec<Spec> = Vec::new();
    for word in text.split(',').map(str::trim) {
        let pair = match (word.find(':'), word.find('=')) {
            (Some(colon), equals) if equals.is_none_or(|equals| colon < equals) => {
                specs.push(Spec { name: word[..colon].trim().into(), params: Vec::new() });
                word[colon + 1..].trim()
            }
            (_, Some(_)) => word,
            (_, None) => {
                specs.push(Spec { name: word.into(), params: Vec::new() });
                ""
            }
        };
        let last = specs.last_mut().ok_or_else(|| refuse(&format!("'{pair}' before any name")))?;
        if last.name.is_empty() {
            return Err(refuse("a name is missing"));
        }
        if let Some((key, value)) = pair.split_once('=') {
            if key.trim().is_empty() {
                return Err(refuse(&format!("'{pair}' has no key")));
            }
            last.params.push((key.trim().into(), value.trim().into()));
        } else if !pair.is_empty() {
            return Err(refuse(&format!("'{pair}' is no option")));
        }
    }
    Ok(specs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(text: &str) -> String {
        let specs = parse(text).expect(text);
        let one = |spec: &Spec| {
            let params = spec.params.iter().map(|(key, value)| format!("{key}={value}"));
            format!("{}({})", spec.name, Vec::from_iter(params).join(" "))
        };
        Vec::from_iter(specs.iter().map(one)).join(" ")
    }

    #[test]
    fn a_word_without_equals_begins_the_next_name() {
        assert_eq!(printed("none"), "none()");
        assert_eq!(printed("none,mq-deadline"), "none() mq-deadline()");
        assert_eq!(
            printed("bfq:slice_idle=0,low_latency=0,none"),
            "bfq(slice_idle=0 low_latency=0) none()"
        );
        assert_eq!(printed("bfq,slice_idle=4,low_latency=64"), "bfq(slice_idle=4 low_latency=64)");
        assert_eq!(printed("a:b=1:2,none"), "a(b=1:2) none()");
        assert_eq!(printed(" none : a=1 , b=2 "), "none(a=1 b=2)");
    }

    #[test]
    fn what_does_not_fit_the_grammar_shows_it() {
        for text in ["", ",none", "none,", "a=1", "none:=1", "none:word", ":a=1", "none,,none"] {
            let message = parse(text).expect_err(text).to_string();
            assert!(message.contains("accepted: NAME["), "{message}");
        }
    }
}
