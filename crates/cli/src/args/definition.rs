//! `blkmq bench` and `blkmq sim` as clap commands, generated from the table of options.
//!
//! Help pages, completions and the manual are generated from them. Clap does not parse the command lines: jobs repeat
//! options, and the order of options matters, which clap does not support.

use super::options::{self, Group, Kind, Meaning, Opt};
use crate::devices;
use crate::plan::Time;
use blkmq_terminal::page::Page;
use clap::builder::ValueHint;
use clap::{Arg, ArgAction, Command};

const USAGE: &str = "[OPTION]... [JOB FILE]...";

const BENCH: Page = Page {
    name: "bench",
    summary: "run fio's workloads against several schedulers and compare them",
    description: "\
Options are fio's: --opt=value, --opt value and -opt=value are alike, and job files may be given. Without any argument, \
in some 20 seconds: what every scheduler costs, on the null device with 1, 2 and twice as many threads as cores, and \
what schedulers are for, on a modelled disk and a modelled SSD. A job with neither runtime nor size gets a runtime, so \
that all runs together take some 20 seconds.",
    examples: &[
        "blkmq bench --scheduler=none,mq-deadline --access=combining,spin --threads=1,2 \\\n      \
         --rw=randread --bs=4k --iodepth=32 --runtime=2 --time_based",
        "blkmq bench --device=memory --rw=randwrite --size=64m --iodepth=32 --verify=crc32c",
        "blkmq bench --device=memory --rw=randrw --norandommap --numjobs=4 --size=64m \\\n      \
         --offset_increment=64m --loops=4 --verify=xxhash --verify_backlog=1024",
        "blkmq bench --device=memory --bs=64k --size=1g --verify=pattern \\\n      \
         --verify_pattern='0xfeed%o\"text\"' --name=fill --rw=write --do_verify=0 \\\n      \
         --name=check --stonewall --rw=read",
    ],
};

const SIM: Page = Page {
    name: "sim",
    summary: "the same in virtual time, repeatable bit for bit from a seed",
    description: "\
Runs fio's workloads against several schedulers in virtual time: the queue, the schedulers and the devices are the same \
code as in blkmq bench, the threads are virtual CPUs, and every thread has one of its own. The same seed gives the same \
run, bit for bit, on every machine. What the device takes is simulated; what the CPU takes is assumed, so compare \
schedulers by what they do to the device.

Options are those of blkmq bench. Files and disks of this machine are no devices here. Without any argument: what every \
scheduler does for a reader beside writers and for sequential readers, on a modelled disk and a modelled SSD. A job \
with neither runtime nor size runs for 10 seconds of virtual time.",
    examples: &[
        "blkmq sim --device=null,irqmode=2,hw_queue_depth=1 \\\n      \
         --rw=randrw --iodepth=32 --numjobs=4 --runtime=1 --report=page.html",
        "blkmq sim --scheduler=mq-deadline --rw=write --numjobs=64 --size=16m \\\n      \
         --offset_increment=1g --seed=7 --output-format=json",
    ],
};

/// The end before the end, and the exit codes.
const ENDING: &str = "\
Ctrl-C ends the runs. What was measured until then is printed and written, and marked as partial: in text and on the \
page at the top, in JSON as blkmq.partial, in CSV in the last column. A second Ctrl-C ends the command at once. The exit \
code is then 128, as of fio; else 0, 1 for runs that did not go well or results that could not be written, and 2 for a \
command line that cannot be understood. Results that do not fit on a disk go to standard output.

";

const VERIFYING: &str = "\
Verification needs a device that keeps what is written. Each block of verify_interval bytes begins with a header: which \
block it is, which write of it, and a checksum of the rest. Reading back follows the writes of all passes, whether or \
not the runtime is over. As in fio it counts as reads, in a time of their own; the rates in a comparison and the CPU \
time per I/O are those of the workload alone. Reads of a mix check what the job has written so far; a job \
that only reads checks what an earlier one has written with the same verify, verify_interval and randseed. What is \
trimmed is forgotten, and an I/O to blocks that another one is on its way to waits for it. No other thread may write there \
meanwhile: those that overlap are refused, where fio would find errors. A wrong block is error 84, and exit code 1.

