//! Writers of traces in the formats of other programs: fio's iologs, CSV, and MQSim's.

use crate::record::{Names, Record};
use blkmq_core::{Class, Op};
use std::io::{self, Write};

/// An output format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// CSV with every field, which can be read back without loss.
    Csv,
    /// fio's iolog version 2, with gaps in microseconds.
    Iolog2,
    /// fio's iolog version 3, with times in microseconds.
    Iolog3,
    /// MQSim's format: reads and writes only.
    Mqsim,
}

impl Form {
    /// The formats and their names.
    pub const NAMES: [(Self, &'static str); 4] = [
        (Self::Csv, "csv"),
        (Self::Iolog2, "iolog2"),
        (Self::Iolog3, "iolog3"),
        (Self::Mqsim, "mqsim"),
    ];
}

/// Writes records.
pub struct Writer<W> {
    form: Form,
    out: W,
    /// Whether the iolog has opened each volume.
    opened: Vec<bool>,
    last: i64,
    left_out: u64,
}

/// The longest file name that fio reads.
const MOST_NAME: usize = 255;

impl<W: Write> Writer<W> {
    /// Creates a writer to `out`, which should be buffered.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn new(form: Form, mut out: W) -> io::Result<Self> {
        match form {
            Form::Csv => writeln!(out, "time_ns,op,offset,size,tenant,volume,class,latency_ns")?,
            Form::Iolog2 => writeln!(out, "fio version 2 iolog")?,
            Form::Iolog3 => writeln!(out, "fio version 3 iolog")?,
            Form::Mqsim => {}
        }
        Ok(Self { form, out, opened: Vec::new(), last: 0, left_out: 0 })
    }

    /// Writes a record. Arrivals before the first record are clamped to it.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn write(&mut self, record: &Record, tenants: &Names, volumes: &Names) -> io::Result<()> {
        let arrival = record.arrival.max(0);
        match self.form {
            Form::Csv => self.csv(record, tenants, volumes),
            Form::Iolog2 | Form::Iolog3 => self.iolog(record, arrival, volumes),
            Form::Mqsim => match record.op {
                Op::Read | Op::Write => {
                    let (sector, sectors) = (record.offset / 512, record.length.div_ceil(512));
                    let kind = u32::from(record.op == Op::Read);
                    let volume = record.volume;
                    writeln!(self.out, "{arrival} {volume} {sector} {sectors} {kind}")
                }
                _ => {
                    self.left_out += 1;
                    Ok(())
                }
            },
        }
    }

    fn csv(&mut self, record: &Record, tenants: &Names, volumes: &Names) -> io::Result<()> {
        let Record { arrival, offset, length, latency, .. } = *record;
        let op = match record.op {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::WriteZeroes => "zeroes",
        };
        let class = match record.prio.class() {
            Class::None => "none",
            Class::Realtime => "rt",
            Class::BestEffort => "be",
            Class::Idle => "idle",
        };
        let tenant = clean(tenants.name(record.tenant), &[',', '"', '\n', '\r']);
        let volume = clean(volumes.name(record.volume), &[',', '"', '\n', '\r']);
        let latency = latency.map(|it| it.to_string()).unwrap_or_default();
        let arrival = arrival.max(0);
        writeln!(self.out, "{arrival},{op},{offset},{length},{tenant},{volume},{class},{latency}")
    }

    fn iolog(&mut self, record: &Record, arrival: i64, volumes: &Names) -> io::Result<()> {
        let action = match record.op {
            Op::Read => "read",
            Op::Write | Op::WriteZeroes => "write",
            Op::Discard => "trim",
            Op::Flush => "sync",
        };
        let mut file = clean(volumes.name(record.volume), &[' ', '\t', '\n', '\r']);
        if file.is_empty() {
            file = "trace".into();
        }
        while file.len() > MOST_NAME {
            file.pop();
        }
        let stamp =
            if self.form == Form::Iolog3 { format!("{} ", arrival / 1_000) } else { String::new() };
        let number = record.volume as usize;
        if self.opened.len() <= number {
            self.opened.resize(number + 1, false);
        }
        if !self.opened[number] {
            self.opened[number] = true;
            writeln!(self.out, "{stamp}{file} add\n{stamp}{file} open")?;
        }
        let wait = (arrival / 1_000 - self.last / 1_000).max(0);
        if self.form == Form::Iolog2 && wait > 0 {
            writeln!(self.out, "{file} wait {wait} 0")?;
        }
        self.last = self.last.max(arrival);
        writeln!(self.out, "{stamp}{file} {action} {} {}", record.offset, record.length)
    }

    /// Ends the output, and returns the number of records that the format cannot express.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn finish(mut self) -> io::Result<u64> {
        self.out.flush()?;
        Ok(self.left_out)
    }
}

/// Replaces characters that the format does not allow with `_`.
fn clean(name: &str, bad: &[char]) -> String {
    name.chars().map(|it| if bad.contains(&it) { '_' } else { it }).collect()
}
