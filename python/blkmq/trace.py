"""Recordings of I/Os."""

from __future__ import annotations

import json
import os
from typing import Any

from . import _blkmq, _words
from ._words import Option

__all__ = ["info"]


def info(trace: str | os.PathLike[str], **options: Option) -> dict[str, Any]:
    """What is in a trace: counts, sizes, order, bursts, the working set, and tenants; ``blkmq trace info --json``.

    The options are those of the command, such as ``format``, ``group_by`` and ``skip_bad``. Memory does not depend on
    the length of the trace.
    """
    facts: dict[str, Any] = json.loads(_blkmq.trace_info([os.fspath(trace), *_words.of_flags(options)]))
    return facts
