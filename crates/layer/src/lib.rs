//! Devices that are layers: each cuts or translates a request into requests to other devices, its legs.
//!
//! A [`Layer`] decides where the pieces of a request go and what their answers mean; it sees no bytes and no token. A
//! [`Stack`] puts a layer in front of its legs, which are devices of any kind, layers included. [`Kind`] lists the
//! layers; their pages are in `doc`.
//!
//! Each leg has a queue of the engine in front of it, with the scheduler `none`, one submitter, and the limits of that
//! leg. The same code as for any other I/O divides a piece, merges it, and adds the flushes that the leg needs. Files
//! in a stripe or a concatenation become one device instead ([`BlockDevice::join`](blkmq_engine::BlockDevice::join)).
//!
//! # Writing a layer
//!
//! A layer that moves sectors takes one file: [`Layer::begin`] sends a piece ([`Plan::send`]) for each part of the
//! request. A layer that tolerates errors also implements [`Layer::answered`]. A layer that changes bytes is a
//! [`Codec`] in [`Coded`]. A stack of such a layer is a [`BlockDevice`] whose `queues` is [`queue`].
//!
//! ```
//! use blkmq_core::{IoFlags, Op};
//! use blkmq_layer::{Layer, Piece, Plan, Request};
//!
//! /// A device that begins at sector 2048 of its only leg.
//! struct Offset;
//!
//! impl Layer for Offset {
//!     fn begin(&mut self, request: &Request, plan: &mut Plan) {
//!         plan.send(Piece { sector: request.sector + 2048, ..Piece::whole(request, 0) });
//!     }
//! }
//! ```
//!
//! [`BlockDevice`]: blkmq_engine::BlockDevice

#![deny(unsafe_code)]

mod checksum;
mod crypt;
mod kind;
mod layer;
mod legs;
mod lent;
mod mirror;
mod queue;
mod stack;
mod stripe;

pub use crypt::KeyError;
pub use kind::{Kind, KindError};
pub use layer::{Codec, Coded, Layer, OwnIo, Piece, Plan, Request};
pub use lent::Part;
pub use mirror::MirrorError;
pub use queue::queue;
pub use stack::{Stack, StackError};
