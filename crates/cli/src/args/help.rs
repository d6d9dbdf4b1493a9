//! `blkmq bench --help`, made from the table of options.

use super::options::{self, Group, Kind, Meaning, Opt};

const HEAD: &str = "\
usage: blkmq bench [OPTION]... [JOB FILE]...

Runs fio's workloads against several schedulers and compares them. Options are fio's: --opt=value,
--opt value and -opt=value are alike, and job files may be given. Without any argument, every scheduler
is compared on the null device with 1, 2 and twice as many threads as cores.
";

/// A heading and its options.
const GROUPS: [(Group, &str); 5] = [
    (Group::Jobs, "Jobs"),
    (Group::Pattern, "Pattern"),
    (Group::Load, "Load and time"),
    (Group::Compare, "What is compared"),
    (Group::Output, "Output"),
];

/// The whole text.
pub fn help() -> String {
    let mut text = String::from(HEAD);
    for (group, heading) in GROUPS {
        text.push_str(&format!("\n{heading}:\n"));
        options::all().filter(|option| option.group == group).for_each(|o| text.push_str(&line(o)));
    }
    text.push_str(
        "\nSeveral names in --scheduler and --device: a word with '=' sets an option of the name",
    );
    text.push_str("\nbefore it, as in --scheduler=mq-deadline:fifo_batch=8,read_expire=100,none\n");
    let no_op = |meaning: Meaning| match meaning {
        Meaning::NoOp(why) => Some(why),
        _ => None,
    };
    let not_built = |meaning: Meaning| match meaning {
        Meaning::Unsupported(why) => Some(why),
        _ => None,
    };
    text.push_str("\nAccepted without effect:\n");
    reasons(&mut text, no_op);
    text.push_str("\nRefused, because it is not built:\n");
    reasons(&mut text, not_built);
    text
}

fn line(option: &Opt) -> String {
    let value =
        if option.kind == Kind::Flag { String::new() } else { format!("={}", option.accepts) };
    let spelling = format!("--{}{value}", option.name);
    let aliases = if option.aliases.is_empty() {
        String::new()
    } else {
        format!(" [also {}]", option.aliases.join(", "))
    };
    if spelling.len() > 36 {
        format!("  {spelling}\n  {:36}  {}{aliases}\n", "", option.help)
    } else {
        format!("  {spelling:36}  {}{aliases}\n", option.help)
    }
}

/// Lists names under the reason that they share, in the order of the table.
fn reasons(text: &mut String, reason: impl Fn(Meaning) -> Option<&'static str>) {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for option in options::all() {
        let Some(why) = reason(option.meaning) else { continue };
        match groups.iter_mut().find(|(known, _)| *known == why) {
            Some((_, names)) => names.push(option.name),
            None => groups.push((why, vec![option.name])),
        }
    }
    for (why, names) in groups {
        text.push_str(&format!("  {why}:\n"));
        let mut line = String::from("   ");
        for name in names {
            if line.len() + name.len() > 98 {
                text.push_str(&line);
                text.push('\n');
                line = String::from("   ");
            }
            line.push_str(&format!(" {name}"));
        }
        text.push_str(&line);
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_named_and_no_line_is_too_long() {
        let text = help();
        for option in options::all() {
            assert!(text.contains(option.name), "{} is missing", option.name);
        }
        for line in text.lines() {
            assert!(line.len() <= 120, "{line}");
        }
    }
}
