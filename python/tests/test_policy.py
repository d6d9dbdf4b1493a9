"""Schedulers in Python: the decisions of a twin in Rust, and faults that end the run."""

import time
from collections import deque
from pathlib import Path

import blkmq
import pytest
from blkmq import _blkmq

LOAD = [
    "--output-format=json+", "--device=flash", "--size=1m", "--direct=1",
    "--name=r", "--rw=randread", "--iodepth=8", "--name=w", "--rw=write", "--bs=16k", "--iodepth=8", "--numjobs=2",
]


class ReadsFirst(blkmq.Policy):
    def __init__(self) -> None:
        self.head: deque[blkmq.Request] = deque()
        self.reads: deque[blkmq.Request] = deque()
        self.writes: deque[blkmq.Request] = deque()

    def insert(self, now: int, request: blkmq.Request, head: bool) -> None:
        if head:
            self.head.appendleft(request)
        else:
            (self.writes if request.is_write else self.reads).append(request)

    def pick(self, now: int, hw: int) -> blkmq.Request | None:
        for waiting in (self.head, self.reads, self.writes):
            if waiting:
                return waiting.popleft()
        return None

    def withdraw(self, now: int, request: blkmq.Request) -> None:
        for waiting in (self.head, self.reads, self.writes):
            if request in waiting:
                waiting.remove(request)


def test_a_hundred_seeds_are_decided_as_by_its_twin(tmp_path: Path) -> None:
    for seed in range(100):
        logs = []
        for number, run in enumerate((lambda words: _blkmq.run(words, False, ReadsFirst), _blkmq.reads_first)):
            # The name of the log is in the log.
            prefix = tmp_path / str(number) / "log"
            prefix.parent.mkdir(exist_ok=True)
            log = f"--elevator-log={prefix}"
            text = run([f"--seed={seed}", log, *LOAD]).replace(str(prefix), "LOG")
            (written,) = prefix.parent.iterdir()
            logs.append((text, written.read_bytes().replace(str(prefix).encode(), b"LOG")))
            written.unlink()
        assert logs[0] == logs[1], seed
        assert len(logs[0][1]) > 10_000


def test_the_cost_of_a_decision_is_stated() -> None:
    words = ["--output-format=json", "--device=null", "--runtime=50ms", "--time_based", "--rw=randread", "--iodepth=32"]
    times = []
    for run in (lambda: _blkmq.run(words, False, ReadsFirst), lambda: _blkmq.reads_first(words)):
        begun = time.perf_counter()
        ios = blkmq.Result(words, run()).jobs[0].read.ios
        times.append((time.perf_counter() - begun) / ios)
    print(f"a request in Python: {times[0] * 1e6:.2f} us; in Rust: {times[1] * 1e6:.2f} us")
    assert ios > 1_000 and times[0] > times[1]


def test_a_result_has_the_name_of_the_class() -> None:
    jobs = {"name": "r", "rw": "randread", "iodepth": 8}
    result = blkmq.simulate(jobs, device="flash", size="1m", policy=ReadsFirst)
    assert result.jobs[0].scheduler == "ReadsFirst" and result.jobs[0].read.ios == 256


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda self: None, "None while 1 requests? (is|are) held"),
        (lambda self: 0, "the time 0"),
        (lambda self: "later", "accepted: a request, None, a time, or blkmq.WAIT"),
        (lambda self: self.last, "which is not held"),
        (lambda self: 1 / 0, "division by zero"),
    ],
)
def test_faults_end_the_run(answer: object, says: str) -> None:
    class Faulty(ReadsFirst):
        last = None

        def pick(self, now: int, hw: int) -> blkmq.Request | None:
            picked = super().pick(now, hw)
            if picked is None or now < 1_000_000:
                self.last = self.last or picked
                return picked
            self.reads.appendleft(picked)
            return answer(self)  # type: ignore[operator,no-any-return]

    with pytest.raises((blkmq.Error, ZeroDivisionError), match=says):
        blkmq.simulate(rw="randread", device="disk", size="4m", policy=Faulty)


def test_a_class_that_cannot_be_made_or_waits_for_nothing() -> None:
    class Broken(ReadsFirst):
        def __init__(self) -> None:
            raise OSError("no")

    class Lazy(ReadsFirst):
        def pick(self, now: int, hw: int) -> str | None:  # type: ignore[override]
            return blkmq.WAIT if self.reads else None

    with pytest.raises(OSError, match="no"):
        blkmq.simulate(rw="randread", size="1m", policy=Broken)
    with pytest.raises(blkmq.Error):
        blkmq.simulate(rw="randread", size="1m", policy=Lazy)


def test_merging_can_be_refused_and_is_told() -> None:
    class Told(ReadsFirst):
        merge, grew = True, 0

        def may_merge(self, now: int, into: blkmq.Request, io: blkmq.Request) -> bool:
            return type(self).merge

        def grown(self, now: int, request: blkmq.Request) -> None:
            type(self).grew += 1
            assert request.sectors > 8

    load = {"rw": "write", "iodepth": 32, "iodepth_batch_submit": 1, "size": "4m", "device": "null,irqmode=2,hw_queue_depth=1"}
    blkmq.simulate(**load, policy=Told)
    assert Told.grew > 0
    Told.merge, Told.grew = False, 0
    blkmq.simulate(**load, policy=Told)
    assert Told.grew == 0
