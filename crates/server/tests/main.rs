//! A server and its clients in one process.

mod clients;
mod control;
mod guest;
mod hostile;
mod http;
mod life;
mod requests;
mod rig;
mod tls;
mod vhost;
