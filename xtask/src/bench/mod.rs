//! `bench`: the project's comparisons, and their results on this machine.
//!
//! Four experiments. *Contention*: one mq-deadline or bfq for all threads, shared by spin lock, by mutex and by
//! combining, with the load of the published figures; *plugs*: the same with larger plugs, for mq-deadline. *Per
//! queue*: an mq-deadline for each of as many hardware queues as cores, compared with none. *Alone*: one thread through
//! the whole block layer, alternating with fio's null engine, which has no block layer. Figures are ratios within one
//! run on one machine; both sides are named.
//!
//! No step fails because a figure is low: machines differ and neighbours disturb. A benchmark that does not run, or
//! that counts no I/O, does fail.

mod instructions;
mod pairs;
mod report;
pub(super) mod threads;

use crate::Result;
use crate::measurement::Machine;
use crate::shell::{BLKMQ, Cmd, build, build_program, is_installed, parse_json};
use report::{Cell, Figures, Fio, Workload};
use std::path::PathBuf;

pub(crate) const HELP: &str = "usage: cargo xtask bench [--test-size] [--out DIR]
       cargo xtask bench --pairs [--rounds N] [--before BLKMQ]
       cargo xtask bench --threads [OPTION]...
       cargo xtask bench --layers [OPTION]...
       cargo xtask bench --instructions [--bless]

  --test-size        every benchmark once, small; its figures mean nothing
  --out DIR          the folder of the results (bench/results)
  --pairs            two sides in turns, and the ratio of each pair of runs
  --rounds N         the table has medians over so many pairs (11)
  --before BLKMQ     an earlier build, which is compared as well
  --threads          many threads on one file, beside fio's io_uring engine
  --layers           a stripe of two files, beside the files
  --instructions     instructions for an I/O, counted by valgrind
  --bless            write the counts down

of --threads:
  --rows LIST        threads and depths, as in 1x1,4x32 (1, 2, 4, 8, 16, 64 threads at depths 1, 8, 32)
  --schedulers LIST  as in none,bfq (none,mq-deadline,kyber,bfq,mclock)
  --rounds N         the table has medians over so many rounds (7)
  --seconds N        each run takes so long (2)
  --busy             two busy loops beside every run
  --write            random writes instead of reads
  --both             random reads, and then random writes
  --file PATH        a file of 1 GiB or more, or a block device; writes overwrite it (a file that is made in the build
                     folder, and removed)
  --loop             a loop device over a file on tmpfs, made for the measurement; needs root
  --blkmq PROGRAM    measure this program, and build none

of --layers: --rounds, --seconds and --blkmq, as above";

/// `cargo xtask bench`, see [`HELP`].
///
/// # Errors
/// If a benchmark cannot be run or read, or the results cannot be written.
pub(crate) fn main(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg == "--help") {
        println!("{HELP}");
        return Ok(());
    }
    let options = Options::parse(args)?;
    if let Some(plan) = &options.threads {
        if plan.builds() {
            build_program()?;
        }
        return threads::main(plan);
    }
    if let Some(plan) = &options.layers {
        if plan.builds() {
            build_program()?;
        }
        return threads::layers(plan);
    }
    if let Some(bless) = options.instructions {
        return instructions::main(bless);
    }
    build()?;
    if let Some(size) = &options.pairs {
        return pairs::main(size);
    }
    let machine = Machine::describe();
    let plan = if options.test_size { Plan::test_size() } else { Plan::full(machine.cores) };
    let figures = measure(&plan)?;
    let markdown = report::markdown(&machine, &plan, &figures);
    println!("\n{markdown}");
    if options.test_size {
        pairs::main(&pairs::Size::test_size())?;
        threads::main(&threads::Plan::test_size())?;
        threads::layers(&threads::Plan::layers_at_test_size())?;
        println!("bench: every benchmark ran (test size, nothing written)");
        return Ok(());
    }
    std::fs::create_dir_all(&options.out)?;
    let stem = options.out.join(format!("{}-{}", machine.slug(), machine.date));
    let json = serde_json::to_string_pretty(&report::json(&machine, &plan, &figures))?;
    std::fs::write(stem.with_extension("json"), json + "\n")?;
    std::fs::write(stem.with_extension("md"), markdown)?;
    println!("bench: written to {}.json and .md", stem.display());
    Ok(())
}

