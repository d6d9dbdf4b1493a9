//! The present state of a device: its size, its access mode, and zeroes of the requested kind.

use crate::rig::{Client, Rig, serve_on, until};
use blkmq_nbd::server::{Config, Handshake, Next};
use blkmq_nbd::{
    BlockSizes, Command, CommandFlags, ErrorCode, ExportInfo, Exports, HeaderStyle,
    TransmissionFlags as Flags,
};
use blkmq_server::control::{Answer, ExportSettings, Request};
use blkmq_server::{Bounds, Export, Format, Region};
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

/// A file of `mib` MiB of data in a temporary folder.
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

    /// The number of bytes allocated by the file system.
    fn stored(&self) -> u64 {
        std::fs::metadata(&self.path).expect("it is there").blocks() * 512
    }

    fn len(&self) -> u64 {
        std::fs::metadata(&self.path).expect("it is there").len()
    }

    /// Serves the file. Returns `None`, and prints a line with the name of the test, if io_uring is unavailable.
    fn serve(&self, test: &str, options: &str) -> Option<Rig> {
        self.serve_as(test, options, &[Export::new("disk", 0)])
    }

    fn serve_as(&self, test: &str, options: &str, exports: &[Export]) -> Option<Rig> {
        let device = format!("uring:{}{options}", self.path.display());
        if let Err(error) = blkmq::open(&device)
            && error.is_unavailable()
        {
            println!("skipped {test}: {error}");
            return None;
        }
        Some(serve_on(&device, exports, Bounds::default()))
    }
}

/// Changes the range by each command. Returns the answers.
fn change(client: &mut Client, at: u64) -> [Result<Vec<u8>, ErrorCode>; 3] {
    WRITES.map(|command| {
        let data = if command == Command::Write { &[7; 64 << 10][..] } else { &[] };
        client.call(command, NONE, at, 64 << 10, data)
    })
}

/// Regression test: a large read beyond the end of a truncated file was answered as a hole, so that copies of the file
/// succeeded with zeroes in place of lost data.
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

/// Regression test: a write beyond the end of a truncated file extended it again, with a hole that read as zeroes in
/// place of data; TRIM and WRITE_ZEROES succeeded where reads failed.
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

/// A client keeps the size that it agreed on; the next one gets that of the file. A region with a fixed size does not
/// grow.
#[test]
fn a_file_that_has_grown_is_offered_to_the_next_client() {
    let test = "a_file_that_has_grown_is_offered";
    let image = Image::new(4);
    let region = |offset, size| Some(Region { offset, size });
    let exports = [
        Export::new("disk", 0),
        Export { region: region(MIB, None), ..Export::new("rest", 0) },
        Export { region: region(0, Some(2 * MIB)), ..Export::new("part", 0) },
    ];
    let Some(rig) = image.serve_as(test, "", &exports) else { return };
    let mut before = rig.client("disk");
    assert_eq!(before.agreed.details.size, 4 * MIB);
    image.file().set_len(8 * MIB + 100).expect("it can grow");
    let size = |name: &str| rig.client(name).agreed.details.size;
    let sizes = || match rig.server.handle().ask(Request::List) {
        Answer::List { exports, .. } => Vec::from_iter(exports.iter().map(|export| export.bytes)),
        other => panic!("no list but {other:?}"),
    };
    until(|| sizes() == [8 * MIB, 7 * MIB, 2 * MIB]);
    assert_eq!([size("disk"), size("rest"), size("part")], [8 * MIB, 7 * MIB, 2 * MIB]);
    assert_eq!(before.read(6 * MIB, 4096), Err(ErrorCode::Invalid), "its own end");
    let mut client = Client::connect_for_status(&rig.socket, "disk", HeaderStyle::Structured);
    assert_eq!(client.status(4 * MIB, 4 * MIB, NONE), Ok(vec![(4 * MIB, 3)]), "a hole");
    assert_eq!(client.read(6 * MIB, 4096), Ok(vec![0; 4096]));
    assert_eq!(change(&mut client, 7 * MIB), [const { Ok(Vec::new()) }; 3]);
    assert_eq!(client.read(8 * MIB, 512), Err(ErrorCode::Invalid), "no whole block");
}

/// TRIM and WRITE_ZEROES check the end themselves: for the kernel, a hole beyond it is no error.
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

/// A hole ends with the last whole block of the file: a client that copies block by block gets the error.
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

