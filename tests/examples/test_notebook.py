"""The notebook of the campus runs from top to bottom, and shows what it showed when it was written.

`KAICEP_WRITE_GOLDEN=1 pytest tests/examples/test_notebook.py` runs it and keeps its outputs: look at them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "campus" / "campus.ipynb"


def shown(notebook: Any) -> list[Any]:
    """The outputs of every cell; how often cells were run before is no matter."""
    outputs = [each.outputs for each in notebook.cells if each.cell_type == "code"]
    return [[{**one, "execution_count": None} for one in some] for some in outputs]


@pytest.mark.slow
def test_the_notebook_shows_what_it_showed() -> None:
    kept = nbformat.read(NOTEBOOK, as_version=4)
    again = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(NOTEBOOK.parent)}}
    NotebookClient(again, timeout=600, kernel_name="python3", record_timing=False, resources=where).execute()
    if os.environ.get("KAICEP_WRITE_GOLDEN"):
        again.metadata["language_info"] = {"name": "python"}
        nbformat.write(again, NOTEBOOK)
    assert shown(again) == shown(kept)
