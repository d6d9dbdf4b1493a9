//! The costs modelled by the flash device, each separately, on devices small enough for manual calculation: buffer,
//! link, flushes, suspension, retries and discards; and the device's parameters.

use crate::{Disk, HOST, Job, device, rig, unmerged};
use blkmq_core::{Instant, IoFlags, Nanos, Op};
use blkmq_device::contract::Rig;
use blkmq_device::{Activity, Device, MachineShape, registry};
use blkmq_engine::WriteCache;

/// One die with one plane, where a row is one unit. A unit takes 1 us over the channel; link and controller take
/// practically no time.
const ONE_DIE: &str = "size=4,submit_queues=1,channels=1,dies_per_channel=1,planes=1,page_size=4096,\
    pages_per_block=16,overprovisioning=50,read_ns=50000,program_ns=1000000,erase_ns=3000000,channel_mbps=4096,\
    link_mbps=4096000,link_duplex=1,read_command_ns=0,write_command_ns=0,read_latency_ns=0,write_latency_ns=0,\
    buffer_kib=64,buffer_mbps=0,suspend=0,suspend_ns=0,write_cache=1,fua=1";

fn one_die(more: &str) -> Device {
    device("flash", &format!("{ONE_DIE},{more}"))
}

fn us(us: u64) -> Nanos {
    Nanos::from_micros(us)
}

/// The time at which the I/O with this cookie ended, in us.
fn ended(rig: &Rig, cookie: u64) -> u64 {
    rig.ended(cookie).at.as_nanos() / 1000
}

/// Does one I/O alone and returns its latency.
fn alone(rig: &mut Rig, op: Op, sector: u64, sectors: u32, flags: IoFlags) -> Nanos {
    let began = rig.now;
    let cookie = rig.push_with(0, op, sector, sectors, flags).expect("there is credit");
    rig.finish();
    rig.ended(cookie).at - began
}

#[test]
fn it_stores_nothing_and_touches_no_payload() {
    let device = one_die("preconditioned=0");
    let mut disk = Disk::plain(&device);
    assert_eq!(disk.one(Op::Write, 0, vec![7; 4096]).bytes, vec![7; 4096]);
    let read = disk.one(Op::Read, 0, vec![0xaa; 4096]);
    assert_eq!((read.result, read.bytes), (Ok(()), vec![0xaa; 4096]));
}

#[test]
fn a_read_takes_cells_channel_link_controller_and_latency_one_after_the_other() {
    let text = "read_command_ns=3000,read_latency_ns=5000,link_mbps=1024,channel_mbps=512";
    let mut rig = rig(&one_die(text));
    // Command 3 us, cells 50 us, channel 8 us (4096 bytes at 512 MB/s), link 4 us (at 1024 MB/s), latency 5 us.
    assert_eq!(alone(&mut rig, Op::Read, 0, 8, IoFlags::NONE), us(70));
    // For half a unit, a whole unit is transferred over the channel and half of it over the link.
    assert_eq!(alone(&mut rig, Op::Read, 0, 4, IoFlags::NONE), us(68));
}

#[test]
fn what_was_never_written_or_was_discarded_needs_no_cells() {
    for (op, preconditioned) in [(Op::Discard, 1), (Op::WriteZeroes, 1), (Op::Read, 0)] {
        let device = one_die(&format!("preconditioned={preconditioned},read_latency_ns=2000"));
        let mut rig = rig(&device);
        alone(&mut rig, op, 0, 64, IoFlags::NONE);
        assert!(alone(&mut rig, Op::Read, 56, 8, IoFlags::NONE) < us(3), "{op:?}");
        let flash = device.flash().expect("it is one").stats();
        assert_eq!(flash.valid_units, if preconditioned == 1 { 1024 - 8 } else { 0 });
        if preconditioned == 1 {
            assert!(alone(&mut rig, Op::Read, 64, 8, IoFlags::NONE) > us(50));
        }
    }
}

#[test]
fn a_full_buffer_lets_writes_through_as_dies_take_them() {
    // 16 slots; a row of one unit takes 1 us over the channel and 1000 us to program.
    let mut rig = rig(&one_die("preconditioned=0"));
    for sector in 0..40 {
        rig.push(0, Op::Write, sector * 8, 8).expect("there is credit");
    }
    rig.finish();
    let ends = Vec::from_iter((0..40).map(|cookie| ended(&rig, cookie)));
    assert_eq!(ends[..16], [0; 16], "as long as there is room");
    for (behind, end) in (1..).zip(&ends[16..]) {
        assert_eq!(*end, behind * 1001, "one for each row that is programmed");
    }
}

