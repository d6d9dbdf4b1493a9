"""Linux's block I/O schedulers in virtual time.

``simulate``, ``bench`` and ``replay`` are the commands of the program ``blkmq`` with their options as keywords. ``Study`` and
``sweep`` are its experiments, on any executor. ``Policy`` is a scheduler in Python.
"""

from . import trace
from ._blkmq import Error, Request, UsageError, __version__
from ._commands import Attribute, bench, devices, replay, schedulers, simulate
from ._policy import WAIT, Policy
from ._result import Job, Kind, Result
from ._sweep import Processes, Rows, Study, sweep

__all__ = [
    "Attribute",
    "Error",
    "Job",
    "Kind",
    "Policy",
    "Processes",
    "Request",
    "Result",
    "Rows",
    "Study",
    "UsageError",
    "WAIT",
    "__version__",
    "bench",
    "devices",
    "replay",
    "schedulers",
    "simulate",
    "sweep",
    "trace",
]
