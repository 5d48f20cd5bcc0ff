"""Just enough DNS over TCP to ask the cluster's name server one question through its service address."""

from __future__ import annotations

import struct

_QUERY_ID = 0x5052
_TYPE_A = 1
_CLASS_IN = 1


def query(name: str) -> bytes:
    """A recursive query for the address of `name`, with the length prefix of DNS over TCP."""
    labels = b"".join(struct.pack("B", len(label)) + label.encode("ascii") for label in name.rstrip(".").split("."))
    header = struct.pack(">HHHHHH", _QUERY_ID, 0x0100, 1, 0, 0, 0)
    message = header + labels + b"\0" + struct.pack(">HH", _TYPE_A, _CLASS_IN)
    return struct.pack(">H", len(message)) + message


def resolved(reply: bytes) -> bool:
    """Whether a reply (with its length prefix) answers our query with at least one record."""
    if len(reply) < 14:
        return False
    identity, flags, _, answers = struct.unpack(">HHHH", reply[2:10])
    return bool(identity == _QUERY_ID and flags & 0x8000 and flags & 0x000F == 0 and answers > 0)
