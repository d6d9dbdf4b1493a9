//! A device as it is now: its end, its access, and zeroes of the kind that was asked for.

use crate::client::Client;
use crate::rig::{Rig, serve_on};
use blkmq_nbd::server::{Config, Handshake, Next};
use blkmq_nbd::{
    BlockSizes, Command, CommandFlags, ErrorCode, ExportInfo, Exports, HeaderStyle,
    TransmissionFlags as Flags,
};
use blkmq_server::{Bounds, Export};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const NONE: CommandFlags = CommandFlags::NONE;
const MIB: u64 = 1 << 20;
const STYLES: [HeaderStyle; 3] =
    [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended];
const WRITES: [Command; 3] = [Command::Write, Command::Trim, Command::WriteZeroes];

/// A file of `mib` MiB of data in a folder that goes with it.
struct Image {
    path: PathBuf,
    _folder: TempDir,
}

impl Image {
    fn new(mib: u64) -> Self {
        Self::new_in(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder"), mib)
    }

    fn new_in(folder: TempDir, mib: u64) -> Self {
        let path = folder.path().join("disk.img");
        let mut file = File::create(&path).expect("the folder is ours");
        (0..mib).for_each(|_| file.write_all(&[0x5a; 1 << 20]).expect("there is room"));
        Self { path, _folder: folder }
    }

    fn file(&self) -> File {
        OpenOptions::new().read(true).write(true).open(&self.path).expect("it is there")
    }

    /// Bytes that the file system keeps for it.
    fn stored(&self) -> u64 {
        std::fs::metadata(&self.path).expect("it is there").blocks() * 512
    }

    fn len(&self) -> u64 {
        std::fs::metadata(&self.path).expect("it is there").len()
    }

    /// A server of it; `None`, and a line that names the test, if there is no io_uring here.
    fn serve(&self, test: &str, options: &str) -> Option<Rig> {
        let device = format!("uring:{}{options}", self.path.display());
        if let Err(error) = blkmq::open(&device)
            && error.is_unavailable()
        {
            println!("skipped {test}: {error}");
            return None;
        }
        Some(serve_on(&device, &[Export::new("disk", 0)], Bounds::default()))
    }
}

/// Changes the place by each command; the answers.
fn change(client: &mut Client, at: u64) -> [Result<Vec<u8>, ErrorCode>; 3] {
    WRITES.map(|command| {
        let data = if command == Command::Write { &[7; 64 << 10][..] } else { &[] };
        client.call(command, NONE, at, 64 << 10, data)
    })
}

/// Regression test: a large read behind the end of a file that had become shorter was answered as a hole, so that copies
/// of the file succeeded with zeroes for the data that was gone.
#[test]
fn a_file_that_was_cut_short_fails_behind_its_end_and_shows_no_zeroes() {
    let test = "a_file_that_was_cut_short_fails_behind_its_end";
    let image = Image::new(4);
    let Some(rig) = image.serve(test, "") else { return };
    image.file().set_len(MIB).expect("it can be cut");
    for style in STYLES {
        let mut client = Client::connect_in(&rig.socket, "disk", style);
        assert_eq!(client.read(0, MIB), Ok(vec![0x5a; 1 << 20]), "{style:?}");
        for (at, length) in [(2 * MIB, 4096), (2 * MIB, 64 << 10), (MIB, MIB), (MIB / 2, MIB)] {
            let answer = client.read(at, length);
            assert_eq!(answer, Err(ErrorCode::Io), "{style:?}: {length} bytes at {at}");
        }
    }
    for style in [HeaderStyle::Structured, HeaderStyle::Extended] {
        let mut client = Client::connect_for_status(&rig.socket, "disk", style);
        assert_eq!(client.status(2 * MIB, MIB, NONE), Ok(vec![(MIB, 0)]), "behind the end");
        assert_eq!(client.status(0, 4 * MIB, NONE), Ok(vec![(4 * MIB, 0)]), "across it");
    }
}

/// Regression test: a write behind the end made a file long again that had been cut short, with a hole that read as zeroes
/// where there had been data; TRIM and WRITE_ZEROES succeeded where reads failed.
#[test]
fn nothing_is_changed_behind_the_end_of_a_file_that_was_cut_short() {
    let test = "nothing_is_changed_behind_the_end_of_a_file";
    let image = Image::new(4);
    let Some(rig) = image.serve(test, "") else { return };
    let mut client = rig.client("disk");
    image.file().set_len(MIB).expect("it can be cut");
    assert_eq!(client.read(3 * MIB, 4096), Err(ErrorCode::Io), "it is noticed");
    assert_eq!(change(&mut client, 3 * MIB), [const { Err(ErrorCode::Io) }; 3]);
    assert_eq!(image.len(), MIB);
    assert_eq!(change(&mut client, MIB / 2), [const { Ok(Vec::new()) }; 3], "before the end");
}

/// TRIM and WRITE_ZEROES ask for the end themselves: a hole behind it is no error for the kernel.
#[test]
fn zeroes_and_trims_behind_a_new_end_fail_before_a_read_has_noticed_it() {
    let test = "zeroes_and_trims_behind_a_new_end_fail";
    let image = Image::new(4);
    let Some(rig) = image.serve(test, "") else { return };
    let mut client = rig.client("disk");
    for command in [Command::Trim, Command::WriteZeroes] {
        image.file().set_len(4 * MIB).expect("it can be made longer");
        assert_eq!(client.read(3 * MIB, 4096).map(|data| data.len()), Ok(4096), "long again");
        image.file().set_len(MIB).expect("it can be cut");
        assert_eq!(client.call(command, NONE, 3 * MIB, 4096, &[]), Err(ErrorCode::Io));
    }
}

/// A hole ends with the file, in whole blocks: a client that copies block by block meets the error.
#[test]
fn a_hole_in_front_of_a_crooked_end_has_whole_blocks() {
    let test = "a_hole_in_front_of_a_crooked_end";
    let image = Image::new(4);
    let Some(rig) = image.serve(test, "") else { return };
    let mut client = Client::connect_for_status(&rig.socket, "disk", HeaderStyle::Structured);
    let file = image.file();
    file.set_len(MIB).and_then(|()| file.set_len(2 * MIB + 100)).expect("a hole at the end");
    assert_eq!(client.status(2 * MIB, MIB, NONE), Ok(vec![(MIB, 0)]));
    let across = client.status(MIB, 2 * MIB, NONE).expect("a map");
    assert!([vec![(MIB, 3), (MIB, 0)], vec![(2 * MIB, 0)]].contains(&across), "{across:?}");
    assert_eq!(client.read(2 * MIB, 4096), Err(ErrorCode::Io));
}

/// Regression test: only the setting of the export was looked at, so that clients met errors where they had been told that
/// they may write.
#[test]
fn a_device_that_is_opened_for_reading_is_announced_so() {
    let test = "a_device_that_is_opened_for_reading";
    let image = Image::new(1);
    let Some(rig) = image.serve(test, ",readonly=1") else { return };
    let mut client = rig.client("disk");
    is_announced_as_read_only(&client);
    assert_eq!(change(&mut client, 0), [const { Err(ErrorCode::NotPermitted) }; 3]);
    assert_eq!(client.read(0, 4096), Ok(vec![0x5a; 4096]));
}

fn is_announced_as_read_only(client: &Client) {
    let flags = client.agreed.details.flags;
    assert!(flags.contains(Flags::READ_ONLY), "{flags:?}");
    for never in [Flags::SEND_TRIM, Flags::SEND_WRITE_ZEROES, Flags::SEND_FAST_ZERO] {
        assert!(!flags.contains(never), "{never:?}");
    }
}

#[test]
fn a_gateway_to_a_read_only_export_is_read_only() {
    let exports = [Export { read_only: true, ..Export::new("store", 0) }];
    let store = serve_on("memory,size=16", &exports, Bounds::default());
    let peer = format!("nbd+unix:///store?socket={}", store.socket.display());
    for device in [peer.clone(), format!("faults,late=0.5:{peer}")] {
        let gateway = serve_on(&device, &[Export::new("disk", 0)], Bounds::default());
        let mut client = gateway.client("disk");
        is_announced_as_read_only(&client);
        assert_eq!(change(&mut client, 0), [const { Err(ErrorCode::NotPermitted) }; 3]);
    }
    let store = serve_on("memory,size=16", &[Export::new("store", 0)], Bounds::default());
    let peer = format!("nbd+unix:///store?socket={},readonly=1", store.socket.display());
    let gateway = serve_on(&peer, &[Export::new("disk", 0)], Bounds::default());
    is_announced_as_read_only(&gateway.client("disk"));
}

/// Regression test: WRITE_ZEROES that may leave a hole allocated all of its range, and NO_HOLE wrote every zero.
#[test]
fn zeroes_that_may_be_holes_are_and_others_keep_their_room() {
    let test = "zeroes_that_may_be_holes_are";
    let image = Image::new(8);
    let Some(rig) = image.serve(test, "") else { return };
    let mut client = Client::connect_for_status(&rig.socket, "disk", HeaderStyle::Structured);
    let before = image.stored();
    let all = client.call(Command::WriteZeroes, NONE, 0, 4 * MIB, &[]);
    assert_eq!(all, Ok(vec![]));
    if image.stored() == before {
        assert!(image.serve(test, "").is_none(), "the file system makes holes");
    }
    assert!(image.stored() <= before - 4 * MIB, "{} of {before} bytes", image.stored());
    assert_eq!(client.status(0, 4 * MIB, NONE), Ok(vec![(4 * MIB, 3)]));
    let thin = image.stored();
    let flags = CommandFlags::NO_HOLE;
    assert_eq!(client.call(Command::WriteZeroes, flags, 0, 4 * MIB, &[]), Ok(vec![]));
    assert!(image.stored() >= thin + 4 * MIB, "{} of {before} bytes", image.stored());
    assert!(client.read(0, 4 * MIB) == Ok(vec![0; 4 << 20]));
    assert!(client.read(4 * MIB, 4 * MIB) == Ok(vec![0x5a; 4 << 20]), "nothing else");
}

/// Regression test: fast zeroes that must keep their room were refused by every device.
#[test]
fn fast_zeroes_without_holes_are_done_where_the_file_system_can() {
    let test = "fast_zeroes_without_holes";
    let image = Image::new(2);
    let Some(rig) = image.serve(test, "") else { return };
    let mut client = rig.client("disk");
    let flags = CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO;
    let answer = client.call(Command::WriteZeroes, flags, 0, MIB, &[]);
    let can = can_zero(&image.path);
    assert_eq!(answer, if can { Ok(vec![]) } else { Err(ErrorCode::NotSupported) });
    assert_eq!(client.read(0, 4096), Ok(vec![if can { 0 } else { 0x5a }; 4096]));
}

/// Returns whether the file system of the file has FALLOC_FL_ZERO_RANGE.
fn can_zero(path: &Path) -> bool {
    let copy = path.with_extension("trial");
    std::fs::write(&copy, [1; 4096]).expect("the folder is ours");
    let mode = rustix::fs::FallocateFlags::ZERO_RANGE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(File::options().write(true).open(&copy).expect("ours"), mode, 0, 4096)
        .is_ok()
}

/// A server whose zeroes take as long as other writes. It agrees on its export and answers no request.
struct Slow;

impl Exports for Slow {
    fn find(&self, name: &str) -> Option<ExportInfo> {
        Some(ExportInfo {
            name: name.to_owned(),
            description: String::new(),
            size: 16 * MIB,
            flags: Flags::SEND_FLUSH | Flags::SEND_WRITE_ZEROES,
            blocks: BlockSizes::DEFAULT,
            contexts: Vec::new(),
        })
    }

