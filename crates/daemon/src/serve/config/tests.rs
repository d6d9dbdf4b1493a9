use super::*;
use crate::serve::process::LogFormat;
use crate::serve::wanted::{Control, Listen};

fn faults(text: &str) -> Vec<String> {
    let faults = parse(text).err().unwrap_or_else(|| panic!("no fault in {text}"));
    faults.lines("f", text)
}

const DEVICE: &str = "[[device]]\nname = \"a\"\ndevice = \"null\"\n";

#[test]
fn the_shortest_file_has_a_device() {
    let wanted = parsed(DEVICE);
    assert_eq!((wanted.disks[0].name.as_str(), wanted.disks[0].device.as_str()), ("a", "null"));
    assert_eq!(wanted.exports, [Export::new("disk", 0)]);
    assert_eq!(wanted.bounds, Bounds::default());
    assert_eq!((wanted.listen, wanted.control), (Listen::Default, Control::Beside));
}

#[test]
fn every_key_is_read() {
    let wanted = parsed(
        "listen = ['unix:/x', 'tcp:127.0.0.1']\nworkers = 3\ncontrol = '/c'\nlog = 'debug'\nlog-format = 'json'\nsocket-mode = '0660'\n\
         http = 'tcp:0.0.0.0'\nhttp-public = true\nhttp-name = ['a.example', 'b']\n\
         [bounds]\nrequests = 7\nbytes = '100m'\nhandshake = '3s'\n\
         [[device]]\nname = 'a'\ndevice = 'null'\n\
         [[device]]\nname = 'b'\ndevice = 'memory,size=8'\nscheduler = 'bfq:low_latency=0'\n\
         [[export]]\nname = 'x'\ndevice = 'b'\noffset = 4096\nsize = '1m'\nread-only = true\nweight = 300\n\
         rbps = '1m'\nwbps = 5\nriops = 6\nwiops = 7\ndescription = 'slow, but \"safe\"'\n",
    );
    assert!(matches!(&wanted.listen, Listen::At(all) if all.len() == 2));
    assert_eq!((wanted.workers, wanted.log), (3, LevelFilter::DEBUG));
    assert_eq!(wanted.log_format, LogFormat::Json);
    assert_eq!(wanted.control, Control::At("/c".into()));
    assert_eq!(wanted.rights.mode, 0o660);
    let http = wanted.http.expect("it is there");
    assert_eq!((http.address.to_string(), http.names.len()), ("tcp:0.0.0.0:10810".to_owned(), 2));
    assert_eq!((wanted.bounds.requests, wanted.bounds.bytes), (7, 100 << 20));
    assert_eq!(
        (wanted.disks[0].scheduler.word(), wanted.disks[1].scheduler.word()),
        ("auto", "bfq")
    );
    let export = &wanted.exports[0];
    let region = export.region.as_ref().expect("it has one");
    assert_eq!((export.disk, region.offset, region.size), (1, 4096, Some(1 << 20)));
    assert!(export.read_only);
    assert_eq!(export.max.to_string(), "rbps=1048576 wbps=5 riops=6 wiops=7");
    assert_eq!(export.description, "slow, but \"safe\"");
}

#[test]
fn every_fault_is_found_and_has_its_place() {
    let text = "workers = 0\nlistn = 'x'\nlisten = ['floppy']\n[bounds]\nrequest = 1\nbytes = '1k'\n\
                [[device]]\nname = 'a'\ndevice = 'floppy'\nscheduler = 'cfq'\n\
                [[device]]\nname = 'a'\n\
                [[export]]\nname = 'x'\ndevice = 'b'\nweight = 1001\n\
                [[export]]\nname = 'y'\nsize = 1.5\nburst = [2]\n";
    let found = faults(text);
    let expected = [
        ("f:1:11: workers: out of range", "accepted"),
        ("f:2:1: no such key 'listn'", "accepted: listen"),
        ("f:3:11: 'floppy' is no address", "unix:PATH"),
        ("f:5:1: no such key 'request'", "accepted: requests"),
        ("f:6:9: bytes: out of range", "accepted"),
        ("f:9:10: there is no device 'floppy'", "accepted: null, memory"),
        ("f:10:13: scheduler: no scheduler 'cfq'", "mq-deadline"),
        ("f:11:1: no device", "accepted: device = "),
        ("f:15:10: no device is called 'b'", "accepted: a"),
        ("f:16:10: weight: '1001' is not valid", "accepted: 1 to 1000"),
        ("f:19:8: size: '1.5' is not valid", "accepted: bytes"),
        ("f:20:9: not a value", "accepted: \"text\""),
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, (begin, accepted)) in found.iter().zip(expected) {
        assert!(found.starts_with(begin) && found.contains(accepted), "{found}\n{begin}");
    }
}

/// Regression test: the check accepted names that the server refused at start.
#[test]
fn an_export_has_a_name_that_the_start_accepts() {
    let found = faults(&format!(
        "{DEVICE}[[export]]\nname = \"a\\nb\"\n[[export]]\nname = '{}'\n[[export]]\nname = 'a b'\n",
        "x".repeat(4097)
    ));
    assert_eq!(found.len(), 2, "{found:#?}");
    let expected = "f:5:8: \"a\\nb\" is no name for an export; accepted: up to 4096 bytes";
    assert!(found[0].starts_with(expected), "{}", found[0]);
    assert!(found[1].starts_with("f:7:8: \"xxx"), "{}", found[1]);
    // The names of their groups collide.
    let alike = faults(&format!("{DEVICE}[[export]]\nname = 'a/b'\n[[export]]\nname = 'a_b'\n"));
    assert_eq!(alike, ["f:7:8: exports 'a/b' and 'a_b' cannot be told apart in lists of groups"]);
    parsed(&format!("{DEVICE}[[export]]\nname = ''\n[[export]]\nname = 'a/b.c-d_9'\n"));
}

