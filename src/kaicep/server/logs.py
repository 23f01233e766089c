"""Messages of a deployment: for a person, or as lines of JSON for a machine."""

from __future__ import annotations

import json
import logging
import time

__all__ = ["JsonLines", "Plain"]


class Plain(logging.Formatter):
    """`09:00:00 warning: ...`; what is well goes without saying so."""

    def format(self, record: logging.LogRecord) -> str:
        """A line."""
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{moment} {level}{record.getMessage()}{trace}"


class JsonLines(logging.Formatter):
    """One JSON object a line: when, how serious, from where, and the message.

    >>> record = logging.LogRecord("kaicep.run", logging.INFO, "", 0, "%s runs", ("campus",), None)
    >>> json.loads(JsonLines().format(record))["message"]
    'campus runs'
    """

    def format(self, record: logging.LogRecord) -> str:
        """A line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return json.dumps(
            {
                "time": f"{moment}.{int(record.msecs):03d}Z",
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": record.getMessage(),
                **({"traceback": self.formatException(record.exc_info)} if record.exc_info else {}),
            },
            ensure_ascii=False,
        )
