//! A second implementation of the service engine (`spec/bfq.md` section 3, `doc/bfq.md`): members in plain vectors,
//! sums by addition, look-ups by scanning. It shares only the arithmetic of virtual time with
//! [`blkmq_sched::bfq::wf2q`].
//!
//! With a [`Bug`] it is wrong on purpose, so that a test can show that it detects the bug.

use blkmq_core::{Instant, Nanos};
use blkmq_sched::bfq::wf2q::{Class, From, Keep, ROOT, View, When, after, delta};

/// A bug of a twin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// No bug.
    None,
    /// The member that finishes first is next, whether it has started or not.
    Eager,
    /// Idle members are never forgotten.
    Remembers,
    /// A queue that was served continues from its old start.
    Forgives,
    /// A queue that was idle for a moment has no earlier claim.
    NoShift,
    /// The idle class has no turn of its own.
    NoIdleTurn,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Off,
    Active,
    Idle,
}

#[derive(Clone)]
struct Member {
    level: usize,
    class: Class,
    next_class: Class,
    weight: u64,
    next_weight: u64,
    raised: u64,
    start: u64,
    finish: u64,
    budget: u64,
    service: u64,
    place: Where,
    /// The number of its entry into its tree.
    entered: u64,
    tracked: bool,
}

#[derive(Clone)]
struct Level {
    vtime: [u64; 3],
    next: Option<usize>,
    serving: Option<usize>,
    idle_turn: Instant,
    gone: bool,
}

/// The naive engine, with the calls of [`Wf2q`](blkmq_sched::bfq::wf2q::Wf2q).
pub struct Naive {
    members: Vec<Member>,
    levels: Vec<Level>,
    queues: usize,
    clock: u64,
    bug: Bug,
}

const NEW: Member = Member {
    level: 0,
    class: Class::BestEffort,
    next_class: Class::BestEffort,
    weight: 1,
    next_weight: 1,
    raised: 1,
    start: 0,
    finish: 0,
    budget: 0,
    service: 0,
    place: Where::Off,
    entered: 0,
    tracked: false,
};

const NEW_LEVEL: Level =
    Level { vtime: [0; 3], next: None, serving: None, idle_turn: Instant::ZERO, gone: false };

impl Naive {
    #[must_use]
    pub fn new(queues: u32, bug: Bug) -> Self {
        let members = vec![NEW; queues as usize + 1];
        Self { members, levels: vec![NEW_LEVEL], queues: queues as usize, clock: 0, bug }
    }

    pub fn add_level(&mut self, parent: u32, weight: u32) -> u32 {
        let at = self.levels.iter().position(|l| l.gone).unwrap_or(self.levels.len());
        if at == self.levels.len() {
            self.levels.push(NEW_LEVEL);
            self.members.push(NEW);
        }
        self.levels[at] = NEW_LEVEL;
        let weight = u64::from(weight);
        self.members[self.queues + at] =
            Member { level: parent as usize, weight, next_weight: weight, ..NEW };
        at as u32
    }

    pub fn remove_level(&mut self, level: u32) {
        self.levels[level as usize].gone = true;
        self.untrack(self.queues + level as usize);
    }

    pub fn set_level_weight(&mut self, level: u32, weight: u32) {
        self.members[self.queues + level as usize].next_weight = weight.into();
    }

    pub fn attach(&mut self, queue: u32, level: u32, class: Class, weight: u32) {
        let (level, weight) = (level as usize, u64::from(weight));
        self.members[queue as usize] =
            Member { level, class, next_class: class, weight, next_weight: weight, ..NEW };
    }

    pub fn move_to(&mut self, queue: u32, level: u32) {
        self.untrack(queue as usize);
        self.members[queue as usize].level = level as usize;
    }

    pub fn want(&mut self, queue: u32, class: Class, weight: u32, raised: u32) {
        let m = &mut self.members[queue as usize];
        (m.next_class, m.next_weight, m.raised) = (class, weight.into(), raised.into());
    }

    pub fn reweigh(&mut self, queue: u32) {
        let m = &mut self.members[queue as usize];
        m.weight = m.next_weight;
    }

    pub fn set_budget(&mut self, queue: u32, budget: u64) {
        self.members[queue as usize].budget = budget;
    }

    pub fn set_service(&mut self, queue: u32, service: u64) {
        self.members[queue as usize].service = service;
    }

    #[must_use]
    pub fn vtime(&self, level: u32, class: Class) -> u64 {
        self.levels[level as usize].vtime[class as usize]
    }

    #[must_use]
    pub fn wsum(&self, level: u32, class: Class) -> u64 {
        let here = |m: &&Member| m.level == level as usize && m.class == class && m.tracked;
        let groups_and_queues = self.members.iter().enumerate();
        let all = groups_and_queues.filter(|(at, _)| *at != self.queues).map(|(_, m)| m);
        all.filter(here).map(|m| m.weight).sum()
    }

    #[must_use]
    pub fn view(&self, queue: u32) -> View {
        let m = &self.members[queue as usize];
        View {
            start: m.start,
            finish: m.finish,
            budget: m.budget,
            service: m.service,
            weight: m.weight as u32,
            active: m.place == Where::Active,
            tracked: m.tracked,
        }
    }

    #[must_use]
    pub fn class(&self, queue: u32) -> Class {
        self.members[queue as usize].class
    }

    #[must_use]
    pub fn level(&self, queue: u32) -> u32 {
        self.members[queue as usize].level as u32
    }

    #[must_use]
    pub fn parent(&self, level: u32) -> Option<u32> {
        (level != ROOT).then(|| self.members[self.queues + level as usize].level as u32)
    }

    #[must_use]
    pub fn view_level(&self, level: u32) -> View {
        self.view((self.queues + level as usize) as u32)
    }

    #[must_use]
    pub fn may_preempt(&self) -> bool {
        self.levels[0].next != self.levels[0].serving
    }

    pub fn forget(&mut self, queue: u32) {
        self.untrack(queue as usize);
    }

    fn untrack(&mut self, m: usize) {
        self.members[m].place = Where::Off;
        self.members[m].tracked = false;
    }

    /// The group of the member's level, as a member; `None` on the root.
    fn above(&self, m: usize) -> Option<usize> {
        let level = self.members[m].level;
        (level != ROOT as usize).then(|| self.queues + level)
    }

    fn in_service(&self, m: usize) -> bool {
        self.levels[self.members[m].level].serving == Some(m)
    }

    /// Members of a level and class that are at `place`, by finishing time.
    fn at(&self, level: usize, class: Class, place: Where) -> Vec<usize> {
        let here = |m: &Member| m.level == level && m.class == class && m.place == place;
        let mut found: Vec<usize> =
            (0..self.members.len()).filter(|m| here(&self.members[*m])).collect();
        found.sort_by(|a, b| {
            let (a, b) = (&self.members[*a], &self.members[*b]);
            let by_time = (a.finish.wrapping_sub(b.finish) as i64).cmp(&0);
            by_time.then(a.entered.cmp(&b.entered))
        });
        found
    }

    fn forget_one(&mut self, level: usize, class: Class) {
        let first = self.at(level, class, Where::Idle).first().copied();
        if let Some(m) = first
            && self.bug != Bug::Remembers
            && !after(self.members[m].finish, self.levels[level].vtime[class as usize])
        {
            self.untrack(m);
        }
    }

    fn look_up_class(&mut self, level: usize, class: Class, advance: bool) -> Option<usize> {
        let active = self.at(level, class, Where::Active);
        let mut vtime = self.levels[level].vtime[class as usize];
        let starts = active.iter().map(|m| self.members[*m].start);
        let earliest = starts.reduce(|a, b| if after(a, b) { b } else { a })?;
        if after(earliest, vtime) {
            vtime = earliest;
            if advance {
                self.levels[level].vtime[class as usize] = vtime;
                self.forget_one(level, class);
            }
        }
        let started = |m: &usize| self.bug == Bug::Eager || !after(self.members[*m].start, vtime);
        active.into_iter().find(started)
    }

    fn look_up(&mut self, level: usize, when: When, now: Instant) -> Option<usize> {
        let advance = when == When::Expiring || self.levels[level].serving.is_none();
        let since = now.since(self.levels[level].idle_turn);
        if since >= Nanos::from_millis(200) && self.bug != Bug::NoIdleTurn {
            if let Some(m) = self.look_up_class(level, Class::Idle, advance) {
                return Some(m);
            }
            self.levels[level].idle_turn = now;
        }
        Class::ALL.into_iter().find_map(|class| self.look_up_class(level, class, advance))
    }

    fn update_next(
        &mut self,
        level: usize,
        changed: Option<usize>,
        when: When,
        now: Instant,
    ) -> bool {
        let old = self.levels[level].next;
        let better = match (changed, old) {
            (Some(_), None) => true,
            (Some(new), Some(old)) => {
                let (n, o) = (&self.members[new], &self.members[old]);
                new != old
                    && n.class == o.class
                    && !after(n.start, self.levels[level].vtime[n.class as usize])
                    && after(o.finish, n.finish)
            }
            (None, _) => false,
        };
        let next = if better { changed } else { self.look_up(level, when, now) };
        self.levels[level].next = next;
        let Some(next) = next else { return false };
        let budget = self.members[next].budget;
        let before = std::mem::replace(&mut self.members[self.queues + level].budget, budget);
        old.is_none() || before != budget
    }

