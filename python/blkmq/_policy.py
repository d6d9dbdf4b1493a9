"""The base of schedulers in Python."""

from __future__ import annotations

from typing import Literal

from ._blkmq import Request

#: The answer of ``pick`` that waits for a completion. A request must be at the device then.
WAIT: Literal["wait"] = "wait"


class Policy:
    """A scheduler, for ``simulate(policy=...)``.

    A request is *held* from ``insert`` until ``pick`` returns it, ``withdraw`` takes it back, or ``absorbed`` says that it
    was merged into another. Times are nanoseconds of virtual time. A class may also have ``may_merge(now, into, io)``,
    which says whether an I/O may join a held request, and ``grown(now, request)``, which says that one did. The same
    calls must get the same answers. An exception ends the run and is raised by ``simulate``.
    """

    def insert(self, now: int, request: Request, head: bool) -> None:
        """A request has arrived. With ``head`` it goes before all others; it may be one that is tried again."""
        raise NotImplementedError

    def pick(self, now: int, hw: int) -> Request | int | Literal["wait"] | None:
        """The request that the device gets next on hardware queue ``hw``. None if no request is held, a later time to
        be asked again, or ``WAIT``."""
        raise NotImplementedError

    def completed(self, now: int, request: Request) -> None:
        """A request that was picked is done."""

    def withdraw(self, now: int, request: Request) -> None:
        """A held request is taken back."""
        raise NotImplementedError

    def absorbed(self, now: int, into: Request, gone: Request) -> None:
        """``gone`` was merged into ``into``; both were held. ``into`` is, still."""
        self.withdraw(now, gone)
