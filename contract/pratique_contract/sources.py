"""Where artefacts lie, as a URI says it: which schemes there are, which of them a container fetches before the server starts, and
the folder of the cache volume that one source fills. Pure text; who reads the bytes is elsewhere.

``pvc://`` and ``file://`` are mounted and read in place. The others are fetched once per cache volume: the folder's name is a digest of
what was asked for, so two pods that want the same source share it, and another revision never overwrites the one that serves.
"""

from typing import Final

from pratique_contract import constants
from pratique_contract.canonical import digest_json, short_digest

MOUNTED_SCHEMES: Final = ("pvc", "file")
FETCHED_SCHEMES: Final = ("hf", "oci", "https", "s3")
CACHE_FOLDER_DIGITS: Final = 24


def scheme_of(uri: str) -> str:
    """The part before ``://``, or the empty string."""
    scheme, separator, _ = uri.partition("://")
    return scheme if separator else ""


def is_fetched(uri: str) -> bool:
    """Whether the URI's content has to be fetched before the server starts."""
    return scheme_of(uri) in FETCHED_SCHEMES


def cache_folder(uri: str, revision: str | None) -> str:
    """Absolute path inside the pod of the folder that holds this source's files."""
    key = short_digest(digest_json({"uri": uri, "revision": revision}), length=CACHE_FOLDER_DIGITS)
    return f"{constants.MODEL_MOUNT}/{scheme_of(uri)}-{key}"