    fn put(&mut self, m: usize, from: From) {
        let serving = self.in_service(m);
        let was_active = self.members[m].place == Where::Active;
        let mut shifted = false;
        if serving {
            let bug = self.bug;
            let m = &mut self.members[m];
            let end = m.start.wrapping_add(delta(m.service, m.weight));
            m.start = if bug == Bug::Forgives { m.start } else { end };
            m.service = 0;
        } else if !was_active {
            shifted = self.begin(m, from);
        }
        self.clock += 1;
        let clock = self.clock;
        let level = self.members[m].level;
        let m = &mut self.members[m];
        let vtime = self.levels[level].vtime[m.class as usize];
        m.weight = m.next_weight;
        m.finish = m.start.wrapping_add(delta(m.budget, m.weight));
        if shifted && after(vtime, m.finish) {
            let by = vtime.wrapping_sub(m.finish) / m.raised;
            m.start = m.start.wrapping_add(by);
            m.finish = m.finish.wrapping_add(by);
        }
        (m.place, m.tracked, m.entered) = (Where::Active, true, clock);
    }

    fn begin(&mut self, m: usize, from: From) -> bool {
        let level = self.members[m].level;
        if self.members[m].next_class != self.members[m].class {
            self.untrack(m);
            let m = &mut self.members[m];
            m.class = m.next_class;
            m.finish = self.levels[level].vtime[m.class as usize];
        }
        let m = &mut self.members[m];
        let vtime = self.levels[level].vtime[m.class as usize];
        let shifted =
            from == From::WhereItStopped && after(vtime, m.finish) && self.bug != Bug::NoShift;
        m.start = if shifted { m.finish } else { vtime };
        if m.place == Where::Idle && after(m.finish, m.start) {
            m.start = m.finish;
        }
        shifted
    }

    fn propagate(&mut self, m: usize, when: When, always: bool, now: Instant) {
        let matters = self.update_next(self.members[m].level, Some(m), when, now);
        if let Some(group) = self.above(m)
            && (matters || always)
        {
            self.put(group, From::Now);
            self.propagate(group, when, always, now);
        }
    }

    pub fn activate(&mut self, queue: u32, from: From, now: Instant) {
        self.put(queue as usize, from);
        self.propagate(queue as usize, When::Waiting, false, now);
    }

    pub fn requeue(&mut self, queue: u32, when: When, now: Instant) {
        let always = self.in_service(queue as usize);
        self.put(queue as usize, From::Now);
        self.propagate(queue as usize, when, always, now);
    }

    pub fn deactivate(&mut self, queue: u32, keep: Keep, when: When, now: Instant) {
        self.take_off(queue as usize, keep, when, now);
    }

    fn take_off(&mut self, m: usize, keep: Keep, when: When, now: Instant) {
        if !self.members[m].tracked {
            return;
        }
        let level = self.members[m].level;
        let serving = self.in_service(m);
        let member = &mut self.members[m];
        member.finish = member.start.wrapping_add(delta(member.service, member.weight));
        let vtime = self.levels[level].vtime[member.class as usize];
        self.clock += 1;
        member.entered = self.clock;
        if keep == Keep::Lead && after(member.finish, vtime) {
            member.place = Where::Idle;
        } else {
            (member.place, member.tracked) = (Where::Off, false);
        }
        if serving {
            self.levels[level].serving = None;
        } else {
            self.members[m].service = 0;
        }
        if self.levels[level].next == Some(m) {
            self.update_next(level, None, when, now);
        }
        let Some(group) = self.above(m) else { return };
        if self.levels[level].next.is_some() || self.levels[level].serving.is_some() {
            self.put(group, From::Now);
            self.propagate(group, when, when == When::Expiring, now);
        } else {
            self.take_off(group, Keep::Lead, when, now);
        }
    }

    pub fn pick(&mut self, now: Instant) -> Option<u32> {
        let mut m = self.levels[0].next?;
        loop {
            let Member { level, class, .. } = self.members[m];
            self.levels[level].serving = Some(m);
            if class == Class::Idle {
                self.levels[level].idle_turn = now;
            }
            let below = m.checked_sub(self.queues);
            let active = |level: usize| {
                let on = |m: &&Member| m.level == level && m.place == Where::Active;
                self.members.iter().filter(on).count()
            };
            if below.is_none_or(|level| active(level) <= 1) {
                self.members[m].place = Where::Off;
            }
            match below {
                Some(level) => m = self.levels[level].next.expect("an active group has a member"),
                None => break,
            }
        }
        let mut at = Some(m);
        while let Some(member) = at {
            self.update_next(self.members[member].level, None, When::Waiting, now);
            at = self.above(member);
        }
        Some(m as u32)
    }

    pub fn serve(&mut self, queue: u32, sectors: u64) {
        let mut at = Some(queue as usize);
        while let Some(m) = at {
            self.members[m].service += sectors;
            let Member { level, class, .. } = self.members[m];
            let weights = self.wsum(level as u32, class);
            let vtime = &mut self.levels[level].vtime[class as usize];
            *vtime = vtime.wrapping_add(delta(sectors, weights));
            self.forget_one(level, class);
            at = self.above(m);
        }
    }

    pub fn end_slot(&mut self, queue: u32) {
        let mut at = Some(queue as usize);
        while let Some(m) = at {
            self.levels[self.members[m].level].serving = None;
            at = self.above(m);
            if let Some(group) = at {
                self.members[group].service = 0;
            }
        }
    }
}
