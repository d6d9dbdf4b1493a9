//! Every command shown in the README, the help pages and the documentation: a shell runs it as written, and it succeeds
//! within half a minute.
//!
//! The half minute applies to an otherwise idle machine, unlike that of a test: so a command gets half a minute of CPU
//! time, counted by the kernel, and the duration stated by its plan must be at most half a minute.
//!
//! Commands of the server's programs, and of other programs, are run by `cargo xtask interop serve-documented`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The maximum time that a user waits for a documented command, in seconds.
const SECONDS: usize = 30;
/// A command that has not ended after this many seconds hangs, however busy the machine is.
const HANGS: &str = "600";
/// Commands of `blkmq` with pages of help.
const COMMANDS: [&str; 10] = [
    "--help",
    "bench --help",
    "sim --help",
    "replay --help",
    "trace --help",
    "experiment --help",
    "repro --help",
    "doc --help",
    "completions --help",
    "man --help",
];

/// A command of this program, from its first to its last word: comments follow after two spaces.
fn command(line: &str) -> Option<String> {
    let line = line.trim();
    if let Some(words) = line.strip_prefix("cargo run --release -- ") {
        return Some(format!("blkmq {words}"));
    }
    line.starts_with("blkmq ").then(|| line.split("  ").next().unwrap_or(line).to_owned())
}

/// The commands in the lines of a text; a backslash continues a line.
fn of_lines(text: &str) -> Vec<String> {
    let mut whole = String::new();
    for line in text.lines() {
        match line.strip_suffix('\\') {
            Some(line) => whole.push_str(&format!("{} ", line.trim())),
            None if whole.ends_with(' ') => whole.push_str(&format!("{}\n", line.trim())),
            None => whole.push_str(&format!("{line}\n")),
        }
        // A continued command begins at the start of a line.
        if whole.ends_with(' ') && !whole.contains('\n') {
            whole.insert(0, '\n');
        }
    }
    whole.lines().filter_map(command).collect()
}

/// The commands of a page in Markdown: lines of its blocks.
fn of_page(text: &str) -> Vec<String> {
    let blocks = text.split("```").skip(1).step_by(2);
    blocks.flat_map(of_lines).collect()
}

/// Like the above, including words in backticks, which may span lines. On pages other than the README these are names.
fn of_readme(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, block) in text.split("```").enumerate() {
        if number % 2 == 1 {
            found.extend(of_lines(block));
        } else {
            let inline = block.split('`').skip(1).step_by(2).map(|it| it.replace('\n', " "));
            // A command without arguments is a name.
            found.extend(inline.filter(|it| it.contains(" --")).filter_map(|it| command(&it)));
        }
    }
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md")];
    let crates = std::fs::read_dir(root().join("crates")).expect("it can be read");
    let docs = crates.map(|it| it.expect("it can be read").path().join("doc"));
    for folder in docs.chain([root().join("docs")]).filter(|it| it.is_dir()) {
        let files = std::fs::read_dir(folder).expect("it can be read");
        let files = files.map(|it| it.expect("it can be read").path());
        pages.extend(files.filter(|it| it.extension().is_some_and(|it| it == "md")));
    }
    pages.sort();
    pages
}

/// All documented commands, in an order in which each finds the files of earlier ones.
fn shown() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("text");
        all.extend(if page.ends_with("README.md") { of_readme(&text) } else { of_page(&text) });
    }
    for words in COMMANDS {
        let mut help = Command::new(crate::program());
        let output = help.args(words.split(' ')).env("COLUMNS", "200").output().expect("it starts");
        let text = String::from_utf8(output.stdout).expect("text");
        let (_, examples) = text.split_once("\nExamples:\n").expect("there are some");
        all.extend(of_lines(examples));
    }
    all
}

