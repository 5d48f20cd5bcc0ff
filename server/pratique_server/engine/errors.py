"""Errors that stay inside the engine package; what crosses the seam is in ``protocol.py``.

EngineError (protocol)
├── LoadError            the model folder or the specification cannot be served; the message is a sentence for a person
└── IntegrityError       our own bookkeeping contradicts itself: a bug, the engine must not go on
"""

from pratique_server.engine.protocol import EngineError


class LoadError(EngineError):
    """The model cannot be loaded; the message says which file or field and what is wrong with it."""


class IntegrityError(EngineError):
    """Blocks, tables and requests contradict each other: memory of one request may be another's. Never caught."""
