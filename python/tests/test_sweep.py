"""Sweeps: the same rows whoever made them, however often it was killed."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import blkmq
import pytest
from conftest import output

GRID = {"scheduler": ["none", "mq-deadline", "kyber", "bfq", "mclock"], "r.iodepth": [1, 8], "seed": range(1, 11)}
STUDY = {
    "options": {"device": "flash", "size": "1m"},
    "job": [{"name": "r", "rw": "randread"}, {"name": "w", "rw": "randwrite", "bs": "32k"}],
}


@pytest.fixture(scope="module")
def study() -> blkmq.Study:
    return blkmq.Study(grid=GRID, **STUDY)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(study: blkmq.Study) -> str:
    return blkmq.sweep(study).jsonl()


def test_the_program_makes_the_same_rows(study: blkmq.Study, whole: str, program: str, tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(
        "options = { device = 'flash', size = '1m' }\n"
        "job = [{ name = 'r', rw = 'randread' }, { name = 'w', rw = 'randwrite', bs = '32k' }]\n"
        "[grid]\nscheduler = ['none', 'mq-deadline', 'kyber', 'bfq', 'mclock']\n'r.iodepth' = [1, 8]\nseed = '1..10'\n"
    )
    shards = [f"--shard={number}/3" for number in (1, 2, 3)]
    for shard in shards:
        output(program, "experiment", str(file), f"--out={tmp_path / 'out'}", shard)
    text = output(program, "experiment", "merge", f"--out={tmp_path / 'out'}").decode()
    assert (tmp_path / "out" / "runs.jsonl").read_text() == whole
    assert blkmq.Study.from_file(file).ids() == study.ids()
    rows = blkmq.sweep(blkmq.Study.from_file(file))
    assert text.startswith(rows.answers().splitlines()[0])


def test_a_folder_is_continued_and_is_the_program_s(study: blkmq.Study, whole: str, program: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert blkmq.sweep(study, out=out).jsonl() == whole
    assert (out / "runs.jsonl").read_text() == whole
    lines = (out / "shard-1-of-1.jsonl").read_text().splitlines(keepends=True)
    (out / "shard-1-of-1.jsonl").write_text("".join(lines[:30]) + lines[30][:20])
    assert blkmq.sweep(study, out=out).jsonl() == whole
    assert len((out / "shard-1-of-1.jsonl").read_text().splitlines()) == len(study)
    output(program, "experiment", "merge", f"--out={out}")
    other = blkmq.Study(grid={"seed": [1]}, options={"rw": "read", "size": "1m", "scheduler": "none"})
    with pytest.raises(blkmq.UsageError, match="another study"):
        blkmq.sweep(other, out=out)


def test_any_executor_that_submits(study: blkmq.Study, whole: str) -> None:
    with ThreadPoolExecutor(1) as executor:
        assert blkmq.sweep(study, executor).jsonl() == whole
    with blkmq.Processes(2) as executor:
        assert blkmq.sweep(study, executor).jsonl() == whole


def test_a_killed_process_loses_and_doubles_nothing(study: blkmq.Study, whole: str, tmp_path: Path) -> None:
    class Killer(blkmq.Processes):
        killed = False

        def submit(self, call, /, *args):  # type: ignore[no-untyped-def]
            future = super().submit(call, *args)
            if not Killer.killed and len(self._pool._processes) == 2:
                Killer.killed = True
                os.kill(next(iter(self._pool._processes)), signal.SIGKILL)
            return future

    with Killer(2) as executor:
        assert blkmq.sweep(study, executor, out=tmp_path / "out").jsonl() == whole
    assert Killer.killed
    assert len((tmp_path / "out" / "shard-1-of-1.jsonl").read_text().splitlines()) == len(study)


SCRIPT = """
    import blkmq, sys
    if __name__ == "__main__":
        study = blkmq.Study.from_file(sys.argv[1])
        with blkmq.Processes(2) as executor:
            blkmq.sweep(study, executor, out=sys.argv[2])