    fn list(&self, _: &mut dyn FnMut(&str, &str)) {}
}

impl Slow {
    fn agree(mut socket: UnixStream) -> UnixStream {
        let mut handshake = Handshake::new(Config::default());
        let (mut out, mut got) = (Vec::new(), Vec::new());
        handshake.greeting(&mut out);
        loop {
            socket.write_all(&out).expect("the gateway reads");
            out.clear();
            let mut bytes = [0; 4096];
            let read = socket.read(&mut bytes).expect("the gateway asks");
            got.extend_from_slice(&bytes[..read]);
            let progress = handshake.feed(&got, &Self, &mut out);
            got.drain(..progress.consumed);
            if read == 0 || !matches!(progress.next, Next::NeedMore) {
                socket.write_all(&out).expect("the gateway reads");
                return socket;
            }
        }
    }
}

/// Regression test: a gateway announced fast zeroes of a server that has none, and passed them on as others.
#[test]
fn a_gateway_has_fast_zeroes_if_its_server_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("peer");
    let listener = UnixListener::bind(&path).expect("the path is free");
    // It ends with the process.
    std::thread::spawn(move || Vec::from_iter(listener.incoming().flatten().map(Slow::agree)));
    let gateway = |path: &Path| {
        let peer = format!("nbd+unix:///store?socket={}", path.display());
        serve_on(&peer, &[Export::new("disk", 0)], Bounds::default())
    };
    let slow = gateway(&path);
    let mut client = slow.client("disk");
    let flags = client.agreed.details.flags;
    assert!(flags.contains(Flags::SEND_WRITE_ZEROES), "{flags:?}");
    assert!(!flags.contains(Flags::SEND_FAST_ZERO), "{flags:?}");
    let fast = client.call(Command::WriteZeroes, CommandFlags::FAST_ZERO, 0, 4096, &[]);
    assert!(fast.is_err(), "{fast:?}");
    let store = serve_on("memory,size=16", &[Export::new("store", 0)], Bounds::default());
    let fast = gateway(&store.socket);
    assert!(fast.client("disk").agreed.details.flags.contains(Flags::SEND_FAST_ZERO));
}

