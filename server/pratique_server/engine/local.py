"""The same engines inside this process, without sockets: for unit tests and ``pratique release record``."""

from pratique_contract import ServingSpec
from pratique_server.engine.protocol import Engine


async def start_local_engine(spec: ServingSpec) -> Engine:
    """Load the engine in a thread of this process; raises ``EngineError`` with a sentence when it cannot."""
    raise NotImplementedError