/// Runs every command of the plan and collects the rates.
fn measure(plan: &Plan) -> Result<Figures> {
    let mut figures = Figures::default();
    for (workload, cmd) in plan.together() {
        run(workload, &cmd, &mut figures)?;
    }
    if !is_installed("fio") {
        println!("fio is not installed: SKIPPED the comparison with it");
    }
    // Alternating, so that a drift of the machine's speed affects both sides.
    for _ in 0..plan.repetitions {
        for scheduler in SCHEDULERS {
            run(Workload::Alone, &plan.alone(scheduler), &mut figures)?;
            for fio in Fio::ALL.into_iter().filter(|_| is_installed("fio")) {
                let report = parse_json(&shown(&plan.fio(fio))?)?;
                figures.add_fio(&Cell::fio_beside(scheduler, fio), &report)?;
            }
        }
    }
    Ok(figures)
}

fn run(workload: Workload, cmd: &Cmd, figures: &mut Figures) -> Result<()> {
    figures.add_ours(workload, &parse_json(&shown(cmd)?)?)
}

fn shown(cmd: &Cmd) -> Result<String> {
    println!("$ {cmd}");
    cmd.output()
}

struct Options {
    test_size: bool,
    out: PathBuf,
    /// Instructions are counted instead; and whether they are written down.
    instructions: Option<bool>,
    /// Pairs of runs are taken instead.
    pairs: Option<pairs::Size>,
    /// Many threads on one file are measured instead.
    threads: Option<threads::Plan>,
    /// A layer is measured instead.
    layers: Option<threads::Plan>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let out = crate::shell::root().join("bench/results");
        let (threads, layers) = (None, None);
        let mut options =
            Self { test_size: false, out, instructions: None, pairs: None, threads, layers };
        match args.split_first().map(|(first, rest)| (first.as_str(), rest)) {
            Some(("--threads", rest)) => {
                options.threads = Some(threads::Plan::parse(rest)?);
                return Ok(options);
            }
            Some(("--layers", rest)) => {
                options.layers = Some(threads::parse_layers(rest)?);
                return Ok(options);
            }
            _ => {}
        }
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--test-size" => options.test_size = true,
                "--instructions" => options.instructions = Some(false),
                "--bless" if options.instructions.is_some() => options.instructions = Some(true),
                "--pairs" => options.pairs = Some(pairs::Size::full()),
                "--rounds" | "--before" => options.of_pairs(arg, args.next())?,
                "--out" => options.out = args.next().ok_or("--out needs a folder")?.into(),
                "--threads" | "--layers" => {
                    return Err(format!("{arg} comes first, with its options behind it").into());
                }
                other => return Err(format!("bench does not know {other}").into()),
            }
        }
        Ok(options)
    }

    /// Takes an option of [`pairs`](Self::pairs).
    fn of_pairs(&mut self, name: &str, word: Option<&String>) -> Result<()> {
        let size = self.pairs.as_mut().ok_or_else(|| format!("{name} belongs behind --pairs"))?;
        let word = word.ok_or_else(|| format!("{name} needs a word"))?;
        if name == "--before" {
            size.before = Some(word.clone());
            return Ok(());
        }
        let rounds = word.parse().ok().filter(|rounds| *rounds > 0);
        size.rounds = rounds.ok_or_else(|| format!("--rounds {word}: not a number from 1"))?;
        Ok(())
    }
}

/// Policies whose cost is compared with having no block layer.
const SCHEDULERS: [&str; 4] = ["none", "mq-deadline", "kyber", "bfq"];

/// Policies that several threads share, in the kernel under one lock each.
const CONTENDED: [&str; 2] = ["mq-deadline", "bfq"];

/// The policies compared with an elevator for each hardware queue: no scheduler, and one that schedules.
const PER_QUEUE: [&str; 2] = ["none", "mq-deadline"];

/// How threads share the elevator; the first way is ours, the others are compared with it.
const ACCESS: [&str; 3] = ["combining", "spin", "mutex"];

/// Plugs of 8, in fio's spelling.
const BATCHES: &str = "--iodepth_batch_submit=8 --iodepth_batch_complete=8";

/// The load of the published measurement of one lock: 512 B reads, four in flight, four at a time (seed 001).
const PUBLISHED: &str = "--rw=randread --bs=512 --iodepth=4 --iodepth_batch_submit=4 \
                         --iodepth_batch_complete=4 --gtod_reduce=1";

