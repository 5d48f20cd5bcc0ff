"""Logs as one JSON object per line: time, level, message, and the fields a call passed. Never content or keys."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO


class JsonFormatter(logging.Formatter):
    """``extra={"fields": {...}}`` puts structured values beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        value = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            value["traceback"] = self.formatException(record.exc_info)
        return json.dumps(value, ensure_ascii=False, default=str)


def configure_logs(level: int = logging.INFO, *, stream: TextIO | None = None) -> None:
    """Replace whatever handlers there are; ``stream`` None is standard output."""
    handler = logging.StreamHandler(stream or sys.stdout)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("uvicorn", "httpx", "httpcore", "transformers"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # Every error of a request is logged at the edge; this logger would tell it again, as an error, for each cut stream.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