#[test]
fn what_still_waits_in_the_buffer_is_replaced_there() {
    let device = one_die("preconditioned=0");
    let mut rig = rig(&device);
    for _ in 0..100 {
        rig.push(0, Op::Write, 0, 8).expect("there is credit");
    }
    rig.finish();
    assert_eq!(ended(&rig, 99), 0);
    rig.run_for(us(10_000));
    alone(&mut rig, Op::Flush, 0, 0, IoFlags::NONE);
    let stats = device.flash().expect("it is one").stats();
    // The first write is being programmed while each later one replaces the one that waits.
    assert_eq!((stats.host_units, stats.absorbed_units, stats.programmed_units), (100, 98, 2));
}

#[test]
fn the_buffer_takes_no_more_than_its_bandwidth() {
    let text = "preconditioned=0,buffer_kib=4096,buffer_mbps=40";
    let measured = Job::random(0, 32, 900).run(&one_die(text));
    assert_eq!(measured.mbps, 40);
}

#[test]
fn the_link_is_a_limit_in_each_direction_or_in_both_together() {
    let mbps = |reads, duplex| {
        let text = format!("preconditioned=0,buffer_kib=4096,link_mbps=500,link_duplex={duplex}");
        let job = Job::random(reads, 32, 900);
        // All parts but the link are so fast that only the link limits the rate.
        job.run(&one_die(&format!("{text},program_ns=1,read_ns=1,channel_mbps=4096000"))).mbps
    };
    for duplex in [0, 1] {
        let (reads, writes) = (mbps(100, duplex), mbps(0, duplex));
        assert!((499..=500).contains(&reads) && (499..=500).contains(&writes), "{reads} {writes}");
    }
    assert!((495..=500).contains(&mbps(50, 0)), "{}", mbps(50, 0));
    assert!(mbps(50, 1) > 900, "{}", mbps(50, 1));
}

#[test]
fn a_flush_waits_for_what_was_written_before_it() {
    let mut rig = rig(&one_die("preconditioned=0"));
    assert_eq!(alone(&mut rig, Op::Flush, 0, 0, IoFlags::NONE), Nanos(0), "there is nothing");
    for sector in 0..5 {
        rig.push(0, Op::Write, sector * 8, 8).expect("there is credit");
    }
    // A flush covers only completed writes, so these must complete first.
    rig.run_for(us(1));
    let flush = rig.push(0, Op::Flush, 0, 0).expect("there is credit");
    rig.settle();
    let later = rig.push(0, Op::Write, 800, 8).expect("there is credit");
    rig.finish();
    assert_eq!((ended(&rig, flush), ended(&rig, later)), (5 * 1001, 1));
    // On a device that honours FUA, a write with FUA waits until it is programmed.
    rig.run_for(us(10_000));
    assert_eq!(alone(&mut rig, Op::Write, 0, 8, IoFlags::FUA).0 / 1000, 1001);
}

#[test]
fn no_command_passes_a_discard() {
    for (op, mbps, least) in
        [(Op::Discard, 0, 0), (Op::Discard, 1024, 1000), (Op::WriteZeroes, 512, 2000)]
    {
        let mut rig = rig(&one_die(&format!("discard_mbps={mbps}")));
        let began = rig.now;
        // 1024000 bytes take 1 ms at 1024 MB a second.
        let discard = rig.push(0, op, 0, 2000).expect("there is credit");
        rig.settle();
        let read = rig.push(0, Op::Read, 2048, 8).expect("there is credit");
        rig.finish();
        let [discard, read] = [discard, read].map(|it| (rig.ended(it).at - began).0 / 1000);
        assert!(discard.abs_diff(least) <= 5, "{mbps}: {op:?} took {discard} us");
        assert!((least..least + 100).contains(&read), "{mbps}: the read took {read} us");
    }
}

#[test]
fn a_flush_that_writes_tables_is_served_alone() {
    for (flush_ns, read_ends) in [(0, 1051), (3_000_000, 4055)] {
        let mut rig = rig(&one_die(&format!("flush_ns={flush_ns},read_ns=50000")));
        alone(&mut rig, Op::Write, 0, 8, IoFlags::NONE);
        let began = rig.now;
        // The program takes 1 ms and the channel 1 us, the tables 3 ms.
        let flush = rig.push_with(0, Op::Flush, 0, 0, IoFlags::NONE).expect("there is credit");
        rig.settle();
        let read = rig.push_with(0, Op::Read, 64, 8, IoFlags::NONE).expect("there is credit");
        rig.finish();
        assert_eq!((rig.ended(flush).at - began).0, 1_001_000 + flush_ns);
        let waited = (rig.ended(read).at - began).0 / 1000;
        assert!(waited.abs_diff(read_ends) <= 5, "{flush_ns}: the read took {waited} us");
        // Nothing has been written since, so there is nothing to do.
        assert!(alone(&mut rig, Op::Flush, 0, 0, IoFlags::NONE) < us(2));
    }
}