"""


def test_a_killed_driver_is_continued_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "drive.py").write_text(textwrap.dedent(SCRIPT))
    grid = "[grid]\nscheduler = ['none', 'bfq']\nseed = '1..200'\n"
    (tmp_path / "study.toml").write_text(
        "options = { device = 'flash', rw = 'randread', iodepth = 16, runtime = '20ms', time_based = true }\n" + grid
    )
    rows = tmp_path / "out" / "shard-1-of-1.jsonl"
    words = [sys.executable, str(tmp_path / "drive.py"), str(tmp_path / "study.toml"), str(tmp_path / "out")]
    child = subprocess.Popen(words, start_new_session=True)
    while not rows.exists() or rows.read_text().count("\n") < 20:
        assert child.poll() is None, "it ended before it was killed"
        time.sleep(0.01)
    group = os.getpgid(child.pid)
    child.kill()
    child.wait()
    before = rows.read_text().count("\n")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("processes of the killed driver are left")
    study = blkmq.Study.from_file(tmp_path / "study.toml")
    assert 20 <= before < len(study)
    found = blkmq.sweep(study, out=tmp_path / "out")
    assert found.jsonl() == blkmq.sweep(study).jsonl()
    assert rows.read_text().count("\n") == len(study)


def test_dask_with_a_worker_that_is_killed(study: blkmq.Study, whole: str, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=str(tmp_path)
    ) as cluster, distributed.Client(cluster) as client:
        assert blkmq.sweep(study, client).jsonl() == whole
        pids = list(client.run(os.getpid).values())
        killed = []

        class Killing:
            def ncores(self) -> dict[str, int]:
                return {"a": 1, "b": 1}

            def submit(self, call, /, *args):  # type: ignore[no-untyped-def]
                future = client.submit(call, *args, pure=False)
                if len(killed) == 0 and args[2][0] > 20:
                    killed.append(pids[0])
                    os.kill(pids[0], signal.SIGKILL)
                return future

        assert blkmq.sweep(study, Killing(), out=tmp_path / "out").jsonl() == whole
        assert killed


def test_faults_of_the_work_are_raised_and_rows_kept(tmp_path: Path) -> None:
    with pytest.raises(blkmq.UsageError, match="no scheduler 'nosuch'"):
        blkmq.Study(grid={"scheduler": ["none", "nosuch"]}, options={"rw": "read", "size": "1m"})
    study = blkmq.Study(grid={"seed": [1, 2]}, options={"rw": "read", "size": "1m", "scheduler": "none"})

    class Stranger:
        def submit(self, call, /, version, *args):  # type: ignore[no-untyped-def]
            with ThreadPoolExecutor(1) as executor:
                return executor.submit(call, "0.0.0", *args)

    with pytest.raises(blkmq.Error, match="begun with 0.0.0"):
        blkmq.sweep(study, Stranger())


def test_columns_of_rows_are_read_by_all_three(study: blkmq.Study) -> None:
    import pandas
    import polars
    import pyarrow

    rows = blkmq.sweep(study)
    columns = rows.columns()
    assert len(rows) == len(study) == 100 and rows[0]["values"]["seed"] == 1
    assert pandas.DataFrame(columns).groupby("scheduler")["iops"].count().tolist() == [40] * 5
    assert polars.DataFrame(columns).height == pyarrow.table(columns).num_rows == 200
    assert rows.to_pandas()["read_p99_ns"].notna().sum() == 100
    assert "read_p99" in rows.answers()


def test_runs_by_processes_are_as_fast_as_by_the_program(program: str, tmp_path: Path) -> None:
    points = int(os.environ.get("BLKMQ_RUNS", "2000"))
    file = tmp_path / "study.toml"
    file.write_text(
        "options = { device = 'cloud', rw = 'randread', iodepth = 4, size = '1m', scheduler = 'bfq' }\n"
        f"[grid]\nseed = '1..{points}'\n"
    )
    study = blkmq.Study.from_file(file)
    begun = time.monotonic()
    output(program, "experiment", str(file), f"--out={tmp_path / 'program'}", "--threads=2")
    alone = time.monotonic() - begun
    with blkmq.Processes(2) as executor:
        # The start of the processes is not of the rate.
        blkmq.sweep(blkmq.Study(grid={"seed": [1, 2, 3, 4]}, options={"rw": "read", "size": "1m", "scheduler": "none"}), executor)
        begun = time.monotonic()
        blkmq.sweep(study, executor, out=tmp_path / "processes")
        together = time.monotonic() - begun
    print(f"{points} runs: program {alone:.1f} s, processes {together:.1f} s, rate {alone / together:.2f}")
    assert (tmp_path / "processes/runs.jsonl").read_bytes() == (tmp_path / "program/runs.jsonl").read_bytes()
    # A machine with other work may halve it.
    assert alone / together > 0.45
