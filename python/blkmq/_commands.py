"""The commands of the program, with their options as keywords."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from . import _blkmq, _words
from ._result import Result
from ._words import Option

_FORMAT = "--output-format=json+"


class Attribute(NamedTuple):
    """An attribute of a scheduler, as in sysfs."""

    name: str
    default: int
    min: int
    max: int
    help: str


def simulate(
    *jobs: Mapping[str, Option], policy: Callable[[], object] | None = None, **options: Option
) -> Result:
    """Runs ``blkmq sim``: jobs in virtual time, as fast as the machine can.

    Jobs are mappings of fio's options; ``options`` hold for all of them, and are those of the run, such as ``device``,
    ``scheduler`` and ``seed``. ``blkmq help sim`` lists them. ``policy`` is a subclass of ``Policy`` that takes the
    scheduler's place. The same arguments give the same result, to the byte.
    """
    words = [_FORMAT, *_words.of_options(options), *_words.of_jobs(jobs)]
    return Result(words, _blkmq.run(words, False, policy))


def bench(*jobs: Mapping[str, Option], **options: Option) -> Result:
    """Runs ``blkmq bench``: jobs in real time, on a device such as ``uring:FILE`` or a model."""
    words = [_FORMAT, *_words.of_options(options), *_words.of_jobs(jobs)]
    return Result(words, _blkmq.run(words, True))


def replay(trace: str | os.PathLike[str], **options: Option) -> Result:
    """Runs ``blkmq replay``: each tenant of a trace is a job. ``blkmq help replay`` lists the options; ``scale_space`` is
    ``--scale-space``, and a switch is ``True``. Latencies count from the time at which an I/O was due."""
    words = [os.fspath(trace), _FORMAT, *_words.of_flags(options)]
    return Result(words, _blkmq.replay(words))


def devices() -> list[str]:
    """The names of the devices of simulations. ``blkmq doc NAME`` has the page of each."""
    return _blkmq.devices()


def schedulers() -> dict[str, dict[str, Attribute]]:
    """The schedulers, each with its attributes."""
    return {name: {it[0]: Attribute(*it) for it in attributes} for name, attributes in _blkmq.schedulers()}