#[test]
fn a_flush_programs_rows_that_are_not_full() {
    let device = one_die("preconditioned=0,planes=4,buffer_kib=256");
    let mut rig = rig(&device);
    for sector in 0..5 {
        rig.push(0, Op::Write, sector * 8, 8).expect("there is credit");
    }
    rig.run_for(us(50_000));
    // The device advances to the current time only when it gets a request.
    alone(&mut rig, Op::Read, 800, 8, IoFlags::NONE);
    assert_eq!(
        device.flash().expect("it is one").stats().programmed_units,
        4,
        "one waits for more"
    );
    assert_eq!(alone(&mut rig, Op::Flush, 0, 0, IoFlags::NONE).0 / 1000, 1004);
    let stats = device.flash().expect("it is one").stats();
    assert_eq!((stats.programmed_units, stats.padding_units), (8, 3));
}

#[test]
fn with_power_loss_protection_nothing_is_ever_flushed() {
    let device = one_die("write_cache=0,log=1");
    assert_eq!(device.shape.cache, WriteCache::Through);
    let mut rig = rig(&device);
    alone(&mut rig, Op::Write, 0, 8, IoFlags::FUA | IoFlags::PREFLUSH);
    alone(&mut rig, Op::Flush, 0, 0, IoFlags::NONE);
    let log = device.log.as_ref().expect("log=1").arrivals();
    assert_eq!((log.len(), log[0].op), (1, Op::Write));
    assert_eq!(ended(&rig, 0), 0, "it is safe in the buffer");
}

#[test]
fn a_read_passes_a_program_that_it_may_interrupt() {
    for (suspend, expected) in [(0, 901 + 51), (1, 30 + 51)] {
        let mut rig = rig(&one_die(&format!("suspend={suspend},suspend_ns=30000")));
        rig.submit(Op::Write, 0, 8);
        rig.run_until(Instant::ZERO + us(100));
        assert_eq!(alone(&mut rig, Op::Read, 800, 8, IoFlags::NONE).0 / 1000, expected);
    }
}

#[test]
fn reads_delay_a_program_within_a_bound() {
    for reads_first in [1_u64, 4, 16] {
        let mut rig =
            rig(&one_die(&format!("suspend=1,suspend_ns=30000,reads_first={reads_first}")));
        alone(&mut rig, Op::Write, 0, 8, IoFlags::NONE);
        let flush = rig.submit(Op::Flush, 0, 0);
        // Consecutive reads, each submitted when the previous one has ended.
        let mut sector = 800;
        while rig.ended.iter().all(|ended| ended.cookie != flush) {
            alone_read(&mut rig, sector);
            sector += 8;
            assert!(rig.now < Instant::ZERO + us(10_000), "the program is never over");
        }
        let flush = ended(&rig, flush);
        // Each read suspends the program for 30 us and takes 51 us; a program without reads takes 1001 us.
        let most = 1001 + reads_first * 81;
        assert!(flush <= most && flush > most - 81, "{reads_first}: {flush} of {most} us");
    }
}

/// Submits a read and runs until it has ended; other I/Os may end in the meantime.
fn alone_read(rig: &mut Rig, sector: u64) {
    let cookie = rig.submit(Op::Read, sector, 8);
    rig.settle();
    while rig.ended.iter().all(|ended| ended.cookie != cookie) {
        rig.now = rig.next_deadline().expect("something will happen").max(rig.now);
        rig.settle();
    }
}

#[test]
fn pages_of_one_row_are_read_at_once() {
    // 16 units in order lie in four rows of four units: 50 us and 4 us for each row, instead of 51 us for each unit.
    let mut rig = rig(&one_die("planes=4,buffer_kib=256"));
    assert_eq!(alone(&mut rig, Op::Read, 0, 128, IoFlags::NONE).0 / 1000, 4 * 54);
}

#[test]
fn dies_work_at_the_same_time_and_share_their_channel() {
    for (channels, dies, expected) in [(1, 1, 4 * 58), (1, 4, 50 + 4 * 8), (4, 1, 58), (2, 2, 66)] {
        let text = format!("channels={channels},dies_per_channel={dies},channel_mbps=512");
        let mut rig = rig(&one_die(&text));
        assert_eq!(alone(&mut rig, Op::Read, 0, 32, IoFlags::NONE).0 / 1000, expected, "{text}");
    }
}

