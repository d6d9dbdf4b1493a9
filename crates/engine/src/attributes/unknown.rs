//! The error for a path that no attribute has: it lists the paths that may have been meant.

use super::error::AttributeError;
use super::{Node, nodes, table};
use crate::reconfiguration::plan::Plan;
use std::borrow::Cow;

impl AttributeError {
    /// For a path that a queue with the plan `plan` does not have. Lists the paths with a similar last part. If there
    /// are none, lists all, with N for the number of a hardware queue.
    pub(super) fn unknown(plan: &Plan, path: &str) -> Self {
        let hws = table::HW_QUEUE.iter().map(|row| Cow::Borrowed(row.pattern));
        let single = nodes(plan).map(Node::path).filter(|path| !is_of_hw_queue(path));
        let all: Vec<_> = single.chain(hws).collect();
        let like: Vec<_> = all.iter().filter(|known| is_like(name(known), name(path))).collect();
        let accepted = if like.is_empty() { all } else { like.into_iter().cloned().collect() };
        Self::Unknown { path: path.to_string(), accepted }
    }
}

fn is_of_hw_queue(path: &str) -> bool {
    path.starts_with("mq/") || path.starts_with("hctx")
}

/// The last part of a path.
fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Is the first two thirds of `asked` the beginning of `known`, or is all of `asked` in it?
fn is_like(known: &str, asked: &str) -> bool {
    let same = known.bytes().zip(asked.bytes()).take_while(|(a, b)| a == b).count();
    3 * same >= 2 * asked.len() || known.contains(asked)
}