/// Regression test: only the setting of the export was considered, so that clients got errors although writes had been
/// announced.
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

/// Regression test: WRITE_ZEROES that may leave a hole allocated its whole range, and NO_HOLE wrote every zero.
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

/// Regression test: fast zeroes that must stay allocated were refused by every device.
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

/// A server without fast zeroes. It negotiates its export and answers no request.
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

/// Regression test: a gateway announced fast zeroes for a server that has none, and passed them on as ordinary ones.
#[test]
fn a_gateway_has_fast_zeroes_if_its_server_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("peer");
    let listener = UnixListener::bind(&path).expect("the path is free");
    // The thread ends with the process.
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

/// tmpfs punches holes but cannot zero a range in place: zeroes that must stay allocated are written, and fast ones are
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

/// Regression test: a file of the maximum size of its file system had neither TRIM nor fast zeroes, because holes were
/// probed beyond its end.
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

/// The end of a file bounds each request, not each export.
#[test]
fn an_export_in_front_of_a_new_end_goes_on_beside_one_behind_it() {
    let image = Image::new(4);
    let test = "an_export_in_front_of_a_new_end";
    if image.serve(test, "").is_none() {
        return;
    }
    let region = |offset: u64| Some(Region { offset, size: Some(2 * MIB) });
    let exports = [
        Export { region: region(0), ..Export::new("front", 0) },
        Export { region: region(2 * MIB), ..Export::new("behind", 0) },
    ];
    let rig = serve_on(&format!("uring:{}", image.path.display()), &exports, Bounds::default());
    let (mut front, mut behind) = (rig.client("front"), rig.client("behind"));
    image.file().set_len(2 * MIB).expect("it can be cut");
    for _ in 0..3 {
        assert!(front.read(0, 2 * MIB).is_ok_and(|data| data == vec![0x5a; 2 << 20]));
        assert_eq!(change(&mut front, MIB).map(|answer| answer.is_ok()), [true; 3]);
        front.write(MIB, &[0x5a; 64 << 10]).expect("it is in front");
        assert_eq!(behind.read(0, 4096), Err(ErrorCode::Io));
        assert_eq!(change(&mut behind, 0).map(|answer| answer.is_ok()), [false; 3]);
    }
    assert_eq!(image.len(), 2 * MIB);
}

/// A file may end within a sector: the sector's first bytes exist, but the sector does not.
#[test]
fn a_sector_that_a_crooked_end_divides_fails() {
    let image = Image::new(2);
    let Some(rig) = image.serve("a_sector_that_a_crooked_end_divides", "") else { return };
    image.file().set_len(MIB + 100).expect("it can be cut");
    for style in STYLES {
        let mut client = Client::connect_in(&rig.socket, "disk", style);
        assert_eq!(client.read(MIB - 512, 512), Ok(vec![0x5a; 512]), "{style:?}");
        for length in [512, 4096, 64 << 10] {
            assert_eq!(client.read(MIB, length), Err(ErrorCode::Io), "{style:?}: {length}");
        }
        assert_eq!(change(&mut client, MIB).map(|answer| answer.is_ok()), [false; 3], "{style:?}");
    }
    assert_eq!(image.len(), MIB + 100);
}

/// A file truncated to zero has no data to flush. When it is extended again, it is served on the same connection.
#[test]
fn a_file_that_is_cut_to_nothing_and_grows_back_is_served_on_the_same_connection() {
    let image = Image::new(2);
    let Some(rig) = image.serve("a_file_that_is_cut_to_nothing", "") else { return };
    let mut client = rig.client("disk");
    for _ in 0..3 {
        image.file().set_len(0).expect("it can be cut");
        assert_eq!(client.read(0, 512), Err(ErrorCode::Io));
        assert_eq!(client.read(0, MIB), Err(ErrorCode::Io));
        assert_eq!(client.call(Command::Flush, NONE, 0, 0, &[]), Ok(vec![]));
        image.file().set_len(2 * MIB).expect("it can grow");
        assert_eq!(client.read(MIB, MIB), Ok(vec![0; 1 << 20]));
        assert_eq!(client.write(MIB, &[9; 4096]), Ok(vec![]));
        assert_eq!(client.read(MIB, 4096), Ok(vec![9; 4096]));
    }
}

