"""The API process's side of the engine-core process."""

from pratique_contract import ServingSpec
from pratique_server.engine.protocol import Engine


async def start_engine(spec: ServingSpec) -> Engine:
    """Start the engine-core process and return once it has loaded; raises ``EngineError`` with a sentence otherwise."""
    raise NotImplementedError