/// The size of the comparison.
struct Plan {
    /// Repetitions of each command; medians are reported.
    repetitions: u32,
    /// Submitting threads of the contention experiments.
    threads: Vec<u32>,
    /// Hardware queues of the experiment with a policy for each: one, and as many as cores.
    queues: Vec<u32>,
    /// The runtime of one repetition, in fio's spelling.
    runtime: &'static str,
}

impl Plan {
    /// The published size, for a machine with `cores` cores.
    fn full(cores: u32) -> Self {
        let mut threads: Vec<u32> = (0..).map(|n| 1 << n).take_while(|n| *n <= cores).collect();
        threads.extend([cores, 2 * cores, 16]);
        threads.sort_unstable();
        threads.dedup();
        let queues = if cores > 1 { vec![1, cores] } else { vec![1] };
        Self { repetitions: 5, threads, queues, runtime: "1" }
    }

    /// Every command once and briefly, to check that it works. The figures mean nothing.
    fn test_size() -> Self {
        Self { repetitions: 1, threads: vec![1, 2], queues: vec![1, 2], runtime: "50ms" }
    }

    /// The part of every command line that fio and blkmq share.
    fn workload(&self) -> String {
        format!("{} --gtod_reduce=1", self.timed())
    }

    fn timed(&self) -> String {
        format!("--bs=4k --iodepth=32 {}", self.endless())
    }

    fn endless(&self) -> String {
        format!("--runtime={} --time_based --norandommap", self.runtime)
    }

    /// Each experiment of several threads, with its command.
    fn together(&self) -> [(Workload, Cmd); 3] {
        [
            (Workload::Contention, self.contention()),
            (Workload::Plugs, self.plugs()),
            (Workload::PerQueue, self.per_queue()),
        ]
    }

    /// One elevator, several threads, three ways to share it, the load of the published figures.
    fn contention(&self) -> Cmd {
        self.ours(&format!(
            "--device null,submit_queues=1,irqmode=0,hw_queue_depth=1024 --scheduler {} --access spin,mutex,combining \
             --threads {} {PUBLISHED} {}",
            CONTENDED.join(","),
            list(&self.threads),
            self.endless(),
        ))
    }

    /// Like [`contention`](Self::contention), but with larger plugs and more I/Os in flight.
    fn plugs(&self) -> Cmd {
        self.ours(&format!(
            "--device null,submit_queues=1,irqmode=0,hw_queue_depth=1024 --scheduler mq-deadline \
             --access spin,mutex,combining --threads {} --rw=randwrite {} {BATCHES}",
            list(&self.threads),
            self.workload(),
        ))
    }

    /// A policy for each of as many hardware queues as cores, one I/O at a time, with its latency.
    fn per_queue(&self) -> Cmd {
        let queues = self.queues.last().expect("there is at least one");
        self.ours(&format!(
            "--device null,submit_queues={queues},irqmode=0 --scope hwqueue --scheduler {} --access combining \
             --threads {} --rw=randwrite {}",
            PER_QUEUE.join(","),
            list(&self.queues),
            self.timed(),
        ))
    }

    fn ours(&self, options: &str) -> Cmd {
        let repetitions = self.repetitions;
        Cmd::new(&format!("{BLKMQ} bench {options} --repeat {repetitions} --output-format json"))
    }

    /// One thread through the whole block layer.
    fn alone(&self, scheduler: &str) -> Cmd {
        Cmd::new(&format!(
            "{BLKMQ} bench --device null,submit_queues=1,irqmode=0 --scheduler {scheduler} \
             --access combining --threads 1 --rw=randread --size=1g {} {BATCHES} --repeat 1 \
             --output-format json",
            self.workload(),
        ))
    }

    /// The same work through fio's null engine, which has no block layer.
    fn fio(&self, fio: Fio) -> Cmd {
        let batches = match fio {
            Fio::Plain => "",
            Fio::Batched => BATCHES,
        };
        Cmd::new(&format!(
            "fio --name=null --ioengine=null --rw=randread --size=1g {} {batches} \
             --output-format=json",
            self.workload(),
        ))
    }

    /// Every command, for the record.
    fn commands(&self) -> Vec<String> {
        let together = self.together().map(|(_, cmd)| cmd.to_string());
        let alone = SCHEDULERS.iter().map(|scheduler| self.alone(scheduler).to_string());
        let fio = Fio::ALL.map(|fio| self.fio(fio).to_string());
        together.into_iter().chain(alone).chain(fio).collect()
    }