/// Words of commands that are not run here, and why.
const ELSEWHERE: [(&str, &str); 6] = [
    ("nbd://", "needs a server of NBD; the checks remote-* of cargo xtask interop"),
    ("--device=rbd:", "needs a cluster of Ceph; the checks rbd-* of cargo xtask interop"),
    ("/usr/local/", "installs a file there"),
    ("~/.local/", "installs a file there"),
    ("~/.zfunc/", "installs a file there"),
    ("~/.config/", "installs a file there"),
];

fn is_elsewhere(line: &str) -> bool {
    ELSEWHERE.iter().any(|(words, _)| line.contains(words))
}

/// A program in the command that this machine lacks.
fn lacks(line: &str) -> Option<&'static str> {
    let program = line.contains("man -l").then_some("man")?;
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    (!found.is_ok_and(|output| output.status.success())).then_some(program)
}

/// Returns whether the command measures real time. Its threads may use all CPUs for the stated duration.
fn is_timed(line: &str) -> bool {
    line.starts_with("blkmq bench")
}

/// Runs a line in `folder`, with a limit of `seconds` of CPU time. An error describes the failure.
fn output_of(line: &str, folder: &Path, seconds: usize) -> Result<String, String> {
    let command = line.replace("blkmq ", "\"$BLKMQ\" ");
    let script = format!("ulimit -t {seconds}; {command}");
    let mut shell = Command::new("timeout");
    shell.args([HANGS, "sh", "-c", &script]).current_dir(folder).env("BLKMQ", crate::program());
    let output = shell.output().expect("timeout and a shell are there");
    let errors = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Some(124) => Err(format!("{line}: not within {HANGS} s")),
        // The kernel kills a process that exceeds its limit; either the shell reports it, or it was the shell.
        Some(137) | None => Err(format!("{line}: not within {seconds} s of CPU time")),
        code => Err(format!("{line}: {code:?}: {errors}")),
    }
}

/// Creates the files that commands name.
fn provide(folder: &Path) {
    let put = |name: &str, text: String| std::fs::write(folder.join(name), text).expect("room");
    let row =
        |at: u64| (at * 10, if at.is_multiple_of(3) { "write" } else { "read" }, at % 97 * 8192);
    let rows = || (0..2_000).map(row);
    let head = String::from("time_ns,op,offset,size,tenant,volume,class,latency_ns\n");
    let trace = rows().map(|(us, op, offset)| {
        format!(
            "{us}000,{op},{offset},4096,{},v,none,\n",
            if us.is_multiple_of(20) { "a" } else { "b" }
        )
    });
    put("trace.csv", trace.fold(head, |text, row| text + &row));
    put("own.csv", rows().map(|(us, op, offset)| format!("{us},{op},{offset},4096\n")).collect());
    let study = "options = { device = 'flash', rw = 'randread', size = '4m' }\n\
                 [grid]\nscheduler = ['none', 'bfq']\nseed = '1..6'\n";
    put("study.toml", study.into());
    // A log is that of the example above its replay, and shards are put together when all of them are there.
    let log = "blkmq sim --scheduler=mq-deadline --rw=randrw --size=64m --elevator-log=run.log";
    let shards =
        [1, 2, 3].map(|i| format!("blkmq experiment study.toml --shard={i}/3 --out=results"));
    let zipped = "gzip --keep trace.csv".to_owned();
    for line in shards.into_iter().chain([log.into(), zipped]) {
        carry_out(&line, folder).expect("a file that commands name");
    }
}

/// Runs a line in `folder`; an error describes the failure.
fn carry_out(line: &str, folder: &Path) -> Result<(), String> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    output_of(line, folder, if is_timed(line) { SECONDS * cpus } else { SECONDS }).map(drop)
}

/// The maximum duration stated by a plan, in seconds; `None` if it ends with its I/O.
fn stated(plan: &str) -> Option<f64> {
    let words = plan.split_whitespace().collect::<Vec<_>>();
    let end = words.windows(3).find(|words| words[1..] == ["in", "all."])?;
    let (digits, unit) = end[0].split_at(end[0].find(|c: char| c.is_ascii_alphabetic())?);
    let scale = match unit {
        "s" => 1.0,
        "ms" => 1e-3,
        _ => 1e-6,
    };
    Some(digits.parse::<f64>().ok()? * scale)
}

