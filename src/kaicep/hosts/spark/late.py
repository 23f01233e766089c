"""The late output: events that come so far behind the newest of their part that no match uses them.

Whether one is late depends on its part alone (semantics 1), so parts are looked at side by side. Of a stream,
the newest time of each part is kept in Spark's state store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from kaicep.hosts.spark.clock import NEVER
from kaicep.hosts.spark.source import newest_before, part_of, time_of
from kaicep.plan.catalog import Stream

__all__ = ["late_rows"]


def late_rows(frame: DataFrame, stream: Stream, lateness: int) -> DataFrame:
    """The late rows of a frame of events, with the columns that they have."""
    timed = frame.withColumns({"_ts": time_of(frame.schema, stream), "_part": part_of(frame.schema, stream)})
    if not frame.isStreaming:
        newest = timed.withColumn("_newest", newest_before("seq", "_part"))
        return newest.where(sf.col("_ts") < sf.col("_newest") - sf.lit(lateness)).select(*frame.columns)
    told = timed.groupBy("_part").applyInPandasWithState(
        _told(lateness), frame.schema, "newest bigint", "append", "NoTimeout"
    )
    return told.select(*frame.columns)


def _told(lateness: int) -> Callable[..., Iterator[Any]]:
    def work(key: tuple[Any, ...], frames: Iterator[Any], state: Any) -> Iterator[Any]:
        import pandas

        rows = pandas.concat(list(frames)).sort_values("seq")
        newest = state.get[0] if state.exists else NEVER
        ts = rows["_ts"].to_numpy(np.int64)
        reached = np.maximum.accumulate(np.concatenate([[newest], ts]))
        late = (reached[:-1] != NEVER) & (ts < reached[:-1] - lateness)
        state.update((int(reached[-1]),))
        if late.any():
            yield rows.loc[late].drop(columns=["_ts", "_part"])

    return work
