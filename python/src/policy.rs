//! Schedulers written in Python, for virtual time.
//!
//! An instance is called like one written in Rust, and the contract is checked: a picked request must be held, and a
//! policy that holds requests must pick one. An exception, or a breach of the contract, ends the run and is raised by
//! the function that started it. Until the run has ended, its requests are picked in the order of their slots.

use blkmq_cli::embedding::{self, Stop};
use blkmq_core::{Class, HwQueue, Instant, IoFlags, IoMeta, Op, RequestId};
use blkmq_sched::index::Fifo;
use blkmq_sched::{At, Cx, Done, Factory, Grown, Options, Pick, Scheduler, Scope, Shape};
use pyo3::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A request that the engine has given to a scheduler. Its fields change when I/Os are merged into it.
#[pyclass(module = "blkmq")]
pub struct Request {
    id: RequestId,
    meta: IoMeta,
}

#[pymethods]
impl Request {
    /// `read`, `write`, `discard` or `write_zeroes`.
    #[getter]
    fn op(&self) -> &'static str {
        match self.meta.op {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::WriteZeroes => "write_zeroes",
        }
    }

    /// Whether it is not a read.
    #[getter]
    fn is_write(&self) -> bool {
        self.meta.op.is_write()
    }

    /// The first sector of 512 bytes.
    #[getter]
    fn sector(&self) -> u64 {
        self.meta.sector
    }

    /// The length in sectors.
    #[getter]
    fn sectors(&self) -> u32 {
        self.meta.sectors
    }

    /// Whether a submitter waits for it.
    #[getter]
    fn sync(&self) -> bool {
        self.meta.flags.contains(IoFlags::SYNC)
    }

    /// The submitter to which it is charged.
    #[getter]
    fn owner(&self) -> u64 {
        self.meta.owner.0.into()
    }

    /// The group of that submitter; 0 is the root.
    #[getter]
    fn group(&self) -> usize {
        self.meta.group.0.into()
    }

    /// The time of its arrival in nanoseconds.
    #[getter]
    fn arrived(&self) -> u64 {
        self.meta.arrived.as_nanos()
    }

    /// `none`, `realtime`, `best-effort` or `idle`.
    #[getter]
    fn prio_class(&self) -> &'static str {
        match self.meta.ioprio.class() {
            Class::None => "none",
            Class::Realtime => "realtime",
            Class::BestEffort => "best-effort",
            Class::Idle => "idle",
        }
    }

    /// The level within the class, 0 to 7; 0 is the most urgent.
    #[getter]
    fn prio_level(&self) -> u16 {
        self.meta.ioprio.level()
    }

    fn __repr__(&self) -> String {
        let Self { meta, .. } = self;
        format!("<Request {} {}+{}>", self.op(), meta.sector, meta.sectors)
    }
}

/// The answer of a scheduler that waits for a completion.
const WAIT: &str = "wait";

/// The first fault of the policies of a run.
#[derive(Default)]
struct Faults(Mutex<Option<PyErr>>);

impl Faults {
    fn lock(&self) -> MutexGuard<'_, Option<PyErr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The callable that makes instances, usually a class, and the first fault of the instances.
pub struct Made {
    make: Py<PyAny>,
    faults: Arc<Faults>,
}

/// The source of the instances of a run.
struct Source {
    make: Py<PyAny>,
    faults: Arc<Faults>,
    stop: Stop,
}

thread_local! {
    /// The source of the run on this thread, kept here because the function that builds a policy takes no state.
    static SOURCE: RefCell<Option<Source>> = const { RefCell::new(None) };
}

/// Factories by class name. Names are leaked, once for each class however many runs it has.
static FACTORIES: Mutex<BTreeMap<String, &'static Factory>> = Mutex::new(BTreeMap::new());

impl Made {
    pub fn new(make: Py<PyAny>) -> Self {
        Self { make, faults: Arc::default() }
    }

