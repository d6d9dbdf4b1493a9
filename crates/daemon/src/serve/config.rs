//! The configuration file, `blkmqd CONFIG.toml`: the settings of the command line, and the bounds of the server.
//!
//! A file is checked as a whole: every fault is reported with its line and column. Nothing is opened here, so facts
//! that only the device knows, such as its size, are checked when the server starts.

#[cfg(test)]
mod tests;

use super::access::{self, Ways};
use super::export::{self, Draft};
use super::wanted::{self, Control, DiskChoice, Http, Wanted};
use blkmq_server::{Address, Bounds, Export};
use blkmq_terminal::table::Faults;
use blkmq_terminal::table::nearest;
use blkmq_terminal::table::{Span, Table};
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
    let slow = file.value("slow-io", faults, wanted::slow);
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
    let mut socket = wanted::SocketRights::default();
    for key in wanted::RIGHTS_KEYS {
        file.value(key, faults, |text| socket.set(key, text));
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
        rights: socket.rights(),
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
    for key in wanted::BOUNDS_KEYS {
        table.value(key, faults, |text| wanted::set_bound(&mut all, key, text));
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
            Some(number) => draft.set_device(number),
            None => faults.add(&at, unknown_device(&device, devices)),
        },
        None if devices.len() > 1 => {
            faults.add(&table.span, format!("no device; accepted: device = \"{}\"", devices[0]));
        }
        None => {}
    }
    for key in export::KEYS.into_iter().filter(|key| !["device", access::KEY].contains(key)) {
        table.value(key, faults, |text| draft.set(key, text, 0));
    }
    let allow = access::read(&mut table, faults);
    table.end(faults);
    let (_, at) = name?;
    let rules = allow.map_or_else(Vec::new, |(rules, allow)| {
        draft.set_allow(allow);
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