Several names in --scheduler and --device: a word with '=' sets an option of the name before it, as in \
--scheduler=mq-deadline:fifo_batch=8,read_expire=100,none
";

const FILES: &str = "
Where several schedulers, accesses, thread counts or devices are compared, the jobs of the JSON and the files of traces \
and logs have them behind their name, as in fill.mq-deadline and PREFIX.mq-deadline_bw.1.log; with --repeat also the \
repetition, as in PREFIX.none.rep0.blktrace.0. Logs have fio's form; clat is from the push into the queue, so that it has \
the wait in the scheduler in it.
";

/// The longest line of a list.
const WIDTH: usize = 78;

/// The command for runs in `time`.
pub fn definition(time: Time) -> Command {
    let page = if time == Time::Real { BENCH } else { SIM };
    let files = Arg::new("job file").value_name("JOB FILE").num_args(0..);
    let files = files.value_hint(ValueHint::FilePath).help("fio's job files, in their order");
    page.command(&notes(time))
        .override_usage(format!("blkmq {} {USAGE}", page.name))
        .arg(files)
        .args(options::all().filter(|option| is_offered(option, time)).map(arg))
}

/// Returns whether the option is accepted, with an effect or without.
fn is_offered(option: &Opt, time: Time) -> bool {
    let is_built = !matches!(option.meaning, Meaning::Unsupported(_));
    is_built && (option.group != Group::Virtual || time != Time::Real)
}

fn arg(option: &'static Opt) -> Arg {
    let arg = Arg::new(option.name).long(option.name).visible_aliases(option.aliases);
    let arg = match option.kind {
        Kind::Flag => arg.action(ArgAction::SetTrue),
        Kind::Value => valued(arg, option.accepts),
        Kind::Optional => valued(arg, option.accepts).num_args(0..=1),
    };
    let arg = arg.help(option.help).help_heading(option.group.heading());
    match option.meaning {
        // The notes list these by their reasons.
        Meaning::NoOp(why) => arg.help(why).hide(true),
        _ => arg,
    }
}

fn valued(arg: Arg, accepts: &'static str) -> Arg {
    let hint = match accepts {
        "FILE" | "PATH" | "PREFIX" => ValueHint::FilePath,
        _ => ValueHint::Unknown,
    };
    let name = if accepts.is_empty() { "VALUE" } else { accepts };
    arg.value_name(name).value_hint(hint).require_equals(true).action(ArgAction::Append)
}

/// Describes verification, devices, and the options that have no effect or are refused.
fn notes(time: Time) -> String {
    let mut text = format!("{VERIFYING}{FILES}\n{ENDING}");
    text.push_str("Devices, each with a page in blkmq doc:\n");
    text.push_str(&devices::list(|device| device.is_in(time)));
    text.push_str("\nAccepted without effect:\n");
    reasons(&mut text, |meaning| match meaning {
        Meaning::NoOp(why) => Some(why),
        _ => None,
    });
    text.push_str("\nRefused, because it is not built:\n");
    reasons(&mut text, |meaning| match meaning {
        Meaning::Unsupported(why) => Some(why),
        _ => None,
    });
    text
}

/// Lists the names of options, grouped by their common reason, in the order of the table.
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
            if line.len() + name.len() > WIDTH {
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
    fn help_names_every_option_and_the_devices_of_its_time() {
        let help = |time| definition(time).render_help().to_string();
        let (bench, sim) = (help(Time::Real), help(Time::Virtual { seed: 0 }));
        assert!(!bench.contains("--seed=<NUMBER>") && sim.contains("--seed=<NUMBER>"));
        assert!(!sim.contains("uring:PATH"));
        assert_eq!(bench.contains("uring:PATH"), cfg!(target_os = "linux"));
        assert!(bench.contains("faults[,KEY=VALUE]...:DEVICE"));
        for option in options::all().filter(|option| option.group != Group::Virtual) {
            assert!(bench.contains(option.name), "{} is missing", option.name);
            let listed = bench.contains(&format!("      --{}", option.name));
            assert!(listed || option.group == Group::Foreign, "{} is missing", option.name);
        }
    }
}
