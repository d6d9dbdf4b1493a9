//! A node of the tree of groups: its place, its promises and its tags.

use super::account::{Account, Coverage};
use super::cost::Share;
use crate::Guarantee;
use crate::index::Heap;
use alloc::vec::Vec;
use blkmq_core::GroupIndex;

/// A group if its number is even; the next number is the group's own requests.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: GroupIndex,
    pub(super) parent: u32,
    /// Its number among the members of its parent.
    pub(super) member: u32,
    pub(super) depth: u16,
    pub(super) weight: u32,
    pub(super) guarantee: Guarantee,
    pub(super) reserve: Option<Share>,
    pub(super) limit: Option<Share>,
    /// The reservation tag, by the clock of reservations.
    pub(super) r: u64,
    /// The limit tag.
    pub(super) l: u64,
    /// The tag among its siblings, in nanoseconds of service over weight, and the remainder of the last division.
    pub(super) p: u64,
    pub(super) rem: u64,
    /// The tag of the member that was last chosen in order.
    pub(super) v: u64,
    /// Device time that it got, and its account of the shares that are judged now.
    pub(super) got: u64,
    pub(super) account: Account,
    /// For floors; a node of requests that has some is `busy`.
    pub(super) coverage: Coverage,
    pub(super) busy: bool,
    /// It has requests, in itself or below, that no limit below it holds back.
    pub(super) ready: bool,
    /// Nodes below it, by member; a number of none where one was removed.
    pub(super) members: Vec<u32>,
    /// Members that are ready and within their limits.
    pub(super) standing: Heap<(u64, u32)>,
}

impl Node {
    pub(super) fn new(id: GroupIndex, parent: u32, depth: u16, weight: u32) -> Self {
        Self {
            id,
            parent,
            member: 0,
            depth,
            weight,
            guarantee: Guarantee::default(),
            reserve: None,
            limit: None,
            r: 0,
            l: 0,
            p: 0,
            rem: 0,
            v: 0,
            got: 0,
            account: Account::default(),
            coverage: Coverage::default(),
            busy: false,
            ready: false,
            members: Vec::new(),
            standing: Heap::new(),
        }
    }
}
