//! Changes of a running server, each logged with a line.

use super::answer::{group, to};
use super::message::{Answer, Request};
use super::{GoesOn, Program};
use crate::worker::Shared;

/// The origin of a change: the transport and the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin<'a> {
    pub way: &'static str,
    pub by: &'a str,
}

/// Handles `request` like [`to`]. Logs a change with its origin, and with the values before and after it, or the reason
/// of its refusal.
pub(crate) fn audited(
    request: Request,
    shared: &Shared,
    program: Option<&dyn Program>,
    goes_on: GoesOn<'_>,
    Origin { way, by }: Origin<'_>,
) -> Answer {
    if !is_change(&request) {
        return to(request, shared, program, goes_on);
    }
    let asked = request.clone();
    let before = values(shared, &asked);
    let answer = to(request, shared, program, goes_on);
    match (&answer, before, values(shared, &asked)) {
        (Answer::Refused(why), ..) => tracing::info!(by, "{way}: not {asked:?}: {why}"),
        (_, Some(before), Some(after)) => tracing::info!(by, before, after, "{way}: {asked:?}"),
        _ => tracing::info!(by, "{way}: {asked:?}"),
    }
    answer
}

/// Returns whether the request changes the server.
fn is_change(request: &Request) -> bool {
    use Request as R;
    let is_end = matches!(request, R::Disconnect { .. } | R::Remove { .. } | R::Drain);
    is_end || matches!(request, R::Set { .. } | R::Export { .. } | R::Add { .. } | R::Reload)
}

/// The present values of the settings that a request changes, if there are any. Does not block.
fn values(shared: &Shared, request: &Request) -> Option<String> {
    match request {
        Request::Set { device, path, .. } => {
            let disk = shared.disks.get(device.checked_sub(1)?)?;
            disk.service().attribute(path).ok()
        }
        Request::Export { name, settings } => {
            let group = group(shared, shared.exports.now().get(name)?)?;
            let named = [
                settings.weight.is_some().then(|| format!("weight={}", group.weight)),
                settings.max.is_some().then(|| group.max.to_string()),
                settings.promise.is_some().then(|| group.promise.to_string()),
            ];
            Some(Vec::from_iter(named.into_iter().flatten()).join(" "))
        }
        _ => None,
    }
}