    /// Runs `work` with a factory whose instances come from the callable. They set `stop` when they fail.
    pub fn during<T>(&self, stop: &Stop, work: impl FnOnce(&'static Factory) -> T) -> T {
        let (source, name) = Python::attach(|py| {
            let name =
                self.make.bind(py).getattr("__name__").and_then(|name| name.extract::<String>());
            let (make, faults) = (self.make.clone_ref(py), Arc::clone(&self.faults));
            (Source { make, faults, stop: stop.clone() }, name.unwrap_or_else(|_| "python".into()))
        });
        SOURCE.with_borrow_mut(|it| *it = Some(source));
        let done = work(factory(name));
        SOURCE.with_borrow_mut(Option::take);
        done
    }

    /// The first fault, if there was one.
    pub fn fault(&self) -> Option<PyErr> {
        self.faults.lock().take()
    }
}

fn factory(name: String) -> &'static Factory {
    let mut factories = FACTORIES.lock().unwrap_or_else(PoisonError::into_inner);
    factories.entry(name).or_insert_with_key(|name| {
        Box::leak(Box::new(Factory {
            name: Box::leak(name.clone().into_boxed_str()),
            summary: "a scheduler in Python",
            scope: Scope::Queue,
            attributes: &[],
            common: None,
            build: |shape, _: &Options| Box::new(Policy::new(shape)),
        }))
    })
}

/// An instance.
struct Policy {
    /// `None` if the instance could not be created.
    object: Option<Py<PyAny>>,
    /// Whether the object has these optional methods.
    may_merge: bool,
    grown: bool,
    /// The requests by slot, from insertion to completion, and whether the policy holds them.
    requests: Vec<Option<Py<Request>>>,
    is_held: Vec<bool>,
    held: usize,
    faults: Arc<Faults>,
    stop: Stop,
}

impl Policy {
    fn new(shape: &Shape) -> Self {
        SOURCE.with_borrow(|source| {
            let source = source.as_ref().expect("a run with a policy in Python has a source");
            let slots = shape.slots as usize;
            let mut policy = Self {
                object: None,
                may_merge: false,
                grown: false,
                requests: (0..slots).map(|_| None).collect(),
                is_held: vec![false; slots],
                held: 0,
                faults: Arc::clone(&source.faults),
                stop: source.stop.clone(),
            };
            let made = Python::attach(|py| {
                let object = source.make.call0(py)?;
                let has = |name| object.bind(py).hasattr(name);
                PyResult::Ok((has("may_merge")?, has("grown")?, object))
            });
            match made {
                Ok((may_merge, grown, object)) => {
                    policy.object = Some(object);
                    (policy.may_merge, policy.grown) = (may_merge, grown);
                }
                Err(fault) => policy.fail(fault),
            }
            policy
        })
    }

    /// Ends the run. Only the first fault is kept.
    fn fail(&self, fault: PyErr) {
        self.faults.lock().get_or_insert(fault);
        self.stop.set();
    }

    fn breach(&self, text: String) {
        self.fail(super::Error::new_err(text));
    }

    /// Calls `call` with the object, unless the run must end. Returns `None` after a fault.
    fn with<T>(&self, call: impl FnOnce(Python<'_>, &Py<PyAny>) -> PyResult<T>) -> Option<T> {
        let object = self.object.as_ref().filter(|_| !self.stop.is_set())?;
        Python::attach(|py| call(py, object)).map_err(|fault| self.fail(fault)).ok()
    }

    /// The request with its present metadata.
    fn current(&self, py: Python<'_>, cx: &Cx<'_>, rq: RequestId) -> Py<Request> {
        let request = self.requests[rq.index()].as_ref().expect("a request that was inserted");
        request.borrow_mut(py).meta = *cx.requests.get(rq);
        request.clone_ref(py)
    }

    fn hold(&mut self, rq: RequestId, is_held: bool) {
        let before = std::mem::replace(&mut self.is_held[rq.index()], is_held);
        self.held += usize::from(is_held);
        self.held -= usize::from(before);
    }

    /// Interprets the answer to `pick`.
    fn picked(
        &self,
        py: Python<'_>,
        now: Instant,
        answer: &Bound<'_, PyAny>,
    ) -> Result<Pick, String> {
        if answer.is_none() {
            return match self.held {
                0 => Ok(Pick::Empty),
                held => Err(format!(
                    "pick returned None while {held} requests are held; accepted: a request, a later time in \
                     nanoseconds, or blkmq.WAIT"
                )),
            };
        }
        if let Ok(request) = answer.cast::<Request>() {
            let id = request.borrow().id;
            let is_known =
                self.requests[id.index()].as_ref().is_some_and(|it| it.borrow(py).id == id);
            return match is_known && self.is_held[id.index()] {
                true => Ok(Pick::Issue(id)),
                false => {
                    Err(format!("pick returned {}, which is not held", request.borrow().__repr__()))
                }
            };
        }
        if let Ok(time) = answer.extract::<u64>() {
            return match time > now.as_nanos() {
                true => Ok(Pick::WaitUntil(Instant::from_nanos(time))),
                false => {
                    Err(format!("pick returned the time {time}, and it is {}", now.as_nanos()))
                }
            };
        }
        match answer.extract::<&str>() {
            Ok(WAIT) => Ok(Pick::WaitCompletion),
            _ => Err(format!(
                "pick returned {answer}; accepted: a request, None, a time, or blkmq.WAIT"
            )),
        }
    }

    /// Returns any held request, for a run that must end.
    fn any(&self) -> Pick {
        let held = self.is_held.iter().position(|is_held| *is_held);
        held.map_or(Pick::Empty, |at| {
            let request = self.requests[at].as_ref().expect("it is held");
            Pick::Issue(Python::attach(|py| request.borrow(py).id))
        })
    }
}

impl Scheduler for Policy {
    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        let meta = *cx.requests.get(rq);
        let made = Python::attach(|py| Py::new(py, Request { id: rq, meta }));
        match made {
            Ok(request) => {
                // A requeued request keeps its object.
                let slot = &mut self.requests[rq.index()];
                let is_same =
                    slot.as_ref().is_some_and(|it| Python::attach(|py| it.borrow(py).id == rq));
                if !is_same {
                    *slot = Some(request);
                }
            }
            Err(fault) => panic!("no memory for a request: {fault}"),
        }
        self.hold(rq, true);
        self.with(|py, object| {
            let request = self.current(py, cx, rq);
            object.call_method1(py, "insert", (cx.now.as_nanos(), request, at == At::Head))
        });
    }

