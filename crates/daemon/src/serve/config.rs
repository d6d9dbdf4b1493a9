//! The configuration file, `blkmqd CONFIG.toml`: the settings of the command line, and the bounds of the server.
//!
//! A file is checked as a whole: every fault is reported with its line and column. Nothing is opened here, so facts
//! that only the device knows, such as its size, are checked when the server starts.

use super::access::{self, Ways};
use super::export::{self, Draft};
use super::wanted::{self, Control, DiskChoice, Http, Wanted};
use blkmq_server::{Address, Bounds, Export, Rights};
use blkmq_terminal::table::{Faults, Span, Table, nearest};
use blkmq_terminal::{SchedulerChoice, UsageError, bounded};
use tracing_subscriber::filter::LevelFilter;

/// The maximum length of a file in bytes.
const LONGEST: u64 = 1 << 20;

/// Reads the file at `path`.
///
/// # Errors
/// One line for each fault, with the accepted values.
pub fn read(path: &str) -> Result<Wanted, Vec<String>> {
    read_text(path).map(|(_, wanted)| wanted)
}

/// Like [`read`], also returning the text of the file.
///
/// # Errors
/// See [`read`].
pub fn read_text(path: &str) -> Result<(String, Wanted), Vec<String>> {
    let read = || {
        let bytes = bounded::read(path, "a configuration", LONGEST);
        let bytes = bytes.map_err(|e| vec![e.to_string()])?;
        let text = String::from_utf8(bytes).map_err(|_| vec![format!("{path}: not UTF-8 text")])?;
        match parse(&text) {
            Ok(wanted) => Ok((text, wanted)),
            Err(faults) => Err(faults.lines(path, &text)),
        }
    };
    read().map_err(|mut faults| {
        faults[0].push_str(&hint(path));
        faults
    })
}

/// Suggests the option that was probably meant if `path` looks like a device.
fn hint(path: &str) -> String {
    if wanted::check_device(path).is_ok() {
        format!("; a device is served by --device={path}")
    } else if std::fs::exists(path).is_ok_and(|is| is) && !path.ends_with(".toml") {
        format!("; a disk is served by --device=uring:{path}")
    } else {
        String::new()
    }
}

/// The first of the `faults` of the file at `path`, for a command that cannot continue.
pub fn first(faults: &[String], path: &str) -> UsageError {
    let more = faults.len() - 1;
    let more = if more == 0 {
        String::new()
    } else {
        format!(" (and {more} more: blkmqd --check {path} lists them)")
    };
    UsageError::new(format!("{}{more}", faults[0]))
}

/// Parses a text. Returns `None` if it has a fault.
pub fn understood(text: &str) -> Option<Wanted> {
    parse(text).ok()
}

/// Parses a text that has no fault.
#[cfg(test)]
pub fn parsed(text: &str) -> Wanted {
    parse(text).unwrap_or_else(|faults| panic!("{:#?}", faults.lines("text", text)))
}

fn parse(text: &str) -> Result<Wanted, Faults> {
    let mut faults = Faults::default();
    let (document, errors) = toml::de::DeTable::parse_recoverable(text);
    for error in errors {
        faults.add(&error.span().unwrap_or_default(), error.message());
    }
    // After a syntax error the rest would be misread.
    if !faults.is_empty() {
        return Err(faults);
    }
    let wanted = whole(Table::new(document.get_ref(), document.span()), &mut faults);
    if faults.is_empty() { Ok(wanted) } else { Err(faults) }
}

fn whole(mut file: Table<'_>, faults: &mut Faults) -> Wanted {
    let mut listen = Vec::new();
    for (text, span) in file.texts("listen", faults) {
        match text.parse::<Address>() {
            Ok(address) => listen.push(address),
            Err(error) => faults.add(&span, error),
        }
    }
    let http = read_http(&mut file, faults);
    let workers = file.value("workers", faults, wanted::workers);
    let control = file.text("control", faults).map(|(text, _)| text);
    let log = file.value("log", faults, wanted::level);
    let counting = file.value("stats", faults, wanted::counting);
    let slow = file.value("slow-io", faults, wanted::seconds);
    let log_format = file.value("log-format", faults, wanted::log_format);
    let tls = file.text("tls-certificates", faults).map(|(text, _)| text.into());
    let listen = listen.into();
    let ways = Ways::new(&listen, tls.is_some());
    let allow = access::read(&mut file, faults).map(|(rules, allow)| {
        for (rule, at) in &rules {
            let checked = ways.check(rule).map_err(|error| error.at(access::KEY));
            checked.unwrap_or_else(|error| faults.add(at, error));
        }
        allow
    });
    let mut rights = Rights::default();
    for key in wanted::RIGHTS_KEYS {
        file.value(key, faults, |text| wanted::set_right(&mut rights, key, text));
    }
    let bounds = file.table("bounds", faults).map(|it| read_bounds(it, faults));
    let mut names = Vec::new();
    let mut disks = Vec::new();
    let devices = file.tables("device", faults);
    let has_devices = !devices.is_empty();
    for device in devices {
        disks.extend(disk(device, &mut names, faults));
    }
    let mut exports: Vec<Export> = Vec::new();
    let mut others = export::Names::default();
    for export in file.tables("export", faults) {
        let export = read_export(export, &names, &mut others, (ways, faults));
        exports.extend(export);
    }
    if !has_devices {
        faults.add(&file.span, "no device; accepted: at least one [[device]]");
    }
    file.end(faults);
    if exports.is_empty() {
        exports = wanted::by_default(disks.len());
    }
    Wanted {
        disks,
        exports,
        control: Control::named(control.as_deref()),
        listen,
        http,
        workers: workers.unwrap_or_else(blkmq_runtime::available_cpus),
        log: log.unwrap_or(LevelFilter::INFO),
        log_format: log_format.unwrap_or_default(),
        bounds: bounds.unwrap_or_default(),
        tls,
        allow,
        rights,
        counting: counting.unwrap_or_default(),
        slow: slow.unwrap_or_default(),
    }
}

