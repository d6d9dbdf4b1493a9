//! Threads under a witness that checks the duties of a device to the engine, and against a model of the file. Also the
//! tests of files without io_uring, on a thread under a seccomp filter that forbids it, like the default profile of
//! containers.

#![cfg(target_os = "linux")]

use crate::files::WITHOUT_RINGS;
use crate::{BLOCK, SECTORS, TempFile, block, contents, is_filled, refusals, start};
use blkmq_buf::AlignedBuf;
use blkmq_core::{IoFlags, Op, Rng};
use blkmq_device::contract::Checked;
use blkmq_engine::{Config, Io};
use blkmq_runtime::Client;
use blkmq_uring::{OpenError, UringDevice};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::thread;

/// The number of blocks of the file.
const BLOCKS: u64 = 64;
const IOS: u64 = 4000;

fn open(file: &TempFile, options: &str) -> UringDevice {
    let text = format!("threads:{}{options}", file.path().display());
    UringDevice::described(&text).expect("a file").expect("it opens")
}

/// An I/O of one block, and the contents of the block when it is done: its word, 0 for zeroes.
fn draw(rng: &mut Rng, n: u64, word: u64) -> (Io<AlignedBuf>, Option<u64>) {
    let (op, after) = match rng.below(16) {
        0 => (Op::Flush, None),
        1 => (Op::Discard, Some(0)),
        2 => (Op::WriteZeroes, Some(0)),
        3..9 => (Op::Read, None),
        _ => (Op::Write, Some(word)),
    };
    let (sector, sectors) =
        if op == Op::Flush { (0, 0) } else { (n * u64::from(SECTORS), SECTORS) };
    // The witness identifies an I/O by its cookie.
    let cookie = word * BLOCKS + n;
    let mut io =
        Io::new(op, sector, sectors, cookie, block(if op == Op::Write { word } else { u64::MAX }));
    let durable = matches!(op, Op::Write | Op::WriteZeroes) && rng.chance(1, 8);
    if durable {
        io.flags = io.flags | IoFlags::FUA;
    }
    (io, after)
}

/// Does I/Os to random blocks, at most one to a block at a time, and compares each read with the model.
fn load(client: &mut Client<AlignedBuf>, seed: u64) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    let mut model = vec![0; BLOCKS as usize];
    // The contents of a block when the I/O to it is done.
    let mut busy = vec![None; BLOCKS as usize];
    let (mut pushed, mut ended) = (0, 0);
    while ended < IOS {
        let burst = rng.below(24).min(IOS - pushed);
        for _ in 0..burst {
            let n = rng.below(BLOCKS);
            if busy[n as usize].is_some() {
                continue;
            }
            pushed += 1;
            let (io, after) = draw(&mut rng, n, pushed);
            busy[n as usize] = Some((io.op, after.unwrap_or(model[n as usize])));
            client.push(io).expect("there is credit");
        }
        client.flush();
        let least = u32::from(client.in_flight() > 0);
        ended += u64::from(client.wait(least, u32::MAX, |mut done| {
            assert_eq!(done.result, Ok(()));
            let at = (done.cookie % BLOCKS) as usize;
            let (op, after) = busy[at].take().expect("an I/O to this block");
            if op == Op::Read {
                assert!(is_filled(done.payload.as_mut_slice(), model[at]), "block {at}");
            }
            model[at] = after;
        }));
    }
    model
}

#[test]
fn a_device_of_threads_owes_nothing_to_the_engine() {
    for (seed, options) in [
        (1, ""),
        (2, ",threads=1,hw_queue_depth=4"),
        (3, ",threads=3,hw_queues=2,hw_queue_depth=16"),
        (4, ",direct=0,threads=64"),
    ] {
        let file = TempFile::new("a_device_of_threads", BLOCKS * BLOCK as u64);
        let device = open(&file, options);
        let (queues, watch) = Checked::wrap(&device.shape, device.queues().expect("threads start"));
        let service = start(Config::new(device.shape, queues), 1);
        let mut client = service.client().expect("one submitter");
        let model = load(&mut client, seed);
        drop((client, service));
        let watch = watch.lock().expect("no violation");
        assert!(watch.taken.len() > IOS as usize / 2 && watch.abandoned == 0, "{watch:?}");
        let bytes = file.bytes();
        let is_as_modelled =
            bytes.chunks_exact(BLOCK).zip(model).all(|(b, word)| is_filled(b, word));
        assert!(is_as_modelled && bytes.len() as u64 == BLOCKS * BLOCK as u64, "{options}");
    }
}

