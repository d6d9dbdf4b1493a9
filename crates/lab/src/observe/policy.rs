//! Puts observers beside the policies of a queue while it is being built.
//!
//! A [`Factory`] builds policies with a plain function, which cannot carry any state along. So the wrapper of a
//! policy is left in a thread-local while a queue is being built, and only then: [`build_with`] puts it there and
//! takes it away again.

use blkmq_sched::{Factory, Options, Scheduler, Shape};
pub(crate) use blkmq_trace::watched::{PolicyWatch, watched};
use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

/// Makes the wrapper of a policy.
type Wrap = Box<dyn Fn(Box<dyn Scheduler>, &Shape, &Options) -> Box<dyn Scheduler>>;

/// The factory and the wrapper of the next policies built on this thread.
struct Plan {
    /// The real factory.
    factory: &'static Factory,
    wrap: Wrap,
}

thread_local! {
    static PLAN: RefCell<Option<Plan>> = const { RefCell::new(None) };
}

/// Runs `build`, which builds a queue with the watched [`factory`] of `inner`. Its policies are those of `inner` in
/// the wrapper that `wrap` makes.
pub(crate) fn build_with<R>(
    inner: &'static Factory,
    wrap: impl Fn(Box<dyn Scheduler>, &Shape, &Options) -> Box<dyn Scheduler> + 'static,
    build: impl FnOnce() -> R,
) -> R {
    PLAN.set(Some(Plan { factory: inner, wrap: Box::new(wrap) }));
    let built = build();
    PLAN.take();
    built
}

/// The factory of a wrapped policy of `inner`; it announces the same properties as `inner`. To be used within
/// [`build_with`]. It is kept for good, once for each `inner`.
pub(crate) fn factory(inner: &'static Factory) -> &'static Factory {
    static WATCHED: Mutex<Vec<(&Factory, &Factory)>> = Mutex::new(Vec::new());
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, factory)) = watched.iter().find(|(known, _)| std::ptr::eq(*known, inner)) {
        return factory;
    }
    let factory = Box::leak(Box::new(Factory {
        name: inner.name,
        summary: inner.summary,
        scope: inner.scope,
        doc: inner.doc,
        attributes: inner.attributes,
        common: inner.common,
        build,
    }));
    watched.push((inner, factory));
    factory
}

fn build(shape: &Shape, options: &Options) -> Box<dyn Scheduler> {
    PLAN.with_borrow(|plan| {
        let plan = plan.as_ref().expect("a watched policy is built within `build_with`");
        (plan.wrap)((plan.factory.build)(shape, options), shape, options)
    })
}