/// Reads the settings of HTTP. A fault in their combination is reported at the address.
fn read_http(file: &mut Table<'_>, faults: &mut Faults) -> Option<Http> {
    let [address, public, name] = wanted::HTTP_KEYS;
    let at = file.text(address, faults);
    let is_public = file.value(public, faults, wanted::yes).unwrap_or(false);
    let mut names = Vec::new();
    for (text, span) in file.texts(name, faults) {
        match wanted::host_name(&text) {
            Ok(name) => names.push(name),
            Err(error) => faults.add(&span, error.at(name)),
        }
    }
    let span = at.as_ref().map_or_else(|| file.span.clone(), |(_, span)| span.clone());
    let read = at.map(|(text, _)| wanted::http_address(&text)).transpose();
    let http = read.and_then(|at| Http::new(at, is_public, names));
    http.unwrap_or_else(|error| {
        faults.add(&span, error.at(address));
        None
    })
}

fn read_bounds(mut table: Table<'_>, faults: &mut Faults) -> Bounds {
    let mut all = Bounds::default();
    for (key, set) in wanted::BOUNDS {
        table.value(key, faults, |text| set(&mut all, text));
    }
    table.end(faults);
    all
}

/// Reads a device, and adds its name to `names`.
fn disk(mut table: Table<'_>, names: &mut Vec<String>, faults: &mut Faults) -> Option<DiskChoice> {
    let name = required(&mut table, "name", faults);
    let device = required(&mut table, "device", faults);
    let scheduler = table.value("scheduler", faults, wanted::scheduler);
    let scheduler = scheduler.unwrap_or_else(SchedulerChoice::auto);
    let device_depth = table.value("device-depth", faults, wanted::device_depth);
    table.end(faults);
    let ((name, at), (device, spec)) = (name?, device?);
    if names.contains(&name) {
        faults.add(&at, format!("two devices are called '{name}'"));
    }
    if let Err(error) = wanted::check_device(&device) {
        faults.add(&spec, error);
    }
    names.push(name.clone());
    let device_depth = device_depth.unwrap_or_default();
    Some(DiskChoice { name, device, scheduler, device_depth })
}

fn read_export(
    mut table: Table<'_>,
    devices: &[String],
    others: &mut export::Names,
    (ways, faults): (Ways, &mut Faults),
) -> Option<Export> {
    let name = required(&mut table, "name", faults);
    let mut draft = Draft::new(name.as_ref().map_or("", |(name, _)| name));
    match table.text("device", faults) {
        Some((device, at)) => match devices.iter().position(|it| *it == device) {
            Some(number) => draft.export.disk = number,
            None => faults.add(&at, unknown_device(&device, devices)),
        },
        None if devices.len() > 1 => {
            faults.add(&table.span, format!("no device; accepted: device = \"{}\"", devices[0]));
        }
        None => {}
    }
    for key in export::keys().filter(|key| !["device", access::KEY].contains(key)) {
        table.value(key, faults, |text| draft.set(key, text, 0));
    }
    let allow = access::read(&mut table, faults);
    table.end(faults);
    let (_, at) = name?;
    let rules = allow.map_or_else(Vec::new, |(rules, allow)| {
        draft.export.allow = Some(allow);
        rules
    });
    let export = draft.finish().map_err(|error| faults.add(&at, error)).ok()?;
    for (rule, at) in &rules {
        let checked = ways.check_of(&export, rule).map_err(|error| error.at(access::KEY));
        checked.unwrap_or_else(|error| faults.add(at, error));
    }
    if let Err(error) = others.add(&export) {
        faults.add(&at, error);
    }
    Some(export)
}

fn unknown_device(name: &str, devices: &[String]) -> UsageError {
    let near = nearest(name, devices.iter().map(String::as_str));
    let accepted = if near.is_empty() { devices.join(", ") } else { near.join(", ") };
    UsageError::new(format!("no device is called '{name}'; accepted: {accepted}"))
}

fn required(
    table: &mut Table<'_>,
    key: &'static str,
    faults: &mut Faults,
) -> Option<(String, Span)> {
    let before = faults.len();
    let value = table.text(key, faults);
    if value.is_none() && before == faults.len() {
        faults.add(&table.span, format!("no {key}; accepted: {key} = \"TEXT\""));
    }
    value
}

#[cfg(test)]
mod tests {
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
        assert_eq!(
            (http.address.to_string(), http.names.len()),
            ("tcp:0.0.0.0:10810".to_owned(), 2)
        );
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
        let alike =
            faults(&format!("{DEVICE}[[export]]\nname = 'a/b'\n[[export]]\nname = 'a_b'\n"));
        assert_eq!(
            alike,
            ["f:7:8: exports 'a/b' and 'a_b' cannot be told apart in lists of groups"]
        );
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
        assert_eq!(faults(&format!("{DEVICE}[bounds]\nbyte = '1g'\n")).len(), 1);
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
        let all = all
            .into_iter()
            .chain(wanted::RIGHTS_KEYS)
            .chain(wanted::BOUNDS.map(|(key, _)| key))
            .chain(export::keys());
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
}
