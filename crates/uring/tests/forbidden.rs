//! Files where io_uring is forbidden: the tests of files once more, on a thread that a seccomp filter keeps from it, as the
//! default profile of containers does.

#![cfg(target_os = "linux")]

use crate::common::{self, TempFile};
use crate::{contents, forgetful, joined, refusals};
use blkmq_uring::{OpenError, UringDevice};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::thread;

/// Runs `test` on a thread, of which it and all threads that it starts are answered with `errno` when they ask for a ring.
fn without_rings(errno: i32, test: impl FnOnce() + Send + 'static) {
    let ended = thread::spawn(move || {
        let setup = [(libc::SYS_io_uring_setup, Vec::new())].into_iter().collect();
        let arch = std::env::consts::ARCH.try_into().expect("seccompiler knows this processor");
        let refused = SeccompAction::Errno(errno as u32);
        let filter = SeccompFilter::new(setup, SeccompAction::Allow, refused, arch);
        let program: BpfProgram = filter.expect("a filter").try_into().expect("a program");
        seccompiler::apply_filter(&program).expect("a thread may forbid itself system calls");
        common::WITHOUT_RINGS.set(true);
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
        joined::data_arrives_in_its_file();
        joined::what_lies_between_files_is_a_hole();
        joined::a_file_that_is_only_read_stands_beside_one_that_is_written();
    });
}

#[test]
fn what_is_forgotten_is_left_to_the_threads() {
    without_rings(libc::EPERM, forgetful::what_a_device_forgets_is_leaked_and_not_freed);
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