#[test]
fn pages_are_read_again_as_often_as_was_said() {
    let device = one_die("retry_ppm=1000000,retry_steps=1");
    assert_eq!(alone(&mut rig(&device), Op::Read, 0, 8, IoFlags::NONE).0 / 1000, 101);
    let device = one_die("retry_ppm=100000,retry_steps=3,seed=5");
    Job::random(100, 1, 10_000).run(&device);
    let retries = device.flash().expect("it is one").stats().retries;
    assert!((1800..2200).contains(&retries), "a tenth, twice on average: {retries}");
}

#[test]
fn hardware_queues_share_the_device() {
    let device = one_die("submit_queues=2,hw_queue_depth=8,dies_per_channel=4");
    let mut rig = Rig::new(unmerged(&device, 2, 256));
    for sector in 0..100 {
        for who in 0..2 {
            rig.push(who, Op::Read, (sector * 2 + who as u64) * 8, 8).expect("there is credit");
        }
    }
    rig.finish();
    // 200 units on four dies: 50 times a read and its transfer, independent of the number of hardware queues.
    assert_eq!(rig.now.as_nanos() / 1000, 50 * 51 + 3);
    let stats = rig.queue.stats();
    assert_eq!(stats.completed, 200);
}

#[test]
fn garbage_collection_in_time_amplifies_as_without() {
    // 34 blocks of 128 units for each 25 blocks of mapped units; 3 of the 34 are open or free.
    let text = "size=16,pages_per_block=128,overprovisioning=36,gc_start=1,gc_stop=2,preconditioned=2,seed=3,\
                erase_ns=1000,program_ns=1000";
    let device = one_die(text);
    Job::random(0, 16, 40_000).run(&device);
    let stats = device.flash().expect("it is one").stats();
    let permille = stats.write_amplification_permille();
    assert!((2150..2600).contains(&permille), "{permille}: {stats:?}");
    assert_eq!(stats.valid_units + 16, 4096, "all but what is in the buffer");
    assert!(stats.erased_blocks > 300);
}

#[test]
fn what_is_discarded_needs_not_be_moved() {
    let amplification = |discard: bool| {
        let device =
            one_die("size=16,overprovisioning=10,preconditioned=2,program_ns=1000,erase_ns=1000");
        let mut rig = rig(&device);
        if discard {
            alone(&mut rig, Op::Discard, 0, (8 << 20) / 512, IoFlags::NONE);
        }
        let mut rng = blkmq_core::Rng::new(1);
        for _ in 0..20_000 {
            // The other half of the device.
            let sector = (2048 + rng.below(2048)) * 8;
            alone(&mut rig, Op::Write, sector, 8, IoFlags::NONE);
        }
        device.flash().expect("it is one").stats().write_amplification_permille()
    };
    let (kept, discarded) = (amplification(false), amplification(true));
    assert!(discarded < 1300 && kept > 1500, "{discarded} with and {kept} without discarding half");
}