#[test]
fn commands_are_found_as_they_are_written() {
    let text = "Run `blkmq sim\n--seed=1` or `blkmq bench`.\n```\nblkmq doc none     a page\n  blkmq bench \\\n      --rw=read\n```";
    assert_eq!(of_page(text), ["blkmq doc none", "blkmq bench --rw=read"]);
    assert_eq!(of_readme(text), ["blkmq sim --seed=1", "blkmq doc none", "blkmq bench --rw=read"]);
    let all = shown();
    for line in ["blkmq bench", "blkmq replay run.log", "blkmq doc attributes"] {
        assert!(all.contains(line), "{line} is missing in {all:#?}");
    }
    let readme = "blkmq bench --scheduler none,mq-deadline --access combining,spin --threads 1,2 --rw=randread --bs=4k \
                  --iodepth=32";
    assert!(all.contains(readme), "{all:#?}");
    assert!(all.iter().filter(|line| !is_elsewhere(line)).count() > 15);
    for (words, why) in ELSEWHERE {
        assert!(all.iter().any(|line| line.contains(words)), "{words}: no command has it: {why}");
    }
}

/// Includes commands that measure for seconds; they run one after the other, since each needs the whole machine.
#[test]
#[ignore = "long; cargo xtask soak runs it"]
fn every_command_that_is_shown_ends_well_within_half_a_minute() {
    let folder = tempfile::tempdir().expect("a folder");
    provide(folder.path());
    let all = shown();
    let mut wrong = Vec::new();
    for line in all.iter().filter(|line| !is_elsewhere(line)) {
        match lacks(line) {
            Some(program) => println!("SKIP {line}: {program} is not installed"),
            None => wrong.extend(carry_out(line, folder.path()).err()),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// At least the options of every documented command are accepted: commands that measure are only planned, and the plan
/// states the duration.
#[test]
fn every_command_that_is_shown_is_understood() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut timed = 0;
    for line in shown().iter().filter(|line| !is_elsewhere(line)) {
        let measures = ["blkmq bench", "blkmq sim"].iter().any(|word| line.starts_with(word));
        let quick = ["blkmq doc ", "blkmq help "].iter().any(|word| line.starts_with(word));
        if !measures && !quick {
            continue;
        }
        let line = if measures { format!("{line} --dry-run") } else { line.clone() };
        let plan = output_of(&line, folder.path(), SECONDS).expect("it is understood");
        if is_timed(&line)
            && let Some(takes) = stated(&plan)
        {
            assert!(takes <= SECONDS as f64, "{line}: {takes} s");
            timed += 1;
        }
    }
    assert!(timed >= 3, "{timed} commands say how long they take");
}

/// The limits of the kernel and of the program are effective.
#[test]
fn a_command_that_takes_too_long_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let spin = output_of("while :; do :; done", folder.path(), 1).expect_err("it does not end");
    assert!(spin.contains("not within 1 s of CPU time"), "{spin}");
    let plan = |words: &str| {
        let line = format!("blkmq bench --rw=read --size=1m {words} --dry-run");
        stated(&output_of(&line, folder.path(), SECONDS).expect("a plan"))
    };
    assert_eq!(plan("--time_based --runtime=9 --scheduler=none,bfq --repeat=2"), Some(36.0));
    assert_eq!(plan("--time_based --runtime=250ms --scheduler=none"), Some(0.25));
    assert_eq!(plan("--scheduler=none"), None);
}

#[test]
fn a_file_of_text_has_a_page_beside_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = "blkmq bench --scheduler=none --rw=read --size=1m --output=results.txt";
    carry_out(line, folder.path()).expect("it ends well");
    let read = |name| std::fs::read_to_string(folder.path().join(name)).expect("it is written");
    assert!(read("results.txt").contains("IOPS=") && read("results.txt.html").contains("<svg"));
}
