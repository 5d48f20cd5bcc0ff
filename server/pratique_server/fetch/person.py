"""What a person at a terminal asks for: fetch one source, or learn the name of it that cannot move.

Progress goes to the error stream. Beside the given credentials, the person's own login to the hub is theirs to use here.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from huggingface_hub import get_token

from pratique_contract.serving import DownloadSpec
from pratique_contract.sources import scheme_of
from pratique_server.fetch.errors import FetchError, HaltedError
from pratique_server.fetch.fetcher import Fetcher, Settings
from pratique_server.fetch.halt import Halt
from pratique_server.fetch.program import install_redactor, run_fetcher, stop_on_signals
from pratique_server.fetch.progress import Progress
from pratique_server.fetch.resolve import Resolved, resolve
from pratique_server.fetch.secrets import read_credentials
from pratique_server.fetch.selection import Wanted
from pratique_server.fetch.targets import Target

LOG_SECONDS: Final = 1.0


class PersonError(Exception):
    """Why it could not be done, in one sentence without secrets."""


class StoppedError(PersonError):
    """The person has."""


def fetch_for_person(
    uri: str, folder: Path, *, revision: str | None, download: DownloadSpec, weights: bool, code: bool
) -> None:
    """Fetch one source into a folder; raises ``PersonError``."""
    if not folder.absolute().name:
        raise PersonError(f"{folder} cannot be filled as a whole; name a folder below it")
    target = Target(uri=uri, revision=revision, path=folder.absolute(), wanted=Wanted(weights=weights, code=code))
    _run(uri, lambda fetcher: fetcher.fetch(target), download, stopped="Stopped; run it again to go on where it was")


def resolve_for_person(
    uri: str, *, revision: str | None, download: DownloadSpec, weights: bool, code: bool
) -> Resolved:
    """The immutable name of a source; raises ``PersonError``."""
    found: list[Resolved] = []
    wanted = Wanted(weights=weights, code=code)
    _run(uri, lambda fetcher: found.append(resolve(fetcher, uri, revision, wanted)), download, stopped="Stopped")
    return found[0]


def _run(uri: str, act: Callable[[Fetcher], None], download: DownloadSpec, *, stopped: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    for noisy in ("httpx", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        credentials = read_credentials(download.credentials_path)
    except FetchError as error:
        raise PersonError(_for_person(error.message)) from error
    if credentials.token is None and scheme_of(uri) == "hf":
        # HF_TOKEN, or what `hf auth login` has left.
        credentials = replace(credentials, token=get_token())
    redactor, halt = install_redactor(credentials), Halt()
    stop_on_signals(halt)
    settings = Settings(download=download, credentials=credentials)
    failure = run_fetcher(act, settings, Progress(), halt, log_seconds=LOG_SECONDS)
    if isinstance(failure, HaltedError):
        raise StoppedError(stopped)
    if failure is not None:
        raise PersonError(_for_person(redactor.clean(f"{failure.reason}: {failure.message}")))


def _for_person(message: str) -> str:
    """The sentences are a pod's; a person has no Secret."""
    if "Secret" not in message:
        return message
    return f"{message} (here the Secret's keys are files in --credentials DIR, and HF_TOKEN is a token for the hub)"