    fn pick(&mut self, cx: &Cx<'_>, hw: HwQueue) -> Pick {
        let answer = self.with(|py, object| {
            let answer = object.call_method1(py, "pick", (cx.now.as_nanos(), hw.0))?;
            Ok(self.picked(py, cx.now, answer.bind(py)))
        });
        let pick = match answer {
            Some(Ok(pick)) => pick,
            Some(Err(text)) => {
                self.breach(text);
                self.any()
            }
            None => self.any(),
        };
        if let Pick::Issue(rq) = pick {
            self.hold(rq, false);
        }
        pick
    }

    fn completed(&mut self, cx: &Cx<'_>, done: &Done) {
        self.with(|py, object| {
            let request = self.current(py, cx, done.rq);
            object.call_method1(py, "completed", (cx.now.as_nanos(), request))
        });
        self.requests[done.rq.index()] = None;
    }

    fn withdraw(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.hold(rq, false);
        self.with(|py, object| {
            object.call_method1(py, "withdraw", (cx.now.as_nanos(), self.current(py, cx, rq)))
        });
        self.requests[rq.index()] = None;
    }

    fn absorbed(&mut self, cx: &Cx<'_>, into: RequestId, gone: RequestId) {
        self.hold(gone, false);
        self.with(|py, object| {
            let (into, gone) = (self.current(py, cx, into), self.current(py, cx, gone));
            object.call_method1(py, "absorbed", (cx.now.as_nanos(), into, gone))
        });
        self.requests[gone.index()] = None;
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("held", self.held as u64);
    }

    fn may_merge(&self, cx: &Cx<'_>, into: RequestId, io: &IoMeta) -> bool {
        if !self.may_merge {
            return true;
        }
        let answer = self.with(|py, object| {
            let io = Py::new(py, Request { id: into, meta: *io })?;
            let answer = object.call_method1(
                py,
                "may_merge",
                (cx.now.as_nanos(), self.current(py, cx, into), io),
            )?;
            answer.bind(py).is_truthy()
        });
        answer.unwrap_or(false)
    }

    fn grown(&mut self, cx: &Cx<'_>, rq: RequestId, _: Grown) {
        if self.grown {
            self.with(|py, object| {
                object.call_method1(py, "grown", (cx.now.as_nanos(), self.current(py, cx, rq)))
            });
        }
    }
}

/// The results of `blkmq sim WORDS` with the Rust twin of the test class `ReadsFirst`.
#[pyfunction]
pub fn reads_first(py: Python<'_>, words: Vec<String>) -> PyResult<String> {
    static FACTORY: Factory = Factory {
        name: "ReadsFirst",
        summary: "reads before writes, each in order of arrival",
        scope: Scope::Queue,
        attributes: &[],
        common: None,
        build: |shape, _| {
            let list = || Fifo::new(shape.slots);
            Box::new(ReadsFirst { head: list(), reads: list(), writes: list() })
        },
    };
    super::apart(py, |stop| embedding::run(&words, false, Some(&FACTORY), stop))
}

struct ReadsFirst {
    head: Fifo,
    reads: Fifo,
    writes: Fifo,
}

impl ReadsFirst {
    fn list(&mut self, cx: &Cx<'_>, rq: RequestId) -> &mut Fifo {
        if self.head.contains(rq) {
            &mut self.head
        } else if cx.requests.get(rq).op.is_write() {
            &mut self.writes
        } else {
            &mut self.reads
        }
    }
}

impl Scheduler for ReadsFirst {
    fn insert(&mut self, cx: &Cx<'_>, rq: RequestId, at: At) {
        match at {
            At::Head => self.head.push_front(rq),
            At::Tail => self.list(cx, rq).push_back(rq),
        }
    }

    fn pick(&mut self, _: &Cx<'_>, _: HwQueue) -> Pick {
        let next = self.head.pop_front().or_else(|| self.reads.pop_front());
        next.or_else(|| self.writes.pop_front()).map_or(Pick::Empty, Pick::Issue)
    }

    fn completed(&mut self, _: &Cx<'_>, _: &Done) {}

    fn withdraw(&mut self, cx: &Cx<'_>, rq: RequestId) {
        self.list(cx, rq).remove(rq);
    }

    fn absorbed(&mut self, cx: &Cx<'_>, _: RequestId, gone: RequestId) {
        self.withdraw(cx, gone);
    }

    fn inspect(&self, out: &mut dyn FnMut(&'static str, u64)) {
        out("held", (self.head.len() + self.reads.len() + self.writes.len()) as u64);
    }
}
