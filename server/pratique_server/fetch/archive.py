"""Take the files a server loads out of a tar archive, and nothing else: regular files with safe names, written to new files.

Members that are links, devices or that point outside are never created. Archives made of a folder, and image layers, have the model some
levels down: what is extracted keeps its folders at first, then the one folder that holds the model becomes the top.
"""

import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from lzma import LZMAError
from pathlib import Path
from typing import Final, cast

from backports.zstd import DecompressionParameter, ZstdError, ZstdFile

from pratique_server.artifacts.files import PICKLE_SUFFIXES
from pratique_server.fetch.errors import MAKE_ROOM, CorruptError, DiskFullError, FetchError
from pratique_server.fetch.progress import size_text
from pratique_server.fetch.selection import (
    Wanted,
    is_safe,
    pickles_only,
    select,
    shown,
)

_CHUNK_BYTES: Final = 1024 * 1024
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
MEMBERS_MAX: Final = 1_000_000
# Weights hardly compress, texts to a tenth; a bomb to a thousandth.
UNPACKED_TIMES_MAX: Final = 50
UNPACKED_SPARE_BYTES: Final = 64 * 1024 * 1024
HEADER_BYTES_MAX: Final = 1024 * 1024
# A frame says itself how much memory it wants: at most this power of two, as `zstd -d` gives it.
ZSTD_WINDOW_LOG_MAX: Final = 27
# A frame, or one to be skipped (an index of files, in the layers that have one).
_ZSTD: Final = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
# What tells a model's (or adapter's) folder, beside its weights, and a tokenizer's.
_MODEL_MARKERS: Final = frozenset({"config.json", "adapter_config.json"})
_TOKENIZER_MARKERS: Final = frozenset(
    {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt"}
)
_CANDIDATE_SUFFIXES: Final = (".safetensors", ".json", ".jinja", ".model", ".tiktoken", ".txt", ".codes", ".py")


class _PlainTarInfo(tarfile.TarInfo):
    """Refuses members whose header would be read into memory whatever its size, and files with holes, whose map would be."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type == tarfile.GNUTYPE_SPARSE or (self.type in _EXTENDING and self.size > HEADER_BYTES_MAX):
            raise tarfile.ReadError(f"a header of {self.size} bytes, or a file with holes")
        return cast("tarfile.TarInfo", super()._proc_member(tar))  # type: ignore[misc]  # the library's own place for it


_EXTENDING: Final = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


def extract(archive: Path, target: Path, *, room: Callable[[], int], on_bytes: Callable[[int], None]) -> dict[str, str]:
    """Write every member that could be part of a model below ``target``; returns names that were left out, with the reason.

    ``room`` says how many bytes the volume still takes; ``on_bytes`` hears of each piece and may raise to stop.
    """
    left_out: dict[str, str] = {}
    try:
        # Reading as a stream: nothing is sought for, and no index of millions of members is kept.
        bytes_max = UNPACKED_SPARE_BYTES + UNPACKED_TIMES_MAX * archive.stat().st_size
        with _open(archive) as tar:
            for count, member in enumerate(tar):
                # Also what is passed over has to be decompressed, and nobody could stop it meanwhile.
                bytes_max -= member.size
                if count >= MEMBERS_MAX or bytes_max < 0:
                    raise FetchError(
                        f"The archive has more than {MEMBERS_MAX} members, or more than {UNPACKED_TIMES_MAX} times its own bytes"
                    )
                why = _extract_member(tar, member, target, room=room, on_bytes=on_bytes)
                if why is not None:
                    left_out[member.name[:200]] = why
                tar.members = []  # type: ignore[attr-defined]  # the library would remember every one
    except (tarfile.TarError, EOFError, zlib.error, LZMAError, ZstdError) as error:
        raise CorruptError(f"The archive is not a tar archive that can be read: {error}") from error
    except OSError as error:
        if "gzip" in str(error) or "Invalid data stream" in str(error):
            raise CorruptError(f"The archive cannot be decompressed: {error}") from error
        raise
    return left_out


@contextmanager
def _open(archive: Path) -> Iterator[tarfile.TarFile]:
    """The members in their order, whatever the archive is compressed with; its first bytes tell."""
    with archive.open("rb") as file:
        zstd = _ZSTD.match(file.read(4)) is not None
    if not zstd:
        with tarfile.open(archive, mode="r|*", tarinfo=_PlainTarInfo) as tar:
            yield tar
        return
    options: dict[int, int] = {DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG_MAX}
    with (
        ZstdFile(archive, options=options) as plain,
        tarfile.open(fileobj=plain, mode="r|", tarinfo=_PlainTarInfo) as tar,
    ):
        yield tar


def _extract_member(
    tar: tarfile.TarFile,
    member: tarfile.TarInfo,
    target: Path,
    *,
    room: Callable[[], int],
    on_bytes: Callable[[int], None],
) -> str | None:
    if member.isdir():
        return None
    name = member.name.removeprefix("./")
    if name.rpartition("/")[2].startswith(_WHITEOUT):
        _remove(target, name)
        return None
    if not name.endswith((*_CANDIDATE_SUFFIXES, *PICKLE_SUFFIXES)):
        return None  # the rest of an image: nobody expects it to be named
    if not member.isreg():
        return "it is no regular file"
    if not is_safe(name):
        return "its name is hidden or unsafe"
    if name.endswith(PICKLE_SUFFIXES):
        return "it can run code when it is read"
    if member.size > room():
        raise DiskFullError(
            f"{name} of the archive has {size_text(member.size)}, and the cache volume has {size_text(room())} left: "
            f"enlarge it, or {MAKE_ROOM}"
        )
    source = tar.extractfile(member)
    assert source is not None, "a regular file has bytes"
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # an upper layer's file replaces a lower one's
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            file.write(chunk)
            on_bytes(len(chunk))
    return None


def _remove(target: Path, name: str) -> None:
    """An image layer's word that something of the layers below is gone: one file, or (opaque) all of a folder."""
    folder, _, base = name.rpartition("/")
    gone = folder if base == _OPAQUE else f"{folder}/{base.removeprefix(_WHITEOUT)}".lstrip("/")
    if not is_safe(gone):
        return
    path = target / gone
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def choose_top(names: list[str], wanted: Wanted, source: str, *, pickles: list[str]) -> str:
    """The folder of an archive that holds the model: ``""`` or a name with a slash at its end. ``pickles`` were not unpacked."""
    folders: dict[str, set[str]] = {}
    for name in names:
        folder, _, base = name.rpartition("/")
        folders.setdefault(f"{folder}/" if folder else "", set()).add(base)
    fitting = [folder for folder, bases in folders.items() if _is_model(bases, wanted)]
    if len(fitting) > 1:
        # A folder within the model's own (an example, an adapter) is not another candidate.
        top = min(fitting, key=lambda folder: folder.count("/"))
        if all(folder.startswith(top) for folder in fitting):
            return top
        raise FetchError(f"{source} holds several models ({shown(sorted(fitting))}); it must hold one")
    if not fitting and pickles and wanted.weights:
        raise pickles_only(source, pickles)
    if not fitting:
        what = "safetensors beside a config.json" if wanted.weights else "a tokenizer"
        raise FetchError(f"{source} has no folder with {what}")
    return fitting[0]


def _is_model(bases: set[str], wanted: Wanted) -> bool:
    if not wanted.weights:
        return bool(bases & _TOKENIZER_MARKERS)
    return bool(bases & _MODEL_MARKERS) and any(base.endswith(".safetensors") for base in bases)


def settle(
    staged: Path, target: Path, wanted: Wanted, source: str, *, pickles: list[str]
) -> tuple[list[str], dict[str, str]]:
    """Move the model's files from where they were extracted to the top of ``target``; returns their names and what is left out."""
    every = sorted(path.relative_to(staged).as_posix() for path in staged.rglob("*") if path.is_file())
    top = choose_top(every, wanted, source, pickles=pickles)
    selection = select((name.removeprefix(top) for name in every if name.startswith(top)), wanted)
    for name in selection.taken:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (staged / f"{top}{name}").replace(path)
    return list(selection.taken), dict(selection.left_out)
