"""Experiments, on any executor.

A point is a run of a fraction of a second as a rule, and a task of an executor is a batch of points of about a second. Results
do not depend on the executor, on batches or on lost workers: a row is kept once, by the number of its point.
"""

from __future__ import annotations

import json
import os
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from typing import Any, Protocol

from . import _blkmq

#: The most points of a batch, so that little is lost with a worker.
MOST = 1_000
#: Batches in flight for each worker: one that runs, and one that waits.
AHEAD = 2
#: Times that a lost batch is tried.
TRIES = 4


class Future(Protocol):
    """What an executor returns."""

    def result(self) -> Any: ...
    def add_done_callback(self, call: Callable[[Any], Any], /) -> Any: ...


class Executor(Protocol):
    """``concurrent.futures``' executors, ``dask.distributed.Client``, and whatever else has ``submit``."""

    def submit(self, call: Callable[..., Any], /, *args: Any) -> Any: ...


class Study:
    """A grid of runs and a comparison; see ``blkmq help experiment`` for every field.

    ``Study(options={"device": "disk", "runtime": "5s", "time_based": True}, job=[{"name": "r", "rw": "randread"}],
    grid={"scheduler": ["none", "bfq"], "seed": range(8)})``
    """

    def __init__(
        self,
        *,
        grid: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
        job: Sequence[Mapping[str, Any]] = (),
        program: str = "sim",
        trace: str | os.PathLike[str] | None = None,
        compare: Mapping[str, Any] | None = None,
    ) -> None:
        study: dict[str, Any] = {"program": program, "options": options or {}, "job": list(job), "compare": compare or {}}
        study["grid"] = {name: list(values) if isinstance(values, range) else values for name, values in grid.items()}
        if trace is not None:
            study["trace"] = os.fspath(trace)
        self._native = _blkmq.Study(json.dumps(study, default=list))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Study:
        """The experiment in a file of TOML, as ``blkmq experiment FILE`` takes it."""
        self = cls.__new__(cls)
        with open(path, encoding="utf-8") as file:
            self._native = _blkmq.Study(file.read(), False)
        return self

    def __len__(self) -> int:
        """Points of the grid."""
        return len(self._native)

    def json(self) -> str:
        """The study, as it lies beside its results."""
        return self._native.json()

    def ids(self) -> list[str]:
        """The identity of each point: a digest of its command line, its trace and the version."""
        return self._native.ids(0, len(self))


class Rows(Sequence[dict[str, Any]]):
    """The rows of a study, in the order of its grid."""

    def __init__(self, study: Study, lines: list[str]) -> None:
        self._study, self._lines = study, lines

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [json.loads(line) for line in self._lines[at]]
        return json.loads(self._lines[at])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (json.loads(line) for line in self._lines)

    def jsonl(self) -> str:
        """The bytes of ``runs.jsonl``."""
        return "".join(self._lines)

    def answers(self) -> str:
        """The comparison in words, as ``blkmq experiment`` prints it."""
        return self._study._native.finish(self._lines)

    def columns(self) -> dict[str, list[Any]]:
        """A table with a row for each job of each point: its value on each axis, and its figures."""
        rows = list(self)
        axes = sorted({name for row in rows for name in row["values"]})
        table: dict[str, list[Any]] = {name: [] for name in ["id", *axes, "job", "iops", "bytes_per_s"]}
        flat: list[dict[str, Any]] = []
        for row in rows:
            for job in row["jobs"]:
                cells = {"id": row["id"], **row["values"], "job": job["name"], "iops": job["iops"]}
                cells["bytes_per_s"] = job["bytes_per_s"]
                for kind, figures in job["kinds"].items():
                    for name in ("ios", "bytes", "iops", "mean_ns", "max_ns"):
                        cells[f"{kind}_{name}"] = figures[name]
                    for percent, ns in figures["percentiles_ns"].items():
                        cells[f"{kind}_p{percent.replace('.', '_')}_ns"] = ns
                flat.append(cells)
        for cells in flat:
            for name in cells:
                table.setdefault(name, [])
        for cells in flat:
            for name, column in table.items():
                column.append(cells.get(name))
        return table

    def to_pandas(self) -> Any:
        """The table as a ``pandas.DataFrame``."""
        import pandas

        return pandas.DataFrame(self.columns())


@lru_cache(maxsize=8)
def _study(text: str) -> _blkmq.Study:
    return _blkmq.Study(text)


def _run_batch(version: str, study: str, points: list[int]) -> tuple[float, list[str]]:
    """The task of a worker: the rows of some points, and the seconds that they took."""
    if version != _blkmq.__version__:
        raise _blkmq.Error(f"a worker has blkmq {_blkmq.__version__}, and the study was begun with {version}")
    begun = time.perf_counter()
    rows = _study(study).run(points)
    return time.perf_counter() - begun, rows


