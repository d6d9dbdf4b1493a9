//! `mclock` by its arithmetic: the table of the paper, floors under every load, ceilings, groups that nest.

mod table;
mod world;
