"""Errors that stay inside the engine package; what crosses the seam is in ``protocol.py``.

EngineError (protocol)
└── IntegrityError       our own bookkeeping contradicts itself: a bug, the engine must not go on
"""

from pratique_server.engine.protocol import EngineError


class IntegrityError(EngineError):
    """Blocks, tables and requests contradict each other: memory of one request may be another's. Never caught."""
