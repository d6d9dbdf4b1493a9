//! A server and its clients in one process.

mod bounds;
mod client;
mod control;
mod hostile;
mod isolation;
mod life;
mod live;
mod requests;
mod rig;
mod talk;
mod tls;
