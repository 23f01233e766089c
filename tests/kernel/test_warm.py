"""What is compiled once per installation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kaicep.kernel import epsparql
from kaicep.kernel.jit import kernel_folder
from kaicep.kernel.warm import entries

COMPILED = {f"{each.__module__}.{each.__name__}": each for each, _ in entries()}


@pytest.mark.parametrize("name", COMPILED)
def test_all_that_python_calls_is_kept_in_the_folder_of_this_kernel(name: str) -> None:
    """What is there is sent to Spark's workers, and found by another installation of the same sources."""
    assert COMPILED[name]._cache.cache_path == str(kernel_folder())


def test_what_triples_need_is_compiled_beforehand() -> None:
    """No function is left to the first query that needs it."""
    texts = [each.read_text("utf-8") for each in Path(epsparql.__file__).parent.glob("*.py")]
    called = {name for text in texts for name in re.findall(r"\b(?:kernels|identities)\.([a-z_]+)\(", text)}
    assert len(called) > 15
    assert called <= {name.rpartition(".")[2] for name in COMPILED}
