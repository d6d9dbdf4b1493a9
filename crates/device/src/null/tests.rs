use super::params::{NOT_BUILT, OF_MEMORY, PARAMETERS};
use super::*;
use blkmq_core::Nanos;

const HOST: MachineShape = MachineShape { cpus: 4, nodes: 2 };

fn pairs(text: &str) -> Vec<(String, String)> {
    let pairs = text.split(',').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap()).map(|(k, v)| (k.into(), v.into())).collect()
}

fn parse(text: &str) -> (NullParams, Vec<String>) {
    NullParams::parse(&pairs(text), &HOST).unwrap()
}

fn device(text: &str) -> Result<Parts<NullParams>, DeviceError> {
    build(&Description { argument: "", pairs: pairs(text) }, &HOST)
}

fn refusal(text: &str) -> String {
    device(text).err().expect("refused").to_string()
}

#[test]
fn defaults_are_those_of_null_blk() {
    let (params, notes) = parse("");
    assert_eq!(params, NullParams::default());
    assert_eq!(notes, [] as [&str; 0]);
    assert_eq!((params.submit_queues, params.hw_queue_depth, params.size), (1, 64, 250 * 1024));
    assert_eq!(parse("irqmode=2").0.irqmode, IrqMode::Timer(Nanos(10_000)));
}

#[test]
fn every_parameter_in_the_table_takes_its_own_default() {
    for parameter in PARAMETERS.iter().filter(|p| !p.default.is_empty()) {
        let (params, _) = parse(&format!("{}={}", parameter.name, parameter.default));
        assert_eq!(params, NullParams::default(), "{}", parameter.name);
    }
}

/// No parameter is accepted and then ignored: each changes the device or leaves a note.
#[test]
fn every_parameter_in_the_table_has_an_effect() {
    let other = |name: &str| match name {
        "use_per_node_hctx" | "shared_tags" | "shared_tag_bitmap" | "virt_boundary"
        | "no_sched" | "discard" | "rotational" | "write_cache" | "log" => "1",
        "bs" | "blocksize" => "1024",
        "home_node" | "queue_mode" | "irqmode" | "fua" => "0",
        "requeue" | "requeue_tail" | "timeout" | "resource" | "dev_resource" => "2:50:1:3",
        _ => "3",
    };
    for parameter in &PARAMETERS {
        let (params, notes) = parse(&format!("{}={}", parameter.name, other(parameter.name)));
        let changed = params != NullParams::default() || !notes.is_empty();
        assert!(changed, "{} was ignored", parameter.name);
    }
}

#[test]
fn a_write_cache_is_announced_with_or_without_fua() {
    use blkmq_engine::WriteCache;
    for (text, cache) in [
        ("", WriteCache::Through),
        ("write_cache=1", WriteCache::Back { fua: true }),
        ("write_cache=1,fua=1", WriteCache::Back { fua: true }),
        ("write_cache=1,fua=0", WriteCache::Back { fua: false }),
        ("fua=1", WriteCache::Through),
    ] {
        assert_eq!((parse(text).0.shape().cache, parse(text).1.len()), (cache, 0), "{text}");
    }
    let (params, notes) = parse("fua=0");
    assert_eq!(params.shape().cache, WriteCache::Through);
    assert_eq!(notes, ["fua has no effect without write_cache=1"]);
}

#[test]
fn the_seeds_device_is_understood() {
    let (params, notes) = parse(
        "completion_nsec=0,blocksize=512,home_node=0,irqmode=0,submit_queues=128,\
         hw_queue_depth=1024,size=1024,memory_backed=0,queue_mode=2",
    );
    assert_eq!(notes.len(), 3, "{notes:?}");
    assert!(params.is_plain());
    assert_eq!((params.hw_queue_depth, params.limits().capacity), (1024, 1 << 21));
}

#[test]
fn size_wins_over_gb_whatever_the_order() {
    assert_eq!(parse("size=7,gb=3").0.size, 7);
    assert_eq!(parse("gb=3").0.size, 3 * 1024);
    assert!(refusal("gb=0").contains("a whole number of GiB from 1 to"));
}

