"""What an archive may cost, and whose names need not be text."""

import io
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from backports import zstd

from pratique_server.fetch import archive
from pratique_server.fetch.archive import HEADER_BYTES_MAX, extract
from pratique_server.fetch.errors import CorruptError, FetchError

GOOD = {"m/config.json": b"{}"}
COMPRESSED = (".tar.gz", ".tar.zst")


def write(path: Path, *members: tarfile.TarInfo, mode: str = "w:gz", bodies: dict[str, bytes] = GOOD) -> Path:
    """An archive whose ``members`` come first, each with as many zeros as it says."""
    if path.suffix == ".zst":
        plain = write(path.with_suffix(""), *members, mode="w", bodies=bodies)
        path.write_bytes(zstd.compress(plain.read_bytes()))
        return path
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


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_bomb_in_a_member_nobody_wants_is_not_decompressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Passing over it takes the same work, and no stop would be heard meanwhile."""
    monkeypatch.setattr(archive, "UNPACKED_SPARE_BYTES", 1024)
    bomb = write(tmp_path / f"a{suffix}", sized("padding.dat", 4_000_000))
    with pytest.raises(FetchError, match="more than 50 times its own bytes"):
        unpack(bomb, tmp_path / "out")


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_a_header_of_any_size_is_not_read_into_memory(tmp_path: Path, suffix: str) -> None:
    for number, kind in enumerate((tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME)):
        path = write(tmp_path / f"{number}{suffix}", sized("././@LongLink", HEADER_BYTES_MAX + 1, kind))
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


def test_a_bomb_of_zeros_in_zstd_is_stopped_without_the_memory_for_it(tmp_path: Path) -> None:
    """Its header says ten gigabytes, and it goes on as long as anybody reads: refused by its size before one byte of it is there."""
    path = tmp_path / "a.tar.zst"
    with zstd.open(path, "wb") as file:
        file.write(sized("m/model.safetensors", 10 * 2**30).tobuf())
        file.write(bytes(64 * 2**20))
    tracemalloc.start()
    with pytest.raises(FetchError, match="more than 50 times its own bytes"):
        unpack(path, tmp_path / "out")
    assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    tracemalloc.stop()


def test_a_zstd_archive_holds_what_a_tar_holds(tmp_path: Path) -> None:
    bodies = {"m/config.json": b"{}", "m/model.safetensors": bytes(range(256)) * 10_000}
    unpack(write(tmp_path / "a.tar.zst", bodies=bodies), tmp_path / "out")
    assert {f"m/{path.name}": path.read_bytes() for path in (tmp_path / "out" / "m").iterdir()} == bodies
