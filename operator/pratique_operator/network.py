"""Who may reach the server pods over the network, as whoever installs the operator says it. Read once; a wrong setting is named then, not
by the API server in each service's status.
"""

import ipaddress
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from pratique_contract.canonical import JSON_ERRORS

Peer = dict[str, Any]

PEERS_MAX: Final = 64
_NAME: Final = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABEL: Final = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_PREFIX: Final = rf"(?=[^/]{{1,253}}/){_LABEL}(\.{_LABEL})*"
_KEY: Final = re.compile(rf"({_PREFIX}/)?{_NAME}")
_VALUE: Final = re.compile(rf"({_NAME})?")
_SELECTORS: Final = frozenset({"namespaceSelector", "podSelector"})
_OPERATORS: Final = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}


@dataclass(frozen=True)
class NetworkAccess:
    """Peers in the form of a NetworkPolicy's. ``management_from`` reach the management port, as do a pod's own node and nobody else;
    ``api_from`` the API port, anybody when it is empty."""

    management_from: tuple[Peer, ...] = ()
    api_from: tuple[Peer, ...] = ()


def parse_access(text: str) -> NetworkAccess | None:
    """Read ``{"managementFrom": [peer, …], "apiFrom": [peer, …]}``; None for an empty text: no policy. Raises ``ValueError``."""
    if not text.strip():
        return None
    try:
        read = json.loads(text)
    except JSON_ERRORS as error:
        raise ValueError(f"it is no JSON: {error}") from error
    value = _object("it", read, {"managementFrom", "apiFrom"})
    return NetworkAccess(*(_peers(name, value.get(name)) for name in ("managementFrom", "apiFrom")))


def _peers(name: str, value: Any) -> tuple[Peer, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > PEERS_MAX:
        raise ValueError(f"{name} is no list of at most {PEERS_MAX} peers")
    for index, peer in enumerate(value):
        _check_peer(f"{name}[{index}]", peer)
    return tuple(map(_as_stored, value))


def _as_stored(peer: Peer) -> Peer:
    """Without the empty lists and labels that the API server leaves out: missed in what it holds, they would be written in each pass."""
    if "ipBlock" in peer:
        return {"ipBlock": _filled(peer["ipBlock"])}
    return {
        name: {
            part: [_filled(each) for each in found] if part == "matchExpressions" else found
            for part, found in _filled(selector).items()
        }
        for name, selector in peer.items()
    }


def _filled(value: dict[str, Any]) -> dict[str, Any]:
    return {key: inner for key, inner in value.items() if inner not in ([], {})}


def _check_peer(where: str, value: Any) -> None:
    peer = _object(where, value, {*_SELECTORS, "ipBlock"})
    if ("ipBlock" in peer) == bool(_SELECTORS & set(peer)):
        raise ValueError(f"{where} needs either ipBlock or namespaceSelector and podSelector, one of them or both")
    for name in _SELECTORS & set(peer):
        _check_selector(f"{where}.{name}", peer[name])
    if "ipBlock" in peer:
        _check_block(f"{where}.ipBlock", peer["ipBlock"])


def _check_selector(where: str, value: Any) -> None:
    selector = _object(where, value, {"matchLabels", "matchExpressions"})
    matched = selector.get("matchLabels", {})
    if not isinstance(matched, dict) or not all(_is_key(key) and _is_value(found) for key, found in matched.items()):
        raise ValueError(f"{where}.matchLabels holds something else than labels")
    expressions = selector.get("matchExpressions", [])
    if not isinstance(expressions, list):
        raise ValueError(f"{where}.matchExpressions is no list")
    for index, expression in enumerate(expressions):
        _check_expression(f"{where}.matchExpressions[{index}]", expression)


def _check_expression(where: str, value: Any) -> None:
    found = _object(where, value, {"key", "operator", "values"})
    values, operator = found.get("values", []), found.get("operator")
    if not _is_key(found.get("key")) or not isinstance(operator, str) or operator not in _OPERATORS:
        raise ValueError(f"{where} needs a label's key and operator, one of {', '.join(_OPERATORS)}")
    if not isinstance(values, list) or not all(map(_is_value, values)) or bool(values) != _OPERATORS[operator]:
        raise ValueError(f"{where}.values holds a label's values with In and NotIn, and nothing otherwise")


def _check_block(where: str, value: Any) -> None:
    block = _object(where, value, {"cidr", "except"})
    within = block.get("except", [])
    if not isinstance(within, list):
        raise ValueError(f"{where}.except is no list")
    try:
        whole, *parts = [_network(text) for text in (block.get("cidr"), *within)]
        inside = all(part.version == whole.version and part != whole and part.subnet_of(whole) for part in parts)  # type: ignore[arg-type]
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if not inside:
        raise ValueError(f"{where}.except lies outside of cidr")


def _network(value: Any) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """A network in the one form that the API server takes without complaint; Python reads netmasks and lone addresses, too."""
    network = ipaddress.ip_network(str(value))
    if isinstance(network, ipaddress.IPv6Network) and (
        network.network_address.scope_id is not None or network.network_address.ipv4_mapped is not None
    ):
        raise ValueError(f"{value!r} is no network of its own")
    if str(network) != value:
        raise ValueError(f"{value!r} is to be written {network}")
    return network


def _object(where: str, value: Any, known: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is no object")
    unknown = set(value) - known
    if unknown:
        raise ValueError(f"{where} has unknown fields: {', '.join(sorted(map(str, unknown)))}")
    return value


def _is_key(value: Any) -> bool:
    return isinstance(value, str) and _KEY.fullmatch(value) is not None


def _is_value(value: Any) -> bool:
    return isinstance(value, str) and _VALUE.fullmatch(value) is not None