#[test]
fn limits_follow_from_parameters() {
    let limits = parse("max_sectors=64,virt_boundary=1,discard=1,bs=4096").0.limits();
    assert_eq!((limits.max_sectors, limits.virt_boundary_mask), (64, 4095));
    assert_eq!(limits.max_segment_size, u32::MAX);
    assert_eq!(parse("").0.limits().max_segment_size, 65536);
    assert_eq!(limits.max_discard_sectors, 8_388_600);
    assert_eq!(limits.max_write_zeroes_sectors, 64, "as long as a write");
    assert_eq!((limits.physical_block_size, limits.discard_granularity), (4096, 4096));
    assert_eq!(parse("").0.limits().max_discard_sectors, 0);
    assert!(refusal("max_sectors=4,bs=4096").contains("max_sectors is 4"));
}

#[test]
fn what_is_not_here_says_so_and_off_is_accepted() {
    let not_built = NOT_BUILT.iter().map(|row| (row, "not built yet"));
    let of_memory = OF_MEMORY.iter().map(|row| (row, "a parameter of device memory"));
    for ((name, off), why) in not_built.chain(of_memory) {
        let message = refusal(&format!("{name}=17"));
        assert!(message.contains(&format!("{name} is {why}")), "{message}");
        if let Some(off) = off {
            assert_eq!(parse(&format!("{name}={off}")).0, NullParams::default());
        }
    }
}

#[test]
fn refusals_say_what_would_be_accepted() {
    assert!(
        refusal("queues=1").starts_with("device null: no parameter 'queues'; accepted: submit_")
    );
    assert!(
        refusal("irqmode=3")
            .ends_with("irqmode=3 is not possible; accepted: a whole number from 0 to 2")
    );
    assert!(refusal("queue_mode=1").contains("1 (single queue) no longer exists"));
    assert!(
        refusal("timeout=1,100,0,-1".split(',').next().unwrap()).contains("interval:probability")
    );
    assert!(refusal("budget=0").contains("a whole number from 1"));
}

#[test]
fn what_would_have_no_effect_is_said() {
    for text in [
        "completion_nsec=5",
        "write_nsec=5",
        "service_limit=4",
        "log_size=9",
        "home_node=1",
        "queue_mode=0",
        "seed=5",
        "timeout_resets=1",
    ] {
        assert_eq!(parse(text).1.len(), 1, "{text}");
    }
    assert_eq!(parse("irqmode=2,completion_nsec=5,service_limit=4,log=1,log_size=9").1.len(), 0);
    assert_eq!(parse("service_limit=4,timeout=1:100:0:1").1.len(), 0, "what is lost stays inside");
    assert_eq!(parse("mbps=50000").0.mbps, 40 * 1024);
    assert_eq!(parse("hw_queue_depth=20000").0.hw_queue_depth, 10240);
}

#[test]
fn the_default_scheduler_is_that_of_linux() {
    let scheduler = |text: &str| {
        let text = ["null", text].join(if text.is_empty() { "" } else { "," });
        crate::registry::parse(&text, &HOST).expect("it is possible").default_scheduler()
    };
    assert_eq!(scheduler(""), "mq-deadline");
    assert_eq!(scheduler("no_sched=1"), "none");
    assert_eq!(scheduler("submit_queues=2"), "none");
    assert_eq!(scheduler("submit_queues=2,shared_tags=1"), "mq-deadline");
}

fn at(ms: u64) -> Instant {
    Instant::ZERO + Nanos::from_millis(ms)
}

#[test]
fn a_refusal_names_the_first_refill_that_pays_the_debt() {
    // 1 MiB/s: 20971.52 bytes in a quantum.
    let mut cap = Bandwidth::new(1);
    assert_eq!(cap.take(at(0), 20_972), Ok(()), "the budget may be overdrawn by the last request");
    assert_eq!(cap.take(at(1), 1), Err(at(20)));
    assert_eq!(cap.take(at(20), 60_000), Ok(()));
    // A debt of 39029 bytes: two refills give 41943.
    assert_eq!(cap.take(at(20), 1), Err(at(60)));
    assert_eq!(cap.take(at(59), 1), Err(at(60)));
    assert_eq!(cap.take(at(60), 1), Ok(()));
}

#[test]
fn budget_is_not_saved_while_idle() {
    let mut cap = Bandwidth::new(1);
    let mut passed = 0;
    while cap.take(at(10_000), 512).is_ok() {
        passed += 512;
    }
    assert_eq!(passed, 20_971_u64.div_ceil(512) * 512);
}

#[test]
fn a_queue_whose_clock_is_behind_gets_no_second_refill() {
    let mut cap = Bandwidth::new(1);
    assert_eq!(cap.take(at(40), 30_000), Ok(()));
    assert_eq!(cap.take(at(20), 1), Err(at(60)));
}
