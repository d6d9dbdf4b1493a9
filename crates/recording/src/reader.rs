//! The reader: combines a format, an input, and the rows parsed from it.

use crate::columns::{Description, Rows, Tables};
use crate::format::{self, Format, Processes};
use crate::input::{DescriptionError, Error, Fault, Input, Next};
use crate::record::{Event, MOST_LENGTH, Names, Record, Row, Stamps};
use blkmq_core::Op;
use std::io::Read;

/// Options of a [`Reader`].
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The format, or `None` to detect it from the content.
    pub format: Option<Format>,
    /// The column that names the tenant, instead of the format's.
    pub group_by: Option<String>,
    /// The column that gives the class, instead of the format's.
    pub class_by: Option<String>,
    /// The most rows that may be skipped because they are not I/Os.
    pub skip_bad: u64,
    /// The event of blktrace and blkparse that counts as an arrival.
    pub event: Event,
}

/// The skipped rows.
#[derive(Clone, Debug, Default)]
pub struct Skipped {
    /// The number of bad rows.
    pub bad: u64,
    /// The first few bad rows: line or byte offset, and the reason.
    pub first: Vec<(u64, Fault)>,
    /// Valid lines and records that are not arrivals: comments, other events, opened files.
    pub other: u64,
}

/// Reads a trace.
pub struct Reader {
    input: Input,
    format: Format,
    /// The rows of a format with columns.
    rows: Option<Box<Rows>>,
    /// The processes that blktrace's records have named so far.
    processes: Processes,
    /// The time in an iolog without stamps, in nanoseconds.
    clock: u64,
    event: Event,
    skip_bad: u64,
    skipped: Skipped,
    tenants: Names,
    volumes: Names,
    stamps: Stamps,
    /// The stamp of the first record, in nanoseconds.
    first: Option<u64>,
    records: u64,
}

/// The number of bad rows kept with their reasons.
const KEPT: usize = 5;

impl Reader {
    /// Creates a reader of `source`, which may be compressed with gzip or zstd.
    ///
    /// # Errors
    /// If the source cannot be read, or the format is unknown or does not fit the header.
    pub fn new(source: impl Read + 'static, options: &Options) -> Result<Self, Error> {
        let mut input = Input::new(Box::new(source))?;
        let format = match &options.format {
            Some(format) => format.clone(),
            None => format::detect(input.peek(format::LOOKED_AT)?)?,
        };
        let described = match &format {
            Format::Preset(preset) => Some(Description::parse(preset.columns)?),
            Format::Columns(description) => Some((**description).clone()),
            _ => None,
        };
        let by = options.group_by.is_some() || options.class_by.is_some();
        if by && described.is_none() {
            let name = format.name();
            let text = format!(
                "{name} has no columns to group or class by; accepted: formats with columns"
            );
            return Err(DescriptionError(text).into());
        }
        let has_events = matches!(format, Format::Blktrace | Format::Blkparse);
        if options.event != Event::default() && !has_events {
            let name = format.name();
            let text = format!("{name} has no events to choose; accepted: blktrace, blkparse");
            return Err(DescriptionError(text).into());
        }
        let rows = described.map(|described| rows(described, options, &mut input)).transpose()?;
        Ok(Self {
            input,
            format,
            rows: rows.map(Box::new),
            processes: Processes::default(),
            clock: 0,
            event: options.event,
            skip_bad: options.skip_bad,
            skipped: Skipped::default(),
            tenants: Names::default(),
            volumes: Names::default(),
            stamps: Stamps::new(),
            first: None,
            records: 0,
        })
    }

    /// The next record in the order of the trace, or `None` at its end.
    ///
    /// # Errors
    /// If the bytes cannot be read, or a row is bad and no more may be skipped.
    pub fn next_record(&mut self) -> Result<Option<Record>, Error> {
        loop {
            let place = self.input.offset;
            let fault = match self.next_row()? {
                Next::End => return Ok(None),
                Next::Other => {
                    self.skipped.other += 1;
                    continue;
                }
                Next::Io(row) => match checked(row, self.first) {
                    Ok((record, first)) => {
                        self.first = Some(first);
                        self.records += 1;
                        self.stamps.add(record.arrival);
                        return Ok(Some(record));
                    }
                    Err(fault) => fault,
                },
                Next::Bad(fault) => fault,
            };
            self.bad(place, fault)?;
        }
    }

