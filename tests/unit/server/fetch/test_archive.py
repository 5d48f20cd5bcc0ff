"""What an archive may cost, and whose names need not be text."""

import io
import tarfile
from pathlib import Path

import pytest

from pratique_server.fetch import archive
from pratique_server.fetch.archive import HEADER_BYTES_MAX, extract
from pratique_server.fetch.errors import CorruptError, FetchError

GOOD = {"m/config.json": b"{}"}


def write(path: Path, *members: tarfile.TarInfo, mode: str = "w:gz", bodies: dict[str, bytes] = GOOD) -> Path:
    """An archive whose ``members`` come first, each with as many zeros as it says."""
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
        for name, body in bodies.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return path


def sized(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member


def unpack(path: Path, target: Path) -> dict[str, str]:
    target.mkdir()
    return extract(path, target, room=lambda: 10**12, on_bytes=lambda _: None)


def test_a_bomb_in_a_member_nobody_wants_is_not_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passing over it takes the same work, and no stop would be heard meanwhile."""
    monkeypatch.setattr(archive, "UNPACKED_SPARE_BYTES", 1024)
    bomb = write(tmp_path / "a.tar.gz", sized("padding.dat", 4_000_000))
    with pytest.raises(FetchError, match="more than 50 times its own bytes"):
        unpack(bomb, tmp_path / "out")


def test_a_header_of_any_size_is_not_read_into_memory(tmp_path: Path) -> None:
    for number, kind in enumerate((tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME)):
        path = write(tmp_path / f"{number}.tar.gz", sized("././@LongLink", HEADER_BYTES_MAX + 1, kind))
        with pytest.raises(CorruptError, match="a header of"):
            unpack(path, tmp_path / f"out-{number}")


def test_a_file_with_holes_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", sized("m/model.safetensors", 512, tarfile.GNUTYPE_SPARSE), mode="w")
    with pytest.raises(CorruptError, match="a file with holes"):
        unpack(path, tmp_path / "out")


def test_a_name_that_is_no_text_is_left_out_and_the_rest_unpacked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", sized("m/caf\udce9.json", 3), mode="w")
    assert unpack(path, tmp_path / "out") == {"m/caf\udce9.json": "its name is hidden or unsafe"}
    assert (tmp_path / "out" / "m" / "config.json").read_bytes() == b"{}"
