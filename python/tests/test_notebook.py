"""The notebook runs from its first cell to its last, within two minutes, and draws its plots."""

import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def test_the_notebook_runs_and_draws(tmp_path: Path) -> None:
    notebook = nbformat.read(Path(__file__).parents[1] / "examples" / "study.ipynb", as_version=4)
    begun = time.monotonic()
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert time.monotonic() - begun < 120
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    plots = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(plots) == 3
    text = "".join(output.get("text", "") for output in outputs)
    assert "small.iops: b:weight=10,reserve_iops=600 is best" in text
    assert "large.iops: b:weight=10 is best; worse: " in text