    fn bad(&mut self, offset: u64, fault: Fault) -> Result<(), Error> {
        let allowed = self.skip_bad;
        let is_binary = matches!(self.format, Format::Blktrace | Format::Vscsi(_));
        let line = self.input.line;
        if self.skipped.bad >= allowed {
            return Err(match is_binary {
                true => Error::Place { offset, fault, allowed },
                false => Error::Row { line, fault, allowed },
            });
        }
        self.skipped.bad += 1;
        if self.skipped.first.len() < KEPT {
            self.skipped.first.push((if is_binary { offset } else { line }, fault));
        }
        Ok(())
    }

    fn next_row(&mut self) -> Result<Next, Error> {
        let tables = &mut Tables { tenants: &mut self.tenants, volumes: &mut self.volumes };
        let (input, event) = (&mut self.input, self.event);
        match self.format {
            Format::Blktrace => {
                return format::next_blktrace(input, &mut self.processes, event, tables);
            }
            Format::Vscsi(version) => return format::next_vscsi(input, version, tables),
            _ => {}
        }
        let Some(line) = input.next_line()? else { return Ok(Next::End) };
        let row = line.and_then(|line| match (&mut self.rows, &self.format) {
            (Some(rows), _) => rows.row(line, tables),
            (_, Format::Iolog(version)) => {
                format::iolog_row(line, *version, &mut self.clock, tables)
            }
            _ => format::blkparse_row(line, event, tables),
        });
        Ok(row.into())
    }

    /// The format, given or detected.
    #[must_use]
    pub fn format(&self) -> &Format {
        &self.format
    }

    /// The rows skipped so far.
    #[must_use]
    pub fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// The names of tenants so far.
    #[must_use]
    pub fn tenants(&self) -> &Names {
        &self.tenants
    }

    /// The names of volumes so far.
    #[must_use]
    pub fn volumes(&self) -> &Names {
        match &self.rows {
            Some(rows) if rows.has_volumes_as_tenants => &self.tenants,
            _ => &self.volumes,
        }
    }

    /// Facts about the stamps so far.
    #[must_use]
    pub fn stamps(&self) -> &Stamps {
        &self.stamps
    }

    /// Returns whether the trace has had events so far, but none of the kind that counts: it may have another kind.
    #[must_use]
    pub fn lacks_event(&self) -> bool {
        let has_events = matches!(self.format, Format::Blktrace | Format::Blkparse);
        has_events && self.records == 0 && self.skipped.other > 0
    }

    /// Records so far.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }
}

/// Prepares the rows of a description, after the header if there is one.
fn rows(mut described: Description, options: &Options, input: &mut Input) -> Result<Rows, Error> {
    if let Some(column) = &options.group_by {
        described.group_by(column)?;
    }
    if let Some(column) = &options.class_by {
        described.class_by(column)?;
    }
    if !described.header {
        return Ok(Rows::new(described, None)?);
    }
    while let Some(line) = input.next_line()? {
        let line = line.map_err(|fault| Error::Row { line: 1, fault, allowed: 0 })?;
        if !line.trim_ascii().is_empty() && !line.starts_with(b"#") {
            return Ok(Rows::new(described, Some(line))?);
        }
    }
    Ok(Rows::new(described, Some(b""))?)
}

/// Returns the record with its arrival relative to the first stamp, and the first stamp.
fn checked((stamp, mut record): Row, first: Option<u64>) -> Result<(Record, u64), Fault> {
    if record.op == Op::Flush {
        // The range of a flush is ignored: formats write 0 or meaningless numbers.
        (record.offset, record.length) = (0, 0);
    } else if record.length == 0 || record.length > MOST_LENGTH {
        return Err(Fault::Length { length: record.length });
    }
    let Record { offset, length, .. } = record;
    if offset.checked_add(length).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Fault::Place { offset });
    }
    let first = first.unwrap_or(stamp);
    let arrival = i64::try_from(i128::from(stamp) - i128::from(first));
    record.arrival = arrival.map_err(|_| Fault::Time { nanos: stamp })?;
    Ok((record, first))
}
