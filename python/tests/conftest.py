import os
import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def program() -> str:
    """The program that results are compared with."""
    found = os.environ.get("BLKMQ_PROGRAM") or shutil.which("blkmq")
    if not found:
        pytest.fail("no program blkmq; BLKMQ_PROGRAM names it")
    return found


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of two tenants."""
    path = tmp_path / "trace.csv"
    rows = ["time_ns,op,offset,size,tenant,volume,class,latency_ns"]
    for at in range(3_000):
        op, tenant = ("write" if at % 3 == 0 else "read"), ("a" if at % 2 else "b")
        rows.append(f"{at * 50_000},{op},{at * 7 % 997 * 8192},4096,{tenant},v,none,")
    path.write_text("\n".join(rows) + "\n")
    return path


def output(*words: str) -> bytes:
    """What a program prints."""
    return subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout
