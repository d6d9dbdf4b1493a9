//! Loom's atomics with orderings that can be weakened one at a time, for `cargo xtask orderings`.
//!
//! The command checks that each ordering in this folder is needed: it runs the models with the ordering weakened, and a
//! model must fail. A build for each ordering would take hours, so an environment variable names the call to be
//! weakened, and each call compares itself with that. Only compiled under loom.
//!
//! | variable | |
//! |---|---|
//! | `BLKMQ_MUTANT` | `FILE:LINE:COLUMN:ARGUMENT:ORDERING`: at this call, the ordering argument with this number, counted from 0, is replaced by that ordering. `Dropped`: the fence, or the second look, is left out |
//! | `BLKMQ_SITES` | a file, to which each calling place is added, as `FILE:LINE:COLUMN` |
//!
//! With a mutant, the first panic ends the process, because further panics would prove nothing more.

use loom::sync::atomic as model;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::panic::{Location, PanicHookInfo};
use std::sync::{Mutex, OnceLock, PoisonError};

pub(crate) use std::sync::atomic::Ordering;

/// The exit status of a process that ended at the first panic.
const CAUGHT: i32 = 101;

/// The request in the environment.
#[derive(Default)]
struct Plan {
    mutant: Option<Mutant>,
    sites: Option<Mutex<Sites>>,
}

struct Mutant {
    file: String,
    line: u32,
    column: u32,
    argument: u8,
    /// `None` if the call is to be dropped.
    instead: Option<Ordering>,
}

struct Sites {
    known: BTreeSet<(&'static str, u32, u32)>,
    file: File,
}

impl Plan {
    fn read() -> Self {
        let mutant = std::env::var("BLKMQ_MUTANT").ok().map(|text| {
            Mutant::parse(&text).unwrap_or_else(|| panic!("no mutant is written {text:?}"))
        });
        if mutant.is_some() {
            std::panic::set_hook(Box::new(end));
        }
        let sites = std::env::var("BLKMQ_SITES").ok().map(|path| {
            let file = OpenOptions::new().create(true).append(true).open(&path);
            let file = file.unwrap_or_else(|error| panic!("{path}: {error}"));
            Mutex::new(Sites { known: BTreeSet::new(), file })
        });
        Self { mutant, sites }
    }
}

/// Ends the process with the panic that was caught. Loom also ends its threads by a panic, which carries no message.
fn end(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    if payload.is::<&str>() || payload.is::<String>() {
        let _if_there_is_one = writeln!(std::io::stderr(), "{panic}");
        std::process::exit(CAUGHT);
    }
}

impl Mutant {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(':');
        let mut next = || words.next();
        Some(Self {
            file: next()?.to_owned(),
            line: next()?.parse().ok()?,
            column: next()?.parse().ok()?,
            argument: next()?.parse().ok()?,
            instead: match next()? {
                "Relaxed" => Some(Ordering::Relaxed),
                "Acquire" => Some(Ordering::Acquire),
                "Release" => Some(Ordering::Release),
                "AcqRel" => Some(Ordering::AcqRel),
                "Dropped" => None,
                _ => return None,
            },
        })
    }

    fn is_at(&self, here: &Location<'_>, argument: u8) -> bool {
        (self.line, self.column, self.argument) == (here.line(), here.column(), argument)
            && self.file == here.file()
    }
}

impl Sites {
    fn note(&mut self, here: &'static Location<'static>) {
        if self.known.insert((here.file(), here.line(), here.column())) {
            let written = writeln!(self.file, "{}:{}:{}", here.file(), here.line(), here.column());
            written.expect("a line more can be written");
        }
    }
}

/// The ordering for a call from here that specifies `asked`; `None` if the call is to be dropped.
#[track_caller]
fn chosen(asked: Ordering, argument: u8) -> Option<Ordering> {
    static PLAN: OnceLock<Plan> = OnceLock::new();
    let (plan, here) = (PLAN.get_or_init(Plan::read), Location::caller());
    if let Some(sites) = &plan.sites {
        sites.lock().unwrap_or_else(PoisonError::into_inner).note(here);
    }
    match &plan.mutant {
        Some(mutant) if mutant.is_at(here, argument) => mutant.instead,
        _ => Some(asked),
    }
}

#[track_caller]
fn weakened(asked: Ordering, argument: u8) -> Ordering {
    chosen(asked, argument).expect("only a fence can be dropped")
}

/// See [`model::fence`].
#[track_caller]
pub(crate) fn fence(order: Ordering) {
    if let Some(order) = chosen(order, 0) {
        model::fence(order);
    }
}

/// See the facade.
#[track_caller]
pub(crate) fn fence_after_rmw() {
    fence(Ordering::SeqCst);
}

/// See the facade.
#[track_caller]
pub(crate) fn looks_again() -> bool {
    chosen(Ordering::Relaxed, 0).is_some()
}

macro_rules! atomic {
    ($name:ident, $value:ty, $($modify:ident)*) => {
        /// Loom's atomic, with orderings that can be weakened.
        #[derive(Debug, Default)]
        pub(crate) struct $name(model::$name);

        impl $name {
            #[track_caller]
            pub(crate) fn new(value: $value) -> Self {
                Self(model::$name::new(value))
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.0.load(weakened(order, 0))
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, weakened(order, 0));
            }

            #[track_caller]
            pub(crate) fn compare_exchange(
                &self,
                seen: $value,
                next: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let (success, failure) = (weakened(success, 0), weakened(failure, 1));
                self.0.compare_exchange(seen, next, success, failure)
            }

            #[track_caller]
            pub(crate) fn compare_exchange_weak(
                &self,
                seen: $value,
                next: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(seen, next, success, failure)
            }

            #[track_caller]
            pub(crate) fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                step: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.0.fetch_update(weakened(set, 0), weakened(fetch, 1), step)
            }

            $(#[track_caller]
            pub(crate) fn $modify(&self, value: $value, order: Ordering) -> $value {
                self.0.$modify(value, weakened(order, 0))
            })*
        }
    };
}

macro_rules! integers {
    ($($name:ident $value:ty,)*) => {
        $(atomic!($name, $value,
            swap fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min);)*
    };
}

atomic!(AtomicBool, bool, swap fetch_and fetch_or);
integers!(AtomicU8 u8, AtomicU16 u16, AtomicU32 u32, AtomicU64 u64, AtomicUsize usize,);
