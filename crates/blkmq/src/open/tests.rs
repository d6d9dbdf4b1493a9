//! Descriptions and the devices that they open, refusals, and the scheduler that goes with groups.

use super::*;
use blkmq_buf::AlignedBuf;
use blkmq_core::Sectors;

fn refusal(text: &str) -> String {
    open(text).expect_err(text).to_string()
}

#[test]
fn every_device_is_a_name_away() {
    for name in ["null", "memory", "disk", "flash", "cloud"] {
        let device = open(name).expect(name);
        let config = BlockDevice::<AlignedBuf>::config(&device).expect(name);
        assert_eq!(config.queues.len(), usize::from(device.shape().hw_queues));
    }
    assert_eq!(open("memory,size=2").expect("memory").bytes(), 2 << 20);
    assert!(refusal("zram").contains("accepted: null, memory, disk, flash, cloud, faults"));
    assert!(refusal("null,fast=1").contains("no parameter 'fast'"));
}

#[cfg(target_os = "linux")]
#[test]
fn faults_stand_around_files_as_around_others() {
    assert!(refusal("nbd").contains("accepted: nbd://HOST[:PORT]/EXPORT"));
    assert!(refusal("faults,late=0.1:nbd+unix:///?socket=/no").contains("cannot be reached"));
    assert!(refusal("nbd:nbd://a,color=1").contains("no parameter 'color'"));
    for (text, part) in [
        ("rbd", "accepted: rbd:POOL/[NAMESPACE/]IMAGE[@SNAP]"),
        ("rbd:image", "'image' names no image; accepted: POOL/"),
        ("faults,late=0.1:rbd:p/i,cache=fast", "accepted: none, writethrough"),
        ("rbd:p/i,color=1", "no parameter 'color'; accepted: image, conf, id"),
    ] {
        assert!(refusal(text).contains(part), "{}", refusal(text));
    }
    let missing = refusal("faults,late=0.1:faults,error=0.5:uring:/nowhere/at/all");
    assert!(missing.contains("/nowhere/at/all"), "{missing}");
    assert!(refusal("faults,error=2:uring:/x").contains("error=2 is not possible"));
    assert!(refusal("faults:uring").contains("no path"), "{}", refusal("faults:uring"));
}

/// The tests have every feature, so the table lists exactly the devices that features add.
#[cfg(target_os = "linux")]
#[test]
fn every_device_has_its_feature() {
    let names = FEATURES.iter().flat_map(|(.., names)| *names).copied();
    let names = Vec::from_iter(names.filter(|name| !name.contains("nbd") || *name == "nbd"));
    assert_eq!(names, Vec::from_iter(device_names()));
}

#[test]
fn a_scheduler_that_is_not_there_is_named_with_those_that_are() {
    let error = open("null").expect("null").start::<AlignedBuf>("cfq").expect_err("gone");
    let text = error.to_string();
    assert!(text.starts_with("no scheduler 'cfq'; accepted: none, mq-deadline"), "{text}");
    assert!(text.ends_with(", auto"), "{text}");
}

#[test]
fn groups_that_compete_have_the_scheduler_that_keeps_their_shares() {
    let device = open("memory,size=1").expect("memory");
    let service = device.start::<AlignedBuf>(AUTO).expect("it starts");
    let said = || service.attribute("blkmq/auto").expect("an attribute");
    let alone = format!(
        "{}, since no groups compete and it is Linux's choice for such a device",
        device.default_scheduler()
    );
    assert_eq!(said(), alone);
    let options = blkmq_runtime::GroupOptions::default();
    let first = service.add_group("a", &options).expect("a new name");
    assert_eq!(said(), alone);
    let second = service.add_group("b", &options).expect("a new name");
    assert_eq!(said(), "mclock, since 2 groups compete");
    drop((first, second));
    assert_eq!(
        said(),
        "mclock, since groups competed or had floors; queue/scheduler=auto chooses again"
    );
    service.set_attribute("queue/scheduler", AUTO).expect("a word");
    assert_eq!(said(), alone);
    service.set_attribute("queue/scheduler", "kyber").expect("a word");
    let named = [("a", "kyber"), ("b", "kyber")].map(|(name, scheduler)| {
        let group = service.add_group(name, &options).expect("a new name");
        assert_eq!(service.queue().plan().scheduler.name, scheduler);
        group
    });
    assert_eq!((said(), named.len()), ("off".into(), 2));
}

