"""The commands: the same bytes as the program, plain columns, errors that keep their text, and Ctrl-C."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import blkmq
import pytest
from conftest import output

LOAD = ({"name": "r", "rw": "randread", "iodepth": 4}, {"name": "w", "rw": "randwrite", "bs": "32k", "numjobs": 2})


def test_fifty_seeds_are_equal_to_the_program_to_the_byte(program: str) -> None:
    schedulers = ["none", "mq-deadline", "kyber", "bfq", "mclock"]
    for seed in range(50):
        device = ["flash", "disk"][seed % 2]
        result = blkmq.simulate(*LOAD, device=device, scheduler=schedulers[seed % 5], seed=seed, size="512k")
        assert result.json().encode() == output(program, "sim", *result.words), seed


def test_replays_and_facts_are_equal_to_the_program(program: str, trace: Path) -> None:
    result = blkmq.replay(trace, scheduler="none,bfq", think=True, weight=["a=300", "b=100"])
    assert result.json().encode() == output(program, "replay", *result.words)
    assert {job.name.split(".")[0] for job in result.jobs} == {"a", "b"}
    facts = blkmq.trace.info(trace)
    assert facts["ios"]["read"] == 2_000 and facts["tenants"][0] == {
        "name": "b", "ios": 1_500, "reads": 1_000, "bytes": 1_500 * 4096,
    }


def test_a_benchmark_in_real_time(tmp_path: Path) -> None:
    result = blkmq.bench(rw="randread", device="null", scheduler="mq-deadline", runtime="100ms", time_based=True)
    assert result.jobs[0].read.ios > 100 and "seed" not in result.data["blkmq"]


def test_figures_of_a_result() -> None:
    groups = ["a:weight=300", "b:weight=100"]
    jobs = [{"name": name, "rw": "randread", "iodepth": 32, "cgroup": name} for name in "ab"]
    result = blkmq.simulate(*jobs, device="cloud", scheduler="mclock", group=groups, runtime="5s", ramp_time="5s", time_based=True)
    a, b = result.job("a"), result.job("b")
    assert 2.8 < a.read.ios / b.read.ios < 3.2
    shares = {group["name"]: group["share"] for group in result.groups}
    assert abs(shares["a"] - 0.75) < 0.02, shares
    times, share = a.read.cdf()
    assert times == sorted(times) and share[-1] == 1.0
    assert a.read.percentile(50) <= a.read.percentile(99) <= a.read.percentile(100)  # type: ignore[operator]
    assert a.write.percentile(50) is None and a.write.mean is None
    with pytest.raises(ValueError, match="accepted"):
        a.read.percentile(0)
    with pytest.raises(KeyError, match="0 jobs; there are a under mclock"):
        result.job("c")


def test_percentiles_are_those_of_fio_s_json() -> None:
    result = blkmq.simulate(rw="randread", device="disk", scheduler="none", size="4m", iodepth=8)
    listed = result.data["jobs"][0]["read"]["clat_ns"]["percentile"]
    assert len(listed) > 10
    for percent, ns in listed.items():
        assert result.jobs[0].read.percentile(float(percent)) == ns, percent


def test_pandas_polars_and_pyarrow_read_columns() -> None:
    import pandas
    import polars
    import pyarrow

    schedulers = ["none", "bfq"]
    result = blkmq.simulate(*LOAD, device="flash", scheduler=",".join(schedulers), size="512k")
    columns = result.columns()
    frames = [pandas.DataFrame(columns), polars.DataFrame(columns), result.to_pandas()]
    for frame in frames:
        assert list(frame["scheduler"]) == [it for it in schedulers for _ in result.jobs[: len(result.jobs) // 2]]
        assert frame["iops"].sum() > 0
    table = pyarrow.table(columns)
    assert table.num_rows == len(result.jobs) and table["read_p99_ns"].null_count > 0


def test_errors_keep_the_text_of_the_program(program: str) -> None:
    for words in (["--bs=floppy"], ["--device=floppy"], ["--no_such=1"]):
        name, value = words[0].removeprefix("--").split("=")
        with pytest.raises(blkmq.UsageError) as error:
            blkmq.simulate(rw="read", size="1m", **{name: value})
        line = ["sim", "--output-format=json+", "--rw=read", "--size=1m", *words]
        found = subprocess.run([program, *line], stderr=subprocess.PIPE, text=True)
        assert found.returncode == 2 and found.stderr == f"blkmq: {error.value}\n"
    with pytest.raises(blkmq.UsageError, match="No such file"):
        blkmq.replay("no-such.csv")


def test_names_and_attributes() -> None:
    assert {"disk", "flash", "cloud", "null"} <= set(blkmq.devices())
    assert blkmq.schedulers()["mq-deadline"]["read_expire"].default == 500
    assert "low_latency" in blkmq.schedulers()["bfq"]


def test_ctrl_c_ends_a_run(tmp_path: Path) -> None:
    script = (
        "import blkmq, sys\n"
        "print('begun', flush=True)\n"
        "try:\n"
        "    blkmq.simulate(rw='randread', iodepth=64, device='flash', runtime='1000000s', time_based=True)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(7)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "begun\n"
    time.sleep(0.5)
    begun = time.monotonic()
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=20) == 7
    assert time.monotonic() - begun < 2


def test_the_interpreter_runs_beside_a_run() -> None:
    import threading

    thread = threading.Thread(
        target=lambda: blkmq.simulate(rw="randread", device="flash", scheduler="none", iodepth=32, runtime="1s", time_based=True)
    )
    thread.start()
    turns = 0
    while thread.is_alive():
        turns += 1
        time.sleep(0.001)
    assert turns > 10