class Processes:
    """An executor of processes of this machine, which outlives theirs: killed ones are replaced. They end with this
    program, also when it is killed. A script that uses it needs ``if __name__ == "__main__":``."""

    def __init__(self, workers: int | None = None) -> None:
        self._max_workers = workers or os.cpu_count() or 1
        self._pool = self._fresh()

    def _fresh(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._max_workers, mp_context=get_context("spawn"), initializer=_blkmq.end_with_parent
        )

    def submit(self, call: Callable[..., Any], /, *args: Any) -> Any:
        """A future of ``call(*args)``."""
        try:
            return self._pool.submit(call, *args)
        except BrokenExecutor:
            self._pool = self._fresh()
            return self._pool.submit(call, *args)

    def shutdown(self) -> None:
        """Waits for the work that has begun, and ends the processes."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class _Sweep:
    """The state of a sweep: rows by point, batches in flight, and the next points."""

    def __init__(
        self, study: Study, executor: Executor, workers: int, batch: float, keep: Callable[[list[str]], None]
    ) -> None:
        self.executor, self.batch, self.keep = executor, batch, keep
        self.places = workers * AHEAD
        self.ids = study.ids()
        self.text = study.json()
        self.rows: dict[int, str] = {}
        self.done: queue.SimpleQueue[tuple[Any, list[int], int]] = queue.SimpleQueue()
        self.size = 1
        self.flying = 0

    def submit(self, points: list[int], tries: int) -> None:
        future = self.executor.submit(_run_batch, _blkmq.__version__, self.text, points)
        self.flying += 1
        future.add_done_callback(lambda future: self.done.put((future, points, tries)))

    def take(self, points: list[int], rows: list[str]) -> None:
        """Keeps the rows that are new."""
        fresh = []
        for point, row in zip(points, rows, strict=True):
            found = json.loads(row)["id"]
            if found != self.ids[point]:
                raise _blkmq.Error(f"a worker has another trace for point {point}: id {found}, not {self.ids[point]}")
            if self.rows.setdefault(point, row) is row:
                fresh.append(row)
        self.keep(fresh)

    def run(self, points: list[int]) -> None:
        left = list(reversed(points))
        while left or self.flying:
            while left and self.flying < self.places:
                batch = [left.pop() for _ in range(min(self.size, len(left)))]
                self.submit(batch, 1)
            future, batch, tries = self.done.get()
            self.flying -= 1
            try:
                seconds, rows = future.result()
            except (_blkmq.Error, _blkmq.UsageError):
                raise
            except Exception:
                # The worker was lost, and not the work at fault: executors have an exception of their own for that.
                if tries == TRIES:
                    raise
                self.submit(batch, tries + 1)
                continue
            self.take(batch, rows)
            each = max(seconds / len(batch), 1e-6)
            self.size = max(1, min(int(self.batch / each), MOST, 2 * self.size, 1 + len(left) // self.places))


def _workers(executor: Any) -> int:
    """The workers of an executor, as far as it says."""
    known = getattr(executor, "_max_workers", None)
    if isinstance(known, int):
        return known
    cores = getattr(executor, "ncores", None)
    if callable(cores):
        return max(1, sum(int(count) for count in cores().values()))
    return os.cpu_count() or 1


def sweep(
    study: Study,
    executor: Executor | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    batch: float = 1.0,
) -> Rows:
    """Makes all runs of a study, and returns their rows in the order of the grid.

    Without an executor, threads of this process: a run does not hold the interpreter's lock, so they use all CPUs. With
    ``Processes()``, a Dask ``Client`` or anything else that has ``submit``, batches of about ``batch`` seconds go there. A batch
    whose worker is lost is made again, up to four times.

    ``out`` is a folder as ``blkmq experiment`` has it. Rows are in it as soon as they are made, and the same call
    continues where a program was killed; ``blkmq experiment merge`` reads it as well.
    """
    native = study._native
    folder, known = (None, []) if out is None else _blkmq.Folder.open(out, native)
    by_id = {json.loads(row)["id"]: row for row in known}
    own = None
    if executor is None:
        own = executor = ThreadPoolExecutor(thread_name_prefix="blkmq", max_workers=os.cpu_count() or 1)
    keep: Callable[[list[str]], None] = (lambda rows: None) if folder is None else folder.add
    try:
        state = _Sweep(study, executor, _workers(executor), batch, keep)
        state.rows = {point: by_id[id] for point, id in enumerate(state.ids) if id in by_id}
        state.run([point for point in range(len(study)) if point not in state.rows])
    finally:
        if own is not None:
            own.shutdown(wait=True, cancel_futures=True)
        if folder is not None:
            folder.close()
    lines = [state.rows[point] for point in range(len(study))]
    if out is not None:
        native.finish(lines, out)
    return Rows(study, lines)