/// tmpfs makes holes and zeroes no range in place: zeroes that keep their room are written one by one, and fast ones are
/// refused.
#[test]
fn zeroes_that_the_file_system_lacks_are_written() {
    let test = "zeroes_that_the_file_system_lacks";
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped {test}: no tmpfs");
        return;
    };
    let image = Image::new_in(folder, 4);
    if can_zero(&image.path) {
        println!("skipped {test}: this file system has them");
        return;
    }
    let Some(rig) = image.serve(test, "") else { return };
    let mut client = rig.client("disk");
    let before = image.stored();
    let fast = CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO;
    let refused = client.call(Command::WriteZeroes, fast, 0, MIB, &[]);
    assert_eq!(refused, Err(ErrorCode::NotSupported));
    assert_eq!(client.read(0, 4096), Ok(vec![0x5a; 4096]), "nothing is changed");
    let written = client.call(Command::WriteZeroes, CommandFlags::NO_HOLE, 0, 2 * MIB, &[]);
    assert_eq!((written, image.stored()), (Ok(vec![]), before));
    assert_eq!(client.call(Command::WriteZeroes, NONE, 2 * MIB, MIB, &[]), Ok(vec![]));
    assert!(image.stored() <= before - MIB);
    assert!(client.read(0, 3 * MIB) == Ok(vec![0; 3 << 20]));
}

/// Regression test: a file of the largest size of its file system had neither TRIM nor fast zeroes, since holes were
/// tried behind its end.
#[test]
fn a_file_of_the_largest_size_keeps_trim_and_fast_zeroes() {
    let test = "a_file_of_the_largest_size";
    let image = Image::new(1);
    let file = image.file();
    let can = |bytes: u64| file.set_len(bytes).is_ok();
    let most = (12..63)
        .rev()
        .fold(0, |most, bit| if can(most | 1 << bit) { most | 1 << bit } else { most });
    file.set_len(most).expect("it was possible");
    let Some(rig) = image.serve(test, "") else { return };
    let flags = rig.client("disk").agreed.details.flags;
    assert!(flags.contains(Flags::SEND_TRIM | Flags::SEND_FAST_ZERO), "{most} bytes: {flags:?}");
    let mut client = rig.client("disk");
    assert_eq!(client.call(Command::Trim, NONE, most - 4096, 4096, &[]), Ok(vec![]));
    assert_eq!(client.read(0, 4096), Ok(vec![0x5a; 4096]), "the trial left it alone");
}