    /// The cells of an experiment of several threads, a row for each scheduler and number of threads.
    fn rows(&self, workload: Workload) -> Vec<Vec<Cell>> {
        let (schedulers, threads): (&[&str], _) = match workload {
            Workload::Contention => (&CONTENDED, &self.threads),
            Workload::Plugs => (&["mq-deadline"], &self.threads),
            Workload::PerQueue => (&PER_QUEUE, &self.queues),
            Workload::Alone => unreachable!("that is one thread"),
        };
        let ways: &[&str] = if workload == Workload::PerQueue { &ACCESS[..1] } else { &ACCESS };
        let row = |scheduler: &str, threads: u32| {
            ways.iter().map(|access| Cell::new(workload, scheduler, access, threads)).collect()
        };
        schedulers.iter().flat_map(|name| threads.iter().map(move |n| row(name, *n))).collect()
    }
}

fn list(counts: &[u32]) -> String {
    let counts: Vec<String> = counts.iter().map(ToString::to_string).collect();
    counts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_checked() {
        let parse = |args: &[&str]| {
            Options::parse(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
        };
        assert!(parse(&["--test-size"]).is_ok_and(|options| options.test_size));
        assert!(parse(&["--out", "x"]).is_ok_and(|options| options.out.ends_with("x")));
        assert!(parse(&["--instructions"]).is_ok_and(|it| it.instructions == Some(false)));
        assert!(
            parse(&["--instructions", "--bless"]).is_ok_and(|it| it.instructions == Some(true))
        );
        let pairs = |args: &[&str]| parse(args).unwrap().pairs.unwrap();
        assert_eq!(pairs(&["--pairs"]), pairs::Size::full());
        let given = pairs(&["--pairs", "--rounds", "3", "--before", "old"]);
        assert_eq!((given.rounds, given.before.as_deref()), (3, Some("old")));
        assert!(parse(&["--pairs", "--rounds", "0"]).is_err());
        assert!(parse(&["--rounds", "3"]).is_err(), "of nothing else");
        assert!(parse(&["--threads", "--rounds", "3"]).is_ok_and(|it| it.threads.is_some()));
        assert!(
            parse(&["--pairs", "--threads"]).is_err() && parse(&["--threads", "--out"]).is_err()
        );
        assert!(parse(&["--layers", "--rounds", "3"]).is_ok_and(|it| it.layers.is_some()));
        assert!(parse(&["--pairs", "--layers"]).is_err());
        assert!(parse(&["--bless"]).is_err(), "nothing is written down of a benchmark");
        assert!(parse(&["--out"]).is_err());
        assert!(parse(&["--fast"]).is_err());
    }

    #[test]
    fn fio_and_blkmq_get_the_same_workload() {
        let plan = Plan::full(2);
        let workload = plan.workload();
        for scheduler in SCHEDULERS {
            assert!(plan.alone(scheduler).to_string().contains(&workload));
        }
        for fio in Fio::ALL {
            assert!(plan.fio(fio).to_string().contains(&workload));
        }
    }

    #[test]
    fn threads_go_up_to_twice_the_cores_and_to_sixteen() {
        assert_eq!(Plan::full(1).threads, [1, 2, 16]);
        assert_eq!(Plan::full(2).threads, [1, 2, 4, 16]);
        assert_eq!(Plan::full(6).threads, [1, 2, 4, 6, 12, 16]);
        assert_eq!(Plan::full(16).threads, [1, 2, 4, 8, 16, 32]);
        assert_eq!((Plan::full(1).queues, Plan::full(16).queues), (vec![1], vec![1, 16]));
    }

    #[test]
    fn each_cell_has_its_row() {
        let plan = Plan::full(2);
        let rows = plan.rows(Workload::Contention);
        assert_eq!((rows.len(), rows[0].len()), (8, 3));
        assert_eq!(rows[4][2], Cell::new(Workload::Contention, "bfq", "mutex", 1));
        assert_eq!(plan.rows(Workload::Plugs).len(), 4);
        let each = |n| [Cell::new(Workload::PerQueue, "none", "combining", n)].to_vec();
        assert_eq!(plan.rows(Workload::PerQueue)[..2], [each(1), each(2)]);
    }
}
