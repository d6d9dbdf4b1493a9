//! Command lines as text that a shell reads back, for reports and for messages.

/// The words of `blkmq` and this command with `args`, quoted so that a shell reads them back.
pub fn quote(command: &str, args: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+%@".contains(c);
    let mut line = format!("blkmq {command}");
    for arg in args {
        line.push(' ');
        if !arg.is_empty() && arg.chars().all(plain) {
            line.push_str(arg);
        } else {
            line.push_str(&format!("'{}'", arg.replace('\'', r"'\''")));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_quoted_for_a_shell() {
        let args = ["--name=it's", "", "--bs=4k"].map(String::from);
        assert_eq!(quote("bench", &args), r"blkmq bench '--name=it'\''s' '' --bs=4k");
    }
}
