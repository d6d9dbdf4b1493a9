//! The files of a job: parts of the device, each with its own region, and the order in which a thread visits them.
//!
//! Names and paths are not here: the code that opens files decides where on the device each lies.

/// A file: a stretch of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct File {
    /// First byte on the device, a multiple of a sector.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// `file_service_type`: the order in which a thread visits its files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileService {
    /// One after another, repeatedly.
    RoundRobin,
    /// A random file each time.
    Random,
    /// The next one when one is done.
    Sequential,
}

impl FileService {
    /// fio's words.
    pub const NAMES: [(Self, &'static str); 3] = [
        (Self::RoundRobin, "roundrobin"),
        (Self::Random, "random"),
        (Self::Sequential, "sequential"),
    ];
}

/// The files of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Files {
    /// The files of the first thread, of the second, and so on; or the files that all threads share.
    pub list: Vec<File>,
    /// The number of files of a thread, at least 1.
    pub each: usize,
    /// `file_service_type`.
    pub service: FileService,
    /// The number behind that: I/Os to a file before the next file's turn, at least 1.
    pub turn: u32,
    /// `openfiles`: the number of files that a thread visits at a time, at least 1; when one is done, the next is
    /// opened.
    pub open: usize,
    /// Whether `filesize` determines the length of the files. If so, `size` ends the job, and is not divided among
    /// them.
    pub is_sized: bool,
}

impl Files {
    /// The files of thread `thread`.
    #[must_use]
    pub fn of(&self, thread: u32) -> &[File] {
        let shared = self.list.len() == self.each;
        let first = if shared { 0 } else { thread as usize * self.each };
        &self.list[first..first + self.each]
    }

    /// The bytes of file `at` of `each` that belong to a job of `size` bytes in blocks of at least `block`: as in fio,
    /// the first files are a block longer if the size does not divide.
    #[must_use]
    pub fn share(at: usize, each: usize, size: u64, block: u64) -> u64 {
        let each = each as u64;
        let share = size / each;
        let longer = (size - share * each) / block.max(1);
        share + if (at as u64) < longer { block } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_divide_goes_to_the_first_files() {
        assert_eq!([0, 1, 3].map(|at| Files::share(at, 4, 10_242, 1)), [2561, 2561, 2560]);
        assert_eq!([0, 3].map(|at| Files::share(at, 4, 10_242, 4096)), [2560; 2]);
    }
}