#[test]
fn rules_on_clients_are_read_and_those_that_cannot_match_have_their_place() {
    let wanted = parsed(&format!(
        "listen = ['unix:/x', 'tcp:127.0.0.1']\ntls-certificates = '/pki'\nallow = ['net:10.0.0.0/8', 'uid:0']\n\
         {DEVICE}[[export]]\nname = 'x'\nallow = 'cn:gold'\n"
    ));
    assert_eq!(wanted.allow.expect("there are some").rules().len(), 2);
    let allow = wanted.exports[0].allow.as_ref().expect("there is one");
    assert_eq!(allow.rules(), [blkmq_server::Rule::CommonName("gold".to_owned())]);
    assert_eq!(parsed(DEVICE).allow, None);
    let text = format!(
        "listen = 'tcp:127.0.0.1'\nallow = ['cn:a', 'uid:1', 'net:::/0']\n{DEVICE}\
         [[export]]\nname = 'x'\nallow = ['gid:2', 'gold']\n\
         [[export]]\nname = 'y'\nallow = []\n\
         [[export]]\nname = 'z'\nvhost-user = '/z'\nallow = ['uid:3', 'net:10.0.0.0/8']\n\
         [[export]]\nname = 'w'\nallow = [ 'gid:2' ]\n"
    );
    let found = faults(&text);
    let expected = [
        ("f:2:10: allow: 'cn:a' can never match", "ca-cert.pem"),
        ("f:2:18: allow: 'uid:1' can never match", "unix:PATH"),
        ("f:8:19: allow: 'gold' is no rule", "cn:NAME, san:NAME"),
        ("f:11:9: allow: no rule, so that no client", "or no list at all"),
        ("f:15:19: allow: 'net:10.0.0.0/8' can never match the monitor", "uid:NUMBER"),
        ("f:18:11: allow: 'gid:2' can never match", "unix:PATH"),
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, (begin, accepted)) in found.iter().zip(expected) {
        assert!(found.starts_with(begin) && found.contains(accepted), "{found}\n{begin}");
    }
}

#[test]
fn names_are_there_once_and_devices_are_named_where_there_are_several() {
    let two = format!("{DEVICE}{}", DEVICE.replace("'a'", "'b'"));
    assert!(faults(&two)[0].contains("two devices are called 'a'"));
    let export = "[[export]]\nname = 'x'\n";
    let twice = faults(&format!("{DEVICE}{export}{export}"));
    assert!(twice[0].starts_with("f:7:8: two exports are called 'x'"), "{twice:?}");
    let unclear = faults(&format!("{DEVICE}{}{export}", DEVICE.replace("\"a\"", "\"b\"")));
    assert!(unclear[0].contains("no device; accepted: device = \"a\""), "{unclear:?}");
}

#[test]
fn a_file_that_is_no_toml_is_a_fault_where_it_stops_being_it() {
    assert!(faults("a = 1\nb = = 2\n")[0].starts_with("f:2:5: "));
    assert!(faults("")[0].contains("no device"));
    let nameless = faults("[[device]]\ndevice = 'null'\n");
    assert!(nameless.len() == 1 && nameless[0].contains("no name"), "{nameless:?}");
    assert!(faults("device = 3\n")[1].contains("accepted: [[device]]"));
}

#[test]
fn the_example_has_every_key_and_no_fault() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/serve.toml");
    let text = std::fs::read_to_string(path).expect("the example is there");
    let wanted = parsed(&text);
    assert!(wanted.disks.len() > 1 && wanted.exports.len() > 1);
    let all = [
        "listen",
        "workers",
        "control",
        "log",
        "tls-certificates",
        "allow",
        "name",
        "device",
        "scheduler",
    ];
    let all =
        all.into_iter().chain(wanted::RIGHTS_KEYS).chain(wanted::BOUNDS_KEYS).chain(export::KEYS);
    for key in all {
        let is_set = |line: &str| {
            let line = line.trim_start_matches(['#', ' ']);
            line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='))
        };
        assert!(text.lines().any(is_set), "{key}");
    }
}

#[test]
fn http_is_for_this_machine_unless_it_is_public() {
    assert_eq!(parsed(DEVICE).http, None);
    let found = faults(&format!("http = 'tcp:0.0.0.0'\n{DEVICE}"));
    assert!(found[0].starts_with("f:1:8: http: tcp:0.0.0.0:10810 is open to"), "{found:?}");
    let found = faults(&format!("http-name = 'a b'\nhttp-public = 2\nhttp = 'x'\n{DEVICE}"));
    let expected = [
        "f:1:13: http-name: 'a b' is no host name",
        "f:2:15: http-public: ",
        "f:3:8: http: 'x' is no",
    ];
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected) && found.contains("accepted"), "{found}");
    }
    assert_eq!(found.len(), 3, "{found:?}");
    let found = faults(&format!("http-name = 'a'\n{DEVICE}"));
    assert!(found.len() == 1 && found[0].contains("http, which is off"), "{found:?}");
}
