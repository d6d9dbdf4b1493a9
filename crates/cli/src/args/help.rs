//! `blkmq bench --help` and `blkmq sim --help`, made from the table of options.

use super::options::{self, Group, Kind, Meaning, Opt};
use crate::devices;
use crate::plan::Time;

const BENCH: &str = "\
usage: blkmq bench [OPTION]... [JOB FILE]...

Runs fio's workloads against several schedulers and compares them. Options are fio's: --opt=value,
--opt value and -opt=value are alike, and job files may be given. Without any argument, every scheduler
is compared on the null device with 1, 2 and twice as many threads as cores.
";

const SIM: &str = "\
usage: blkmq sim [OPTION]... [JOB FILE]...

Runs fio's workloads against several schedulers in virtual time: the queue, the schedulers and the devices
are the same code as in blkmq bench, the threads are virtual CPUs, and every thread has one of its own. The
same seed gives the same run, bit for bit, on every machine. What the device takes is simulated; what the CPU
takes is assumed, so compare schedulers by what they do to the device. Options are those of blkmq bench.
Files and disks of this machine are no devices here. Without any argument, every scheduler is compared on the
null device with 1, 2 and 8 threads.

  blkmq sim --device=null,irqmode=2,completion_nsec=100000,hw_queue_depth=1 --rw=randrw --iodepth=32
            --numjobs=4 --runtime=1 --time_based --report=page.html
  blkmq sim --scheduler=mq-deadline --rw=write --numjobs=64 --offset_increment=1g --size=16m --seed=7
            --output-format=json
";

/// A heading and its options.
const GROUPS: [(Group, &str); 7] = [
    (Group::Jobs, "Jobs"),
    (Group::Pattern, "Pattern"),
    (Group::Load, "Load and time"),
    (Group::Verify, "Verification"),
    (Group::Compare, "What is compared"),
    (Group::Virtual, "Virtual time"),
    (Group::Output, "Output"),
];

const VERIFYING: &str = "
Verification needs a device that keeps what is written. Each block of verify_interval bytes begins with
a header: which block it is, which write of it, and a checksum of the rest. Reading back follows the
writes of all passes, whether or not the runtime is over; it is in no figure but its own. Reads of a mix
check what the job has written so far; a job that only reads checks what an earlier one has written with
the same verify, verify_interval and randseed. What is trimmed is forgotten, and an I/O to blocks that
another one is on its way to waits for it. Nobody else may write there meanwhile: threads that overlap
are refused, where fio would find errors. A wrong block is error 84, and exit code 1.

  blkmq bench --device=memory --rw=randwrite --bs=4k --size=64m --iodepth=32 --verify=crc32c
  blkmq bench --device=memory --rw=randrw --norandommap --numjobs=4 --size=64m --offset_increment=64m
              --loops=4 --verify=xxhash --verify_backlog=1024 --verify_fatal
  blkmq bench --device=memory --bs=64k --size=1g --verify=pattern --verify_pattern='0xfeed%o\"text\"'
              --name=fill --rw=write --do_verify=0 --name=check --stonewall --rw=read
";

/// The whole text.
pub fn help(time: Time) -> String {
    let mut text = String::from(if time == Time::Real { BENCH } else { SIM });
    let shown = |(group, _): &(Group, _)| *group != Group::Virtual || time != Time::Real;
    for (group, heading) in GROUPS.into_iter().filter(shown) {
        text.push_str(&format!("\n{heading}:\n"));
        options::all().filter(|option| option.group == group).for_each(|o| text.push_str(&line(o)));
    }
    text.push_str(VERIFYING);
    text.push_str(
        "\nSeveral names in --scheduler and --device: a word with '=' sets an option of the name",
    );
    text.push_str("\nbefore it, as in --scheduler=mq-deadline:fifo_batch=8,read_expire=100,none\n");
    text.push_str("\nDevices, each with a page in blkmq doc:\n");
    for device in devices::offers().into_iter().filter(|device| device.is_in(time)) {
        text.push_str(&format!("  {}\n      {}\n", device.form, device.summary));
    }
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

/// Lists the names of options under the reason that they share, in the order of the table.
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
        let (text, sim) = (help(Time::Real), help(Time::Virtual { seed: 0 }));
        assert!(!text.contains("--seed") && sim.contains("--seed"));
        assert!(text.contains("uring:PATH") != sim.contains("uring:PATH"));
        for option in options::all().filter(|option| option.group != Group::Virtual) {
            assert!(text.contains(option.name), "{} is missing", option.name);
        }
        assert!(text.contains("faults[,KEY=VALUE]...:DEVICE"));
        for line in text.lines().chain(sim.lines()) {
            assert!(line.len() <= 120, "{line}");
        }
    }
}
