"""From keywords to the words of a command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Union

Value = Union[str, int, float, bool, "os.PathLike[str]"]
Option = Union[Value, Sequence[Value]]


def text(value: Value) -> str:
    """A value as fio spells it: switches are 1 and 0."""
    if isinstance(value, bool):
        return str(int(value))
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _each(value: Option) -> list[Value]:
    return list(value) if isinstance(value, (list, tuple, range)) else [value]  # type: ignore[list-item]


def of_options(options: Mapping[str, Option]) -> list[str]:
    """The words of options in fio's grammar. An option with a list is repeated."""
    return [f"--{name}={text(value)}" for name, values in options.items() for value in _each(values)]


def of_jobs(jobs: Sequence[Mapping[str, Option]]) -> list[str]:
    """The words of jobs; the name of each comes first."""
    words = []
    for number, job in enumerate(jobs):
        rest = dict(job)
        words.append(f"--name={text(rest.pop('name', f'job{number}'))}")  # type: ignore[arg-type]
        words += of_options(rest)
    return words


def of_flags(options: Mapping[str, Option]) -> list[str]:
    """The words of options of commands that are not fio's: names have hyphens, and switches no value."""
    words = []
    for name, values in options.items():
        name = name.replace("_", "-")
        for value in _each(values):
            if value is True:
                words.append(f"--{name}")
            elif value is not False:
                words.append(f"--{name}={text(value)}")
    return words