#[test]
fn the_same_inputs_give_the_same_outputs() {
    let run = |seed| {
        let device =
            device("flash", &format!("size=64,retry_ppm=50000,submit_queues=1,seed={seed}"));
        let measured = Job::random(60, 24, 5000).run(&device);
        (format!("{measured:?}"), device.flash().expect("it is one").stats())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn occupancy_shows_what_each_die_does_and_nothing_twice() {
    let text = "size=16,submit_queues=1,preconditioned=2,occupancy_size=100000,channels=2,dies_per_channel=2,\
                pages_per_block=4";
    let device = device("flash", text);
    Job::random(60, 16, 8000).run(&device);
    let mut spans = device.occupancy.as_ref().expect("occupancy_size").spans();
    assert_eq!(device.occupancy.as_ref().expect("occupancy_size").missed(), 0);
    spans.sort_by_key(|span| (span.place, span.start, span.end));
    for pair in spans.windows(2) {
        let apart = pair[0].place != pair[1].place || pair[0].end <= pair[1].start;
        assert!(apart, "{pair:?}");
    }
    let count = |activity| spans.iter().filter(|span| span.activity == activity).count();
    for activity in [
        Activity::Read,
        Activity::Transfer,
        Activity::Write,
        Activity::Erase,
        Activity::Housekeeping,
    ] {
        assert!(count(activity) > 0, "{activity:?}");
    }
    assert!(spans.iter().all(|span| span.place < 4));
}

#[test]
fn what_is_in_the_buffer_survives_an_orderly_power_cycle() {
    let device = one_die("preconditioned=0");
    for round in 1..=3 {
        let mut rig = rig(&device);
        for sector in 0..20 {
            rig.push(0, Op::Write, (round * 100 + sector) * 8, 8).expect("there is credit");
        }
        rig.run_for(us(2500));
        drop(rig);
        drop(device.queues::<u64>());
        let stats = device.flash().expect("it is one").stats();
        // 18 writes of each round were admitted: 16 fit into the buffer, and two rows have been programmed. The others
        // never reached it.
        assert_eq!(stats.valid_units, round * 18);
    }
}

fn parse(text: &str) -> Result<Device, String> {
    let host = MachineShape { cpus: 4, nodes: 2 };
    registry::parse(&format!("flash,seed=0,{text}"), &host).map_err(|e| e.to_string())
}

fn refusal(text: &str) -> String {
    parse(text).expect_err(text)
}

#[test]
fn a_preset_gives_way_to_whatever_stands_beside_it() {
    let after = parse("preset=sata,hw_queue_depth=7,write_cache=0").expect("right");
    let before = parse("hw_queue_depth=7,write_cache=0,preset=sata").expect("right");
    for device in [after, before] {
        assert_eq!((device.shape.hw_queue_depth, device.shape.cache), (7, WriteCache::Through));
        assert_eq!((device.shape.hw_queues, device.shape.limits.rotational), (1, false));
    }
    let sata = parse("preset=sata").expect("right");
    assert_eq!(sata.shape.cache, WriteCache::Back { fua: false });
    let client = parse("preset=nvme-client").expect("right");
    assert_eq!(client.shape.cache, WriteCache::Back { fua: true });
    assert_eq!((client.shape.hw_queues, client.shape.hw_queue_depth), (4, 1023));
    let nvme = parse("size=100").expect("right");
    assert_eq!((nvme.shape.hw_queues, nvme.shape.cache), (4, WriteCache::Through));
    assert_eq!(nvme.shape.limits.capacity, 100 * 2048);
    assert_eq!(nvme.shape.limits.physical_block_size, 4096);
    let per_node = parse("use_per_node_hctx=1").expect("right");
    assert_eq!((per_node.shape.hw_queues, per_node.notes.len()), (2, 0));
    assert!(parse("discard=0").expect("right").shape.limits.max_discard_sectors == 0);
}

#[test]
fn what_cannot_be_is_refused_with_what_can() {
    let presets = "sata, sata-dc, nvme-tlc, nvme-client, nvme-mlc, low-latency";
    assert!(refusal("preset=hdd").contains(&format!("accepted: {presets}")));
    assert!(refusal("page_size=5000").contains("a multiple of 4096 from 4096 to 65536"));
    assert!(refusal("channels=0").contains("a whole number from 1 to 64"));
    assert!(refusal("irqmode=1").contains("no parameter 'irqmode'; accepted: preset,"));
    assert!(
        refusal("size=3000000")
            .contains("size=3000000 is not possible; accepted: at most 2097152 MiB")
    );
    let huge = "channels=64,dies_per_channel=64,planes=8,page_size=65536,pages_per_block=8192";
    assert!(refusal(huge).contains("units of flash"), "{}", refusal(huge));
    assert!(refusal("reads_first=0").contains("from 1 to"));
    assert!(refusal("preconditioned=3").contains("from 0 to 2"));
}

#[test]
fn what_is_not_taken_as_given_is_said() {
    let notes = |text: &str| parse(text).expect(text).notes.join("\n");
    assert_eq!(notes("discard=1"), "");
    assert!(notes("fua=0").contains("fua has no effect without write_cache=1"));
    assert!(notes("suspend=0,suspend_ns=1").contains("suspend_ns has no effect without suspend=1"));
    assert!(notes("retry_steps=2").contains("retry_steps has no effect without retry_ppm"));
    assert!(notes("gc_start=7").contains("gc_stop=4 is raised to 8"));
    assert!(notes("buffer_kib=4").contains("buffer_kib=4 is raised to 128"));
    assert!(notes("size=64").contains("blocks on each die"), "{}", notes("size=64"));
    for factory in registry::ALL.iter().filter(|factory| factory.name == "flash") {
        for preset in ["sata", "sata-dc", "nvme-tlc", "nvme-client", "nvme-mlc", "low-latency"] {
            assert_eq!(notes(&format!("preset={preset}")), "", "{preset} of {}", factory.name);
        }
    }
    assert_eq!(HOST.cpus, 4);
}