/// If another file replaces it by name, the original is served, and no write goes to the other one.
#[test]
fn a_file_that_is_replaced_is_served_as_it_was() {
    let image = Image::new(1);
    let Some(rig) = image.serve("a_file_that_is_replaced", "") else { return };
    let other = image.path.with_extension("new");
    std::fs::write(&other, vec![0xee; 1 << 20]).expect("there is room");
    std::fs::rename(&other, &image.path).expect("the folder is ours");
    for _ in 0..2 {
        // On a connection made before, and on one made after.
        let mut client = rig.client("disk");
        assert_eq!(client.read(8192, 4096), Ok(vec![0x5a; 4096]));
        assert_eq!(client.write(0, &[7; 4096]), Ok(vec![]));
        assert_eq!(client.read(0, 4096), Ok(vec![7; 4096]));
    }
    assert_eq!(std::fs::read(&image.path).expect("it is there"), vec![0xee; 1 << 20]);
}

/// A full file system is not a failure of the connection: reads, and writes of allocated blocks, succeed.
#[test]
fn a_connection_goes_on_where_its_device_is_full() {
    let device = "faults,write_error=1,errno=28,space=3:memory,size=4";
    let rig = serve_on(device, &[Export::new("disk", 0)], Bounds::default());
    for style in STYLES {
        let mut client = Client::connect_in(&rig.socket, "disk", style);
        let answers: Vec<_> = (0..20).map(|n| client.write(n * 8192, &[7; 4096])).collect();
        let full = answers.iter().filter(|answer| **answer == Err(ErrorCode::NoSpace)).count();
        let done = answers.iter().filter(|answer| answer.is_ok()).count();
        assert!(full + done == 20 && full > 0, "{style:?}: {answers:?}");
        assert_eq!(client.read(0, 4096).map(|data| data.len()), Ok(4096), "{style:?}");
        assert_eq!(client.call(Command::Flush, NONE, 0, 0, &[]), Ok(vec![]), "{style:?}");
    }
    rig.check_at_rest();
}

/// Names like those of other servers and orchestrators, and the longest name.
#[test]
fn names_of_any_text_are_listed_served_and_changed() {
    let names = [
        "nbd:unix:/run/disk.sock:exportname=a b?c{d}#%2F".to_owned(),
        "\u{e9}\u{4e2d}\u{1f4be}\"'\\$(reboot)`".to_owned(),
        " ".to_owned(),
        "..".to_owned(),
        "n".repeat(4096),
    ];
    let exports = Vec::from_iter(names.iter().map(|name| Export::new(name, 0)));
    let rig = serve_on("memory,size=4", &exports, Bounds::default());
    let handle = rig.server.handle();
    for name in &names {
        let mut client = rig.client(name);
        assert_eq!(client.read(0, 512), Ok(vec![0; 512]), "{name}");
        let settings = ExportSettings { weight: Some(7), ..ExportSettings::default() };
        let change = Request::Export { name: name.clone(), settings };
        assert!(matches!(handle.ask(change), Answer::Done(_)), "{name}");
    }
    let Answer::List { exports, .. } = handle.ask(Request::List) else { panic!("no list") };
    assert!(exports.iter().all(|export| export.weight == 7), "{exports:?}");
    assert!(handle.metrics(Format::OpenMetrics).is_ok_and(|text| text.ends_with("# EOF\n")));
}

/// Exports that are added and removed beside a client leave no group, however often.
#[test]
fn exports_that_come_and_go_leave_no_group() {
    let rig = serve_on("memory,size=4", &[Export::new("disk", 0)], Bounds::default());
    let mut client = rig.client("disk");
    let handle = rig.server.handle();
    let groups = || rig.server.disks()[0].service().queue().plan().groups.iter().count();
    let before = groups();
    for round in 0..20 {
        for n in 0..50 {
            handle.add_export(&Export::new(&format!("e{n}"), 0)).expect("its name is free");
        }
        let mut guest = rig.client("e7");
        assert_eq!(guest.read(0, 512), Ok(vec![0; 512]), "round {round}");
        for n in 0..50 {
            assert!(handle.remove_export(&format!("e{n}")));
        }
        assert_eq!(guest.read(0, 512), Err(ErrorCode::Shutdown), "round {round}");
        drop(guest);
        // The name is taken until its connection is closed.
        until(|| handle.add_export(&Export::new("e7", 0)).is_ok());
        assert!(handle.remove_export("e7"));
        assert_eq!(client.read(0, 512), Ok(vec![0; 512]), "round {round}");
    }
    until(|| groups() == before);
}
