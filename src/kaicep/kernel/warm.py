"""Compiles the kernel before it is needed, once per installation, for every query."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from kaicep.kernel import keys, machine, predicates, skipping, words
from kaicep.kernel import tables as t
from kaicep.kernel import window_machine as w
from kaicep.kernel.epsparql import identities, kernels
from kaicep.kernel.jit import kernel_folder

_STAMP = "warm"
_ID = np.uint64(0)


def is_warm() -> bool:
    """Whether this version of the kernel has been compiled."""
    return (kernel_folder() / _STAMP).exists()


def can_be_warm() -> bool:
    """Whether there is a folder in which what is compiled can be kept."""
    try:
        kernel_folder().mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(kernel_folder(), os.W_OK | os.X_OK)


def warm() -> None:
    """Compiles all that Python calls of the kernel, or loads it where that was done before."""
    predicates.interpret()
    for function, given in entries():
        function.compile(tuple(function.typeof_pyval(each) for each in given))
    if can_be_warm():
        (kernel_folder() / _STAMP).touch()


def entries() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """The functions, each with arguments of the types that it is called with."""
    word, table, flag = np.zeros(1, np.int64), np.zeros((1, 1), np.int64), np.zeros(1, np.bool_)
    number, small, id = (
        np.zeros(1),
        np.zeros(1, np.uint8),
        np.zeros(1, np.uint64),
    )
    tables = t.Tables(word, table, table, table, table, table, word, word, word)
    memory = t.Memory(
        word, table, number, word, table, table, table, table, table, table, table, small, small, word, word,
        number, table, word, table,
    )  # fmt: skip
    batch = t.MachineBatch(word, word, np.zeros((1, 1), np.int32), table, word, word, word)
    yield machine.advance, (tables, memory, batch, 0)
    yield machine.fire, (memory, 0)
    yield machine.begun, (tables, memory, 0, word)
    yield machine.drop, (tables, memory, flag)
    yield machine.rows, (tables, memory, table, word)
    yield machine.put, (tables, memory, table, word, 0)
    yield machine.collect, (tables, memory, word, word)
    yield keys.number, (table, table, word, word, word, word)
    yield machine.resolve, (tables, memory, 0, table, table)
    yield machine.resolve_rounds, (tables, memory, 0, 0, word, word)
    yield machine.gather, (word, 0, table, table, table, word)
    yield machine.emit, (tables, memory, word, table, table, table, word)
    yield skipping.choose, (word, word, word, word, flag, flag, word, True, flag)
    yield from _of_windows(word, table)
    yield from _of_triples(word, table, id)
    ids = np.zeros((1, 3), np.uint64)
    yield words.identify, (id, id, ids, word, word, word)
    for column in (word, np.zeros((2, 2), np.int64)[:, 0]):
        yield words.mix_pairs, (id, id, column, column)
    yield words.mix_events, (id, id, ids, word, word, word, word)


def _of_windows(word: w.Array, table: w.Array) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    steps = w.WindowSteps(word, table, table)
    state = w.WindowState(word, table, table, table, table, table, table, word, word)
    entries = w.Entries(word, word, word, word, word, word, table)
    answers = w.WindowAnswers(table, np.zeros((1, 1), np.bool_))
    yield w.advance, (steps, state, entries, answers, 0)
    yield w.pass_time, (steps, state, 0, answers)
    yield w.clear_groups, (steps, table)
    yield w.rehash, (table, state)


def _of_triples(word: w.Array, table: w.Array, id: w.Array) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    codes, values, text = np.zeros(1, np.int32), np.zeros((1, 1), np.int32), np.zeros(1, np.uint8)
    numbers = np.zeros(1), np.zeros(1), np.zeros(1, np.int8)
    store = values, word, word, word, word, word, 0
    rows = values, word, word
    names = np.frombuffer(b"a", np.uint8)
    more = table, word, table, numbers
    yield kernels.link, (values, word, word, word, word, 0, 0)
    yield kernels.unlink, (values, word, word, word, word, 0, 0)
    yield kernels.test, (table, values, word, word, *numbers)
    yield kernels.join, (0, 0, *rows, *rows, store, store, word, word, (word, word), *more)
    yield kernels.ask, (word, *rows, *rows, store, (word, word), table, table, table, numbers)
    yield kernels.distinct, (codes, codes, codes, word, word)
    yield kernels.is_any_vague, (values, word)
    yield kernels.shapes, (codes, codes, 0, np.zeros(1, np.bool_), codes, codes, codes)
    yield kernels.are_triples, (np.zeros((1, 3, 1), np.int32), text)
    afters, stores = (*rows, word), (store, store, store)
    yield kernels.adjacent, (0, True, 0, afters, rows, rows, stores, (word,) * 5, (table, table), word)
    flags = np.zeros(1, np.bool_)
    yield kernels.enumerate_rows, (values, values, word, 0)
    yield kernels.first_times, (word, 0)
    yield kernels.run_groups, (word, word, word, word, 0)
    yield kernels.relink, (word, word, word, table)
    yield kernels.follow, (0, *rows, *rows, store, word, table, (word, word), table, flags)
    for column in (codes, np.zeros((2, 2), np.int32)[:, 0]):  # the codes of a variable, apart and in a table
        yield kernels.tally, (0, table, 0, column, word, table, table, table)
        yield kernels.total, (0, word, column, word, word, True, word, word, word, word, flags)
    yield identities.identify, (values, word, word, word, names, word, text, word, _ID, _ID)
    yield identities.in_order, (word, id, id, word)
