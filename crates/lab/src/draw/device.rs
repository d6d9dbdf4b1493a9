//! Draws a device: its kind, its parameters, and the faults in it or around it.
//!
//! Parameters are drawn by name, for every device that has them, since devices share the names of null_blk. So a
//! device joins by its name in [`DEVICES`]; its other parameters stay at their defaults, or as they are written
//! there.

use super::Dice;
use crate::scenario::MACHINE;
use blkmq_device::registry;

/// The devices that are drawn, by their names in the registry, each with a frequency equal to its number of entries.
/// Parameters behind a comma are always given, `NAME,size=64` say.
const DEVICES: &[&str] =
    &["null", "null", "null", "null", "memory", "memory", "disk", "flash,size=1", "cloud"];

/// The most failures of one fault point of one hardware queue. They end, so every I/O must end.
const FAULTS: u64 = 60;
/// The most lost requests, each of which takes 5 s of virtual time.
const LOSSES: u64 = 4;

/// How the value of a parameter is drawn; `None` leaves the parameter out.
type Draw = fn(&mut Dice) -> Option<u64>;

/// Parameters by name.
const PARAMETERS: &[(&str, Draw)] = &[
    ("submit_queues", |dice| Some(dice.among(&[1, 1, 2, 4]))),
    ("hw_queue_depth", |dice| Some(dice.magnitude(1, 64))),
    ("irqmode", |dice| Some(dice.among(&[0, 1, 2, 2, 2]))),
    ("completion_nsec", |dice| Some(dice.magnitude(1, 1_000_000))),
    ("bs", |dice| Some(dice.among(&[512, 512, 1024, 4096]))),
    ("discard", |dice| Some(dice.among(&[0, 1]))),
    ("write_cache", |dice| Some(dice.among(&[0, 1]))),
    ("cache_size", |dice| Some(dice.among(&[0, 1]))),
    ("fua", |dice| Some(dice.among(&[0, 1]))),
    ("shared_tags", |dice| dice.one_in(4).then_some(1)),
    ("virt_boundary", |dice| dice.one_in(4).then_some(1)),
    ("budget", |dice| dice.sometimes(4, |dice| dice.magnitude(1, 64))),
    ("service_limit", |dice| dice.sometimes(4, |dice| dice.magnitude(1, 64))),
    ("mbps", |dice| dice.sometimes(4, |dice| dice.magnitude(1, 200))),
    ("max_sectors", |dice| dice.sometimes(4, |dice| dice.magnitude(8, 64))),
    ("badblocks_once", |dice| dice.one_in(2).then_some(1)),
    ("badblocks_partial_io", |dice| dice.one_in(2).then_some(1)),
    ("seed", |dice| Some(dice.0.next_u64())),
];

/// A device that was drawn.
pub(super) struct Drawn {
    /// Its description.
    pub(super) text: String,
    /// Whether the device stores contents.
    pub(super) stores: bool,
}

fn pair(text: &mut String, name: &str, value: impl std::fmt::Display) {
    text.push_str(&format!(",{name}={value}"));
}

pub(super) fn device(dice: &mut Dice) -> Drawn {
    let mut text = dice.among(DEVICES).to_owned();
    let name = text.split(',').next().unwrap_or_default();
    let factory = registry::find(name).expect("drawn devices are in the registry");
    let has = |name: &str| factory.parameters.iter().any(|parameter| parameter.name == name);
    for (name, draw) in PARAMETERS.iter().filter(|(name, _)| has(name)) {
        if let Some(value) = draw(dice) {
            pair(&mut text, name, value);
        }
    }
    if has("badblocks") && dice.one_in(4) {
        let first = dice.magnitude(0, 512);
        pair(&mut text, "badblocks", format!("+{first}-{}", first + dice.magnitude(0, 64)));
    }
    let built = registry::parse(&text, &MACHINE).expect("what is drawn is possible");
    let stores = built.memory().is_some();
    if dice.one_in(2) {
        if has("dev_resource") && dice.one_in(2) {
            inner_faults(dice, &mut text);
        } else {
            text = format!("{}:{text}", outer_faults(dice, &text));
        }
    }
    Drawn { text, stores }
}

fn fault(dice: &mut Dice, most: u64) -> String {
    let interval = dice.magnitude(1, 20);
    let probability = dice.among(&[5, 30, 100]);
    let space = dice.magnitude(0, 50);
    format!("{interval}:{probability}:{space}:{}", dice.magnitude(1, most))
}

/// Draws faults of a null device itself.
fn inner_faults(dice: &mut Dice, text: &mut String) {
    for (name, most) in [
        ("resource", FAULTS),
        ("dev_resource", FAULTS),
        ("requeue", FAULTS),
        ("requeue_tail", FAULTS),
        ("timeout", LOSSES),
    ] {
        if let Some(value) = dice.sometimes(2, |dice| fault(dice, most)) {
            pair(text, name, value);
        }
    }
    pair(text, "timeout_resets", dice.among(&[0, 0, 1, 3]));
}

/// The device of faults around that device, without the part behind its colon.
fn outer_faults(dice: &mut Dice, inside: &str) -> String {
    let mut text = "faults".to_owned();
    for name in [
        "resource",
        "dev_resource",
        "requeue",
        "timeout",
        "error",
        "flush_error",
        "late",
        "reorder",
    ] {
        if dice.one_in(3) {
            pair(&mut text, name, dice.among(&["0.01", "0.1", "0.5"]));
        }
    }
    // The device answers the engine's questions about a late request some day, but not after any number of them: the
    // timeout is not much shorter than the longest service time, where that is known.
    if inside.contains(",completion_nsec=") && !inside.contains(",mbps=") {
        pair(&mut text, "timeout_nsec", dice.magnitude(1_500_000, 100_000_000));
    }
    pair(&mut text, "late_nsec", dice.magnitude(1, 10_000_000));
    pair(&mut text, "space", dice.magnitude(0, 50));
    pair(&mut text, "times", dice.magnitude(1, FAULTS));
    pair(&mut text, "seed", dice.0.next_u64());
    text
}
