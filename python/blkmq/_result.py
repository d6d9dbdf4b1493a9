"""The results of a command: fio's JSON, and its figures as plain columns."""

from __future__ import annotations

import json
from typing import Any

#: The kinds of I/O, as fio names them.
KINDS = ("read", "write", "trim", "sync")
#: Percentiles that have columns.
PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)


class Kind:
    """One kind of I/O of a job."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        #: I/Os completed.
        self.ios: int = data["total_ios"]
        #: Bytes moved.
        self.bytes: int = data.get("io_bytes", 0)
        #: I/Os per second; 0 for flushes, whose time fio does not give.
        self.iops: float = data.get("iops", 0.0)
        both = [data.get("lat_ns", {}), data.get("clat_ns", {})]
        times = next((it for it in both if it.get("bins")), both[0])
        #: The latencies: pairs of nanoseconds, the upper end of a bucket, and I/Os in it, ascending.
        self.histogram: list[tuple[int, int]] = sorted((int(ns), n) for ns, n in times.get("bins", {}).items())
        #: The mean latency in nanoseconds, if it was measured.
        self.mean: float | None = times.get("mean") if times.get("N") else None
        #: The longest latency in nanoseconds, if it was measured.
        self.max: int | None = times.get("max") if times.get("N") else None

    def percentile(self, percent: float) -> int | None:
        """The latency in nanoseconds that ``percent`` of the I/Os did not exceed; None if none was timed."""
        if not 0 < percent <= 100:
            raise ValueError(f"{percent}; accepted: above 0, up to 100")
        total = sum(count for _, count in self.histogram)
        rank, seen = total * percent / 100, 0
        for ns, count in self.histogram:
            seen += count
            if seen >= rank - 1e-9:
                # A bucket has its upper end.
                return ns if self.max is None else min(ns, self.max)
        return None

    def cdf(self) -> tuple[list[int], list[float]]:
        """Latencies in nanoseconds, ascending, and the share of the I/Os that took no longer than each."""
        total, seen, shares = sum(count for _, count in self.histogram), 0, []
        for _, count in self.histogram:
            seen += count
            shares.append(seen / total)
        return [ns for ns, _ in self.histogram], shares


class Job:
    """A job of a run; of a replay, a tenant."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        queue = data["blkmq"]
        #: The name. Of several runs, the case is behind a dot.
        self.name: str = data["jobname"]
        #: The run, from 0.
        self.run: int = queue["run"]
        #: The scheduler, with the attributes that were set.
        self.scheduler: str = queue["scheduler"]
        if queue["scheduler_options"]:
            self.scheduler += ":" + queue["scheduler_options"]
        #: The device.
        self.device: str = queue["device"]
        #: The group.
        self.group: str | None = data.get("job options", {}).get("cgroup")
        #: Reads, writes, trims and flushes.
        self.read, self.write, self.trim, self.sync = (Kind(data[kind]) for kind in KINDS)

    @property
    def iops(self) -> float:
        """I/Os per second of all kinds, flushes left out."""
        return self.read.iops + self.write.iops + self.trim.iops


class Result:
    """What a command has measured."""

    def __init__(self, words: list[str], text: str) -> None:
        #: The words behind the command.
        self.words = words
        self._text = text
        #: The whole, in fio's schema with additions under ``blkmq``.
        self.data: dict[str, Any] = json.loads(text)
        #: The jobs of all runs, run by run.
        self.jobs: list[Job] = [Job(job) for job in self.data["jobs"]]

    def __repr__(self) -> str:
        runs = {job.scheduler for job in self.jobs}
        return f"<blkmq.Result of {', '.join(sorted(runs))}: {', '.join(job.name for job in self.jobs)}>"

    def json(self) -> str:
        """The text that the program prints with ``--output-format=json+``, to the byte."""
        return self._text

    @property
    def notes(self) -> list[str]:
        """Notes and warnings about the runs."""
        about = self.data["blkmq"]
        return [*about.get("notes", []), *about.get("warnings", [])]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The groups of all runs: ``run``, ``name``, ``weight``, ``ios``, ``bytes``, ``share``, ``due`` and the counts of the scheduler."""
        queues = self.data["blkmq"].get("queues", [])
        return [{"run": queue["run"], **group} for queue in queues for group in queue.get("groups", [])]

    def job(self, name: str, scheduler: str | None = None) -> Job:
        """The job of that name, of the run under ``scheduler`` if there are several."""
        def fits(job: Job) -> bool:
            is_name = job.name == name or job.name.startswith(f"{name}.")
            return is_name and scheduler in (None, job.scheduler)

        found = [job for job in self.jobs if fits(job)]
        if len(found) != 1:
            known = ", ".join(f"{job.name} under {job.scheduler}" for job in self.jobs)
            raise KeyError(f"{name}: {len(found)} jobs; there are {known}")
        return found[0]

    def columns(self) -> dict[str, list[Any]]:
        """A table with a row for each job: lists by name, which pandas, polars and pyarrow take as they are."""
        table: dict[str, list[Any]] = {}
        for job in self.jobs:
            row: dict[str, Any] = {
                "run": job.run, "scheduler": job.scheduler, "device": job.device, "job": job.name, "group": job.group,
                "iops": job.iops,
            }
            for name in KINDS:
                kind: Kind = getattr(job, name)
                row |= {f"{name}_ios": kind.ios, f"{name}_bytes": kind.bytes, f"{name}_iops": kind.iops}
                row[f"{name}_mean_ns"] = kind.mean
                for percent in PERCENTILES:
                    label = f"{percent:g}".replace(".", "_")
                    row[f"{name}_p{label}_ns"] = kind.percentile(percent)
                row[f"{name}_max_ns"] = kind.max
            for name, cell in row.items():
                table.setdefault(name, []).append(cell)
        return table

    def to_pandas(self) -> Any:
        """The table as a ``pandas.DataFrame``."""
        import pandas

        return pandas.DataFrame(self.columns())