#[test]
fn layers_stand_on_devices_of_any_kind() {
    let device = open("stripe,chunk=128k:[memory,size=4][concat:[memory,size=1][memory,size=2]]");
    let device = device.expect("devices that suit");
    assert_eq!((device.bytes(), device.shape().hw_queues), (6 << 20, 1));
    assert!(device.moves_data() && !device.state().is_read_only);
    assert!(device.notes().iter().any(|note| note.ends_with("sectors of device 0 are left alone")));
    assert!(!open("stripe:[memory,size=1][null,size=1]").expect("devices that suit").moves_data());
    let faulty = open("faults,error=1:stripe:[memory,size=1][memory,size=1]").expect("that, too");
    let service = faulty.start::<AlignedBuf>("none").expect("it starts");
    let mut disk = service.blocking().expect("a client");
    let (result, _) = disk.read(Sectors(0), AlignedBuf::new(4096)).expect("it is taken");
    assert_eq!(result, Err(blkmq_core::IoError::IO));
    for (text, part) in [
        ("stripe:[null]", "1 devices in brackets; accepted: from 2 to 64"),
        ("stripe:null", "accepted: stripe[,KEY=VALUE]...:[DEVICE][DEVICE]..."),
        ("stripe,chunk=1k:[null][null,blocksize=4096]", "not in whole blocks of 4096"),
        ("concat:[null][zram]", "no device 'zram'; accepted: null"),
        ("concat:[null][concat:[null][null,fast=1]]", "no parameter 'fast'"),
        ("stripe,chunk=1g:[null,size=1][null,size=1]", "less than 1073741824 bytes"),
    ] {
        assert!(refusal(text).contains(part), "{}", refusal(text));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn files_under_layers_are_read_and_written_and_wake_their_clients() {
    let folder = tempfile::tempdir().expect("a folder for files");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let legs = format!(
        "[uring:{},size=2][threads:{},size=2][memory,size=2,irqmode=2]",
        path("a"),
        path("b")
    );
    let mut device = open(&format!("stripe,chunk=4k:{legs}")).expect("files that suit");
    let pool = BufferPool::new(4, 64 << 10);
    device.register(&pool);
    {
        let service = device.start::<AlignedBuf>("mq-deadline").expect("it starts");
        let mut disk = service.blocking().expect("a client");
        for at in (0..6 << 11).step_by(128) {
            let mut buf = pool.take().expect("all are free");
            buf.as_mut_slice().fill((at / 128) as u8);
            let (result, mut buf) = disk.write(Sectors(at), buf).expect("it is taken");
            assert_eq!(result, Ok(()));
            buf.as_mut_slice().fill(0);
            let (result, mut buf) = disk.read(Sectors(at), buf).expect("it is taken");
            assert_eq!(result, Ok(()));
            assert!(buf.as_mut_slice().iter().all(|byte| *byte == (at / 128) as u8));
        }
        disk.flush().expect("it is taken");
    }
    let bytes = std::fs::read(path("b")).expect("the second file");
    // The first chunk on this file is the second 4 KiB of the first 64, and the last chunk is from the last 64.
    assert_eq!((bytes[0], bytes[bytes.len() - 1]), (0, 95));
    let file = std::fs::OpenOptions::new().write(true).open(path("a")).expect("the first file");
    file.set_len(1 << 20).expect("it is cut short");
    assert_eq!(device.state().bytes, 3 << 20, "as far as no chunk is lost");
}

/// Regression test: clients of a stripe shared a queue, so that a completion woke all of them, and an I/O took two
/// system calls.
#[cfg(target_os = "linux")]
#[test]
fn clients_of_striped_files_have_a_ring_each_for_all_of_them() {
    if blkmq_uring::UringDevice::check().is_err() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder for files");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let legs = ["a", "b"].map(|name| format!("[uring:{},size=2]", path(name))).concat();
    let device = open(&format!("stripe,chunk=4k:{legs}")).expect("files that suit");
    {
        let service = device.start::<AlignedBuf>("mq-deadline").expect("it starts");
        assert_eq!(service.attribute("blkmq/pump").as_deref(), Ok("owner"));
        let mut disks = [(); 3].map(|()| service.blocking().expect("a client"));
        for at in 0..64_usize {
            let mut buf = AlignedBuf::new(64 << 10);
            buf.as_mut_slice().fill(at as u8);
            let (result, _) = disks[at % 3].write(Sectors(at as u64 * 128), buf).expect("taken");
            assert_eq!(result, Ok(()));
        }
        assert!(disks.iter_mut().all(|disk| disk.flush().is_ok()));
        for at in 0..64_usize {
            let read =
                disks[(at + 1) % 3].read(Sectors(at as u64 * 128), AlignedBuf::new(64 << 10));
            let (result, mut buf) = read.expect("taken");
            assert_eq!(result, Ok(()));
            assert!(buf.as_mut_slice().iter().all(|byte| *byte == at as u8), "{at}");
        }
    }
    for name in ["a", "b"] {
        // The file has half of each write, in order.
        let bytes = std::fs::read(path(name)).expect("a file");
        assert!(bytes.chunks(32 << 10).zip(0..).all(|(half, at)| half.iter().all(|it| *it == at)));
    }
    drop(device);
    // Files with different numbers of queues, or with a fault around one, are not joined.
    for leg in [format!("[uring:{},hw_queues=1]", path("b")), "[faults,late=0.1:memory]".into()] {
        let device =
            open(&format!("concat:[uring:{}]{leg}", path("a"))).expect("devices that suit");
        let service = device.start::<AlignedBuf>("none").expect("it starts");
        assert_eq!(service.attribute("blkmq/pump").as_deref(), Ok("inline"));
        let mut disk = service.blocking().expect("a client");
        let (result, _) = disk.read(Sectors(4096), AlignedBuf::new(4096)).expect("taken");
        assert_eq!(result, Ok(()));
    }
    let one = open(&format!("checksum:[uring:{}]", path("a"))).expect("a file that suits");
    let service = one.start::<AlignedBuf>("none").expect("it starts");
    assert_eq!(service.attribute("blkmq/pump").as_deref(), Ok("owner"));
}
