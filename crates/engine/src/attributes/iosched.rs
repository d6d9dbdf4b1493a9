//! `iosched/*`: the options of the current scheduler.
//!
//! [`Options`](blkmq_sched::Options) has the names, the ranges and the parsing: numbers out of range are clamped, as in
//! sysfs.

use super::Unit;
use super::value::{Accepted, AttributeError};
use crate::plan::Plan;
use blkmq_sched::{Attribute, OptionError, Shape};

pub(super) fn path(attribute: &Attribute) -> String {
    format!("iosched/{}", attribute.name)
}

/// The options as the scheduler applies them: some depend on `nr_requests` or on each other. They are read from an
/// instance that never receives a request and so needs no slots.
pub(super) fn read(plan: &Plan, attribute: &Attribute) -> String {
    let shape = Shape {
        slots: 1,
        nr_requests: plan.effective_nr_requests(),
        hw_depth: plan.device.hw_queue_depth,
        hw_queues: plan.device.hw_queues / plan.shards(),
        rotational: plan.device.limits.rotational,
    };
    let policy = (plan.scheduler.build)(&shape, &plan.options);
    let value = policy.attribute(attribute.name);
    value.unwrap_or_else(|| plan.options.get(attribute.name)).to_string()
}

pub(super) fn write(
    plan: &Plan,
    attribute: &Attribute,
    text: &str,
) -> Result<Plan, AttributeError> {
    let mut plan = plan.clone();
    match plan.options.set(attribute.name, text) {
        Ok(()) => Ok(plan),
        Err(OptionError::NotANumber(Attribute { min, max, unit, .. }, _)) => {
            let accepted = Accepted { min: *min, max: *max, step: 1, unit: Unit::Number(*unit) };
            Err(AttributeError::NotANumber { path: path(attribute), text: text.into(), accepted })
        }
        Err(OptionError::Unknown(..) | OptionError::NoValue(_)) => {
            unreachable!("the options are those of the scheduler")
        }
    }
}
