//! Decodes elevator logs. For any bytes, reading ends in calls or in an error that states the offset.

use super::{Call, Entry, FLAGS, Instance, Log, LogError, MAGIC, MOST_SLOTS, OPS, VERSION};
use crate::watched::Heard;
use blkmq_core::{
    Deadline, GroupIndex, HwQueue, Instant, IoError, IoFlags, IoMeta, IoPrio, IoResult, Owner,
    RequestId,
};
use blkmq_sched::index::LAST_SECTOR;
use blkmq_sched::{At, Done, GroupChange, Grown, Guarantee, Pick, Rate, Shape, StatsLevel, Used};

/// The rest of the input.
struct Input<'a> {
    all: &'a [u8],
    at: usize,
    /// The offset of `all` in the log.
    offset: usize,
}

impl<'a> Input<'a> {
    fn here(&self) -> usize {
        self.offset + self.at
    }

    fn invalid(&self, what: &'static str) -> LogError {
        LogError::Invalid { offset: self.here(), what }
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], LogError> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.all.len());
        let end = end.ok_or(LogError::Truncated { offset: self.offset + self.all.len() })?;
        let bytes = &self.all[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, LogError> {
        Ok(self.bytes(1)?[0])
    }

    fn number(&mut self) -> Result<u64, LogError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(self.invalid("a number of more than 64 bits"))
    }

    fn signed(&mut self) -> Result<i64, LogError> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn up_to<T: TryFrom<u64>>(&mut self, most: u64, what: &'static str) -> Result<T, LogError> {
        let number = self.number()?;
        let small = Some(number).filter(|number| *number <= most);
        small.and_then(|number| number.try_into().ok()).ok_or_else(|| self.invalid(what))
    }

    fn text(&mut self) -> Result<&'a str, LogError> {
        let length = self.up_to(u64::from(u32::MAX), "a text of more than 4 GiB")?;
        let bytes = self.bytes(length)?;
        std::str::from_utf8(bytes).map_err(|_| self.invalid("a text that is none"))
    }

    fn id(&mut self, shape: &Shape) -> Result<RequestId, LogError> {
        const WHAT: &str = "a request beyond the slots of its elevator";
        let index = self.up_to(u64::from(shape.slots), WHAT)?;
        // An elevator without slots has no requests.
        if index == shape.slots {
            return Err(self.invalid(WHAT));
        }
        Ok(RequestId::new(index, self.byte()?))
    }

    fn time(&mut self, now: Instant) -> Result<Instant, LogError> {
        let earlier = self.signed()?;
        Ok(Instant::from_nanos(now.as_nanos().wrapping_sub(earlier as u64)))
    }

    fn meta(&mut self, now: Instant) -> Result<IoMeta, LogError> {
        let op = OPS.get(usize::from(self.byte()?)).copied();
        let op = op.ok_or_else(|| self.invalid("an operation that does not exist"))?;
        let bits = self.byte()?;
        if bits >> FLAGS.len() != 0 {
            return Err(self.invalid("a flag that does not exist"));
        }
        let flags = FLAGS.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
        let flags = flags.fold(IoFlags::NONE, |all, (_, flag)| all.union(*flag));
        let sector = self.number()?;
        let sectors = self.up_to(u32::MAX.into(), "an I/O of more than 2 TiB")?;
        // The end of the I/O is stored, too: the next I/O may begin there.
        if sector.checked_add(u64::from(sectors)).is_none_or(|end| end > LAST_SECTOR) {
            return Err(self.invalid("an I/O beyond the last sector that there can be"));
        }
        Ok(IoMeta {
            sector,
            sectors,
            owner: Owner(self.up_to(u32::MAX.into(), "an owner of more than 32 bits")?),
            group: self.group()?,
            // The arrival may be slightly later than `now`: clocks of CPUs differ.
            arrived: self.time(now)?,
            segments: self.up_to(u16::MAX.into(), "more than 65535 segments")?,
            hw: HwQueue(self.up_to(u16::MAX.into(), "a hardware queue beyond 65535")?),
            ioprio: IoPrio::from_bits(self.up_to(u16::MAX.into(), "a priority of over 16 bits")?),
            op,
            flags,
            write_hint: self.byte()?,
            deadline: Deadline::NONE,
        })
    }

    fn result(&mut self) -> Result<IoResult, LogError> {
        match self.up_to(u16::MAX.into(), "an errno of more than 16 bits")? {
            0 => Ok(Ok(())),
            errno => Ok(Err(IoError(errno))),
        }
    }

    fn small(&mut self, what: &'static str) -> Result<u32, LogError> {
        self.up_to(u32::MAX.into(), what)
    }

    fn group(&mut self) -> Result<GroupIndex, LogError> {
        Ok(GroupIndex(self.up_to(u16::MAX.into(), "a group of more than 16 bits")?))
    }

    fn used(&mut self) -> Result<Used, LogError> {
        const WHAT: &str = "more slots than can be";
        let (of, all) = (self.small(WHAT)?, self.small(WHAT)?);
        Ok(Used { of, all, limited: self.small(WHAT)?, unsynced: self.small(WHAT)? })
    }

    fn change(&mut self, kind: u8) -> Result<GroupChange, LogError> {
        const WHAT: &str = "a weight of more than 32 bits";
        let group = self.group()?;
        Ok(match kind {
            22 => GroupChange::Added { group, parent: self.group()?, weight: self.small(WHAT)? },
            23 => GroupChange::Weight { group, weight: self.small(WHAT)? },
            33 => {
                let guarantee = Guarantee { reserve: self.rate()?, limit: self.rate()? };
                GroupChange::Guarantee { group, guarantee }
            }
            _ => GroupChange::Removed { group },
        })
    }

    fn rate(&mut self) -> Result<Rate, LogError> {
        let (iops, bps) = (self.number()?, self.number()?);
        Ok(Rate { iops, bps, percent: self.small("a percentage of more than 32 bits")? })
    }

    fn heard(&mut self, kind: u8) -> Result<Heard, LogError> {
        Ok(match kind {
            26 | 27 => Heard::Token { pool: self.small("a pool beyond all")?, there: kind == 27 },
            29 => Heard::Value { index: self.small("a value beyond all")?, value: self.number()? },
            31 | 32 => Heard::Draining(kind == 32),
            _ => Heard::Level(match self.up_to::<u8>(2, "a level that does not exist")? {
                0 => StatsLevel::Off,
                1 => StatsLevel::Basic,
                _ => StatsLevel::Full,
            }),
        })
    }

    fn call(&mut self, shape: &Shape, before: Instant) -> Result<Call<'a>, LogError> {
        let kind = self.byte()?;
        let passed = self.number()?;
        let now = before.as_nanos().checked_add(passed);
        let now = Instant::from_nanos(now.ok_or_else(|| self.invalid("a time beyond all others"))?);
        let entry = match kind {
            1 | 2 => {
                let at = if kind == 1 { At::Tail } else { At::Head };
                Entry::Insert { rq: self.id(shape)?, at, meta: self.meta(now)? }
            }
            3..=6 | 28 => {
                let hw = HwQueue(self.up_to(u16::MAX.into(), "a hardware queue beyond 65535")?);
                let answer = match kind {
                    3 => Pick::Issue(self.id(shape)?),
                    4 => Pick::Empty,
                    5 => Pick::WaitCompletion,
                    28 => Pick::WaitToken,
                    _ => Pick::WaitUntil(self.time(now)?),
                };
                Entry::Pick { hw, answer }
            }
            7 => {
                let (rq, result) = (self.id(shape)?, self.result()?);
                let (issued, completed) = (self.time(now)?, self.time(now)?);
                Entry::Completed { done: Done { rq, result, issued, completed } }
            }
            8 => Entry::Withdraw { rq: self.id(shape)? },
            9 => Entry::Absorbed {
                into: self.id(shape)?,
                gone: self.id(shape)?,
                meta: self.meta(now)?,
            },
            10..=12 => {
                let (rq, meta) = (self.id(shape)?, self.meta(now)?);
                let edge = match kind {
                    10 => Grown::Back,
                    11 => Grown::Front { old_sector: self.number()? },
                    _ => Grown::Discard,
                };
                Entry::Grown { rq, edge, meta }
            }
            13 | 14 => {
                let (into, io) = (self.id(shape)?, self.meta(now)?);
                Entry::MayMerge { into, io, answer: kind == 14 }
            }
            15 | 16 => Entry::FrontMerges { answer: kind == 16 },
            17 => {
                let depth: u64 = self.up_to(1 << 32, "a depth of more than 32 bits")?;
                Entry::AsyncDepth { answer: depth.checked_sub(1).map(|depth| depth as u32) }
            }
            18 | 19 => {
                let (name, value) = (self.text()?, self.signed()?);
                Entry::Set { name, value, answer: kind == 19 }
            }
            20 | 21 => {
                Entry::Admits { io: self.meta(now)?, used: self.used()?, answer: kind == 21 }
            }
            22..=24 | 33 => Entry::Regroup(self.change(kind)?),
            25 => Entry::Left(Owner(self.small("an owner of more than 32 bits")?)),
            26 | 27 | 29..=32 => Entry::Heard(self.heard(kind)?),
            _ => return Err(self.invalid("an entry of an unknown kind")),
        };
        Ok(Call { now, entry })
    }
}

