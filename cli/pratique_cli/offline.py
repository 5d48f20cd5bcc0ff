"""Run one of the server's offline actions in this process, with sentences for what can go wrong."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from pratique_cli.errors import CliError, missing_extra

# Action: the module and function that does it.
_ACTIONS: Final[dict[str, tuple[str, str]]] = {
    "build": ("pratique_server.offline.loading", "build_release"),
    "record": ("pratique_server.offline.loading", "record_release"),
    "extend": ("pratique_server.offline.loading", "extend_record"),
    "verify": ("pratique_server.offline.verification", "verify_release"),
    "review": ("pratique_server.review.run", "run_tests"),
}


def run_offline(action: str, *arguments: Any, **options: Any) -> Any:
    """The action's result; its errors are sentences already and become a ``CliError``."""
    import asyncio
    import os
    from importlib import import_module

    # Offline, like a pod: what is recorded is what lies in the folder, not what a hub has today.
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    module, name = _ACTIONS[action]
    try:
        from pratique_server.artifacts.errors import ReleaseError
        from pratique_server.engine.protocol import EngineError
        from pratique_server.errors import PratiqueError
        from pratique_server.imports import MODELS, import_large
        from pratique_server.text.tokenizer import TokenizerError

        import_large(MODELS, module)
        run: Callable[..., Coroutine[Any, Any, Any]] = getattr(import_module(module), name)
    except ImportError as error:
        raise missing_extra("server", error) from error
    try:
        return asyncio.run(run(*arguments, **options))
    except (EngineError, PratiqueError, ReleaseError, TokenizerError) as error:
        raise CliError(str(error)) from error
