"""Which files of a source a server loads. Pure: names in, the ones to fetch and the ones left out with the reason.

Weights only as safetensors: formats that can run code when they are read are never fetched. Python files only where the release declares
that the model's own code is to be run. Engines read the top folder, and chat templates from one folder below it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from pratique_server.artifacts.files import is_pickle
from pratique_server.fetch.errors import FetchError

TEXT_SUFFIXES: Final = (".json", ".jinja", ".model", ".tiktoken")
TOKENIZER_TEXTS: Final = ("vocab.txt", "merges.txt", "bpe.codes")
TEMPLATE_FOLDER: Final = "additional_chat_templates"
WEIGHTS_SUFFIX: Final = ".safetensors"
CODE_SUFFIX: Final = ".py"
_NAMES_SHOWN: Final = 5
_NAME_LENGTH_MAX: Final = 255


@dataclass(frozen=True)
class Wanted:
    """What a folder is for. A tokenizer's folder needs no weights; only declared code is fetched."""

    weights: bool = True
    code: bool = False

    def covers(self, other: "Wanted") -> bool:
        return (self.weights or not other.weights) and (self.code or not other.code)

    def union(self, other: "Wanted") -> "Wanted":
        return Wanted(weights=self.weights or other.weights, code=self.code or other.code)


@dataclass(frozen=True)
class Selection:
    """Names to fetch, and why each other name is left out."""

    taken: tuple[str, ...]
    left_out: Mapping[str, str]


def select(names: Iterable[str], wanted: Wanted) -> Selection:
    """Sort the names of a source into what is fetched and what is not."""
    every = sorted(set(names))
    standard = any(name.endswith(WEIGHTS_SUFFIX) and not _is_consolidated(name) and "/" not in name for name in every)
    taken, left_out = [], {}
    for name in every:
        why = _why_not(name, wanted, has_standard_weights=standard)
        if why is None:
            taken.append(name)
        else:
            left_out[name] = why
    return Selection(tuple(taken), left_out)


def require_usable(selection: Selection, wanted: Wanted, source: str) -> None:
    """Raises ``FetchError`` when what would be fetched cannot be loaded, naming what there is instead."""
    if wanted.weights and not any(name.endswith(WEIGHTS_SUFFIX) for name in selection.taken):
        pickles = [name for name in selection.left_out if is_pickle(name)]
        if pickles:
            raise pickles_only(source, pickles)
        raise FetchError(f"{source} holds no {WEIGHTS_SUFFIX} file" + _instead(selection))
    if not selection.taken:
        raise FetchError(f"{source} holds no tokenizer file" + _instead(selection))


def pickles_only(source: str, pickles: Iterable[str]) -> FetchError:
    """The refusal of weights that come in no other form."""
    return FetchError(
        f"{source} has its weights only as {shown(pickles)}: files that can run code when they are read are refused. "
        "Use a revision with safetensors, or convert the model"
    )


def is_safe(name: str) -> bool:
    """Whether a name stays inside the folder and hides nothing."""
    # First, for what is no text at all: the name of a tar member may be any bytes.
    if not name.isprintable() or "\\" in name:
        return False
    parts = name.split("/")
    return all(part and not part.startswith(".") and len(part.encode()) <= _NAME_LENGTH_MAX for part in parts)


def shown(names: Iterable[str]) -> str:
    """The first few names, for a sentence. The peer chose them: one that would steer a terminal or forge a line is shown as what it is."""
    every = [name if name.isprintable() else repr(name) for name in names]
    more = f" and {len(every) - _NAMES_SHOWN} more" if len(every) > _NAMES_SHOWN else ""
    return ", ".join(every[:_NAMES_SHOWN]) + more


def _instead(selection: Selection) -> str:
    return f"; it has {shown(selection.left_out)}" if selection.left_out else "; it is empty"


def _is_consolidated(name: str) -> bool:
    return name.startswith("consolidated")


def _why_not(name: str, wanted: Wanted, *, has_standard_weights: bool) -> str | None:
    if not is_safe(name):
        return "its name is hidden or unsafe"
    path = PurePosixPath(name)
    if is_pickle(name):
        return "it can run code when it is read"
    if path.suffix == CODE_SUFFIX:
        return None if wanted.code else "the release does not declare the model's own code (trustRemoteCode)"
    if len(path.parts) > 1 and not (path.parts[:-1] == (TEMPLATE_FOLDER,) and path.suffix == ".jinja"):
        return "engines read the top folder only"
    if path.suffix == WEIGHTS_SUFFIX:
        if not wanted.weights:
            return "only the tokenizer is wanted"
        if _is_consolidated(name) and has_standard_weights:
            return "it repeats the weights in another layout"
        return None
    if path.suffix in TEXT_SUFFIXES or path.name in TOKENIZER_TEXTS:
        return None
    return "no engine loads it"
