"""What is compiled once per installation."""

from __future__ import annotations

import pytest

from kaicep.kernel.jit import kernel_folder
from kaicep.kernel.warm import entries

COMPILED = {f"{each.__module__}.{each.__name__}": each for each, _ in entries()}


@pytest.mark.parametrize("name", COMPILED)
def test_all_that_python_calls_is_kept_in_the_folder_of_this_kernel(name: str) -> None:
    """What is there is sent to Spark's workers, and found by another installation of the same sources."""
    assert COMPILED[name]._cache.cache_path == str(kernel_folder())