#[test]
fn two_ways_to_a_file_exclude_each_other_and_leave_it_when_they_go() {
    let file = TempFile::new("two_ways_to_a_file", BLOCKS * BLOCK as u64);
    for _ in 0..20 {
        let device = open(&file, "");
        assert!(file.try_open("").expect_err("locked").is_busy());
        let service = start(Config::new(device.shape, device.queues().expect("threads start")), 1);
        let mut client = service.client().expect("one submitter");
        for n in 0..BLOCKS {
            client.push(Io::new(Op::Read, n * 8, SECTORS, n, block(0))).expect("there is credit");
        }
        client.flush();
        // The device is dropped with requests at the threads.
        drop((client, service, device));
    }
    open(&file, "");
}

/// Runs `test` on a thread. On this thread, and on all threads that it starts, setting up a ring fails with `errno`.
fn without_rings(errno: i32, test: impl FnOnce() + Send + 'static) {
    let ended = thread::spawn(move || {
        let setup = [(libc::SYS_io_uring_setup, Vec::new())].into_iter().collect();
        let arch = std::env::consts::ARCH.try_into().expect("seccompiler knows this processor");
        let refused = SeccompAction::Errno(errno as u32);
        let filter = SeccompFilter::new(setup, SeccompAction::Allow, refused, arch);
        let program: BpfProgram = filter.expect("a filter").try_into().expect("a program");
        seccompiler::apply_filter(&program).expect("a thread may forbid itself system calls");
        WITHOUT_RINGS.set(true);
        test();
    });
    if let Err(panic) = ended.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn the_contents_of_files_are_the_same() {
    without_rings(libc::EPERM, || {
        contents::contents_survive_merging();
        contents::contents_survive_several_rings();
        contents::contents_survive_the_page_cache();
        contents::merged_memory_in_many_pieces_is_one_vectored_call();
        contents::a_divided_buffer_is_written_in_parts_and_is_whole_again();
        contents::flushes_and_fua_are_done();
        contents::discards_and_zeroes_read_as_zeroes_and_leave_their_neighbours();
    });
}

#[test]
fn the_same_is_refused_and_the_same_changes_are_met() {
    without_rings(libc::EPERM, || {
        refusals::what_is_no_storage_is_refused_with_a_reason();
        refusals::a_file_is_made_as_large_as_it_is_wanted_and_never_smaller();
        refusals::the_capacity_is_in_whole_blocks();
        refusals::memory_that_does_not_fit_is_refused();
        refusals::a_read_only_device_is_not_changed();
        refusals::the_end_of_the_file_is_an_error();
        refusals::a_full_ring_makes_the_rest_wait();
        refusals::a_queue_that_goes_away_waits_for_the_kernel();
        refusals::a_thread_may_submit_and_go();
        refusals::a_file_is_known_to_be_cut_grown_or_removed();
    });
}

#[test]
fn several_files_are_one_device() {
    without_rings(libc::EPERM, || {
        contents::data_arrives_in_its_file();
        contents::what_lies_between_files_is_a_hole();
        contents::a_file_that_is_only_read_stands_beside_one_that_is_written();
    });
}

#[test]
fn what_is_forgotten_is_left_to_the_threads() {
    without_rings(libc::EPERM, refusals::what_a_device_forgets_is_leaked_and_not_freed);
}

#[test]
fn a_note_says_which_way_was_taken_and_why() {
    for (errno, reason) in [
        (libc::EPERM, "io_uring is not available here"),
        (libc::ENOSYS, "io_uring is not available here"),
        (libc::ENOMEM, "cannot make a ring"),
    ] {
        without_rings(errno, move || {
            let file = TempFile::new("a_note_says_which_way_was_taken", 1 << 20);
            let device = file.try_open("").expect("threads do it");
            assert!(device.has_threads());
            let note = device.notes.first().expect("a note");
            let begin = "16 threads do the I/O (threads:PATH), which takes more CPU: ";
            assert!(note.starts_with(begin) && note.contains(reason), "{note}");
            assert!(UringDevice::check().is_err());
        });
    }
    without_rings(libc::EMFILE, || {
        let file = TempFile::new("a_note_says_which_way_was_taken", 1 << 20);
        let refused = file.try_open("").expect_err("a lack of descriptors is no lack of io_uring");
        assert!(matches!(refused, OpenError::Ring { .. }), "{refused}");
    });
}