impl<'a> Log<'a> {
    /// Decodes a log. Its calls are decoded later, by [`Instance::calls`].
    ///
    /// # Errors
    /// If the bytes are no log, or are cut off.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, LogError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(LogError::Magic)?;
        let mut input = Input { all: rest, at: 0, offset: MAGIC.len() };
        let version = input.number()?;
        if version != VERSION {
            return Err(LogError::Version(version));
        }
        let command = input.text()?;
        let mut instances = Vec::new();
        loop {
            match input.number()? {
                0 => return Ok(Self { command, instances }),
                1 => instances.push(instance(&mut input)?),
                _ => return Err(input.invalid("neither an elevator nor the end")),
            }
        }
    }
}

fn instance<'a>(input: &mut Input<'a>) -> Result<Instance<'a>, LogError> {
    let policy = input.text()?;
    let shape = Shape {
        slots: input.up_to(MOST_SLOTS, "more than 2^20 slots")?,
        nr_requests: input.up_to(MOST_SLOTS, "more than 2^20 scheduler tags")?,
        hw_depth: input.up_to(MOST_SLOTS, "more than 2^20 driver tags")?,
        hw_queues: input.up_to(u16::MAX.into(), "more than 65535 hardware queues")?,
        rotational: input.up_to::<u8>(1, "neither rotational nor not")? == 1,
    };
    let count = input.number()?;
    let mut options = Vec::new();
    for _ in 0..count {
        options.push((input.text()?, input.signed()?));
    }
    let missed = input.number()?;
    let length = input.up_to(u64::MAX >> 1, "calls of more bytes than can be")?;
    let offset = input.here();
    let calls = input.bytes(length)?;
    Ok(Instance { policy, shape, options, missed, calls, offset })
}

impl<'a> Instance<'a> {
    /// Decodes the calls of the policy with its answers, in order; an error ends the sequence.
    pub fn calls(&self) -> impl Iterator<Item = Result<Call<'a>, LogError>> + use<'a> {
        let (shape, all, offset) = (self.shape, self.calls, self.offset);
        let mut input = Input { all, at: 0, offset };
        let mut before = Instant::ZERO;
        let mut over = false;
        std::iter::from_fn(move || {
            if over || input.at == input.all.len() {
                return None;
            }
            let call = input.call(&shape, before);
            match &call {
                Ok(call) => before = call.now,
                Err(_) => over = true,
            }
            Some(call)
        })
    }
}
