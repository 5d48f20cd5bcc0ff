"""What an observed child lacks of its intent, and what it has beyond it that may not be there. Pure.

Server-side apply puts back the fields we set; what another manager added beside them it leaves: a key more in a Service's selector takes
every pod out of it, a variable more in a pod template loads other code. Where that decides who gets traffic or what a pod runs,
``find_excess`` names it, as the merge patch that takes it out. Elsewhere (annotations, labels of the object, finalizers, what the API
server or a webhook fills in) whatever others add is theirs.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pratique_operator import kinds
from pratique_operator.api.schema import quantity_value

Manifest = dict[str, Any]
Path = tuple[str, ...]

# Plain booleans of the API, which Go leaves out when they are false; those that are pointers stand there as false.
_LEFT_OUT_WHEN_FALSE: Final = frozenset({"publishNotReadyAddresses"})

_POD: Final = ("spec", "template", "spec")
_CONTAINERS: Final = ("initContainers", "containers")

_CONTAINER_EXACT: Final = ("env", "securityContext", "lifecycle", "volumeMounts", "ports")

# Nothing but the intent, at any depth ("*": each item of a list). The API server fills in nothing there.
_EXACT: Final[Mapping[str, frozenset[Path]]] = {
    kinds.SERVICE.kind: frozenset({("spec", "selector")}),
    kinds.POD_DISRUPTION_BUDGET.kind: frozenset({("spec", "selector")}),
    kinds.NETWORK_POLICY.kind: frozenset({("spec",)}),
    kinds.DEPLOYMENT.kind: frozenset(
        {
            ("spec", "template", "metadata", "labels"),
            (*_POD, "securityContext"),
            *((*_POD, list_, "*", field) for list_ in _CONTAINERS for field in _CONTAINER_EXACT),
        }
    ),
}
# No key beside those of the intent, and further down what the API server fills in: a volume has one source.
_ONE_OF: Final[Mapping[str, frozenset[Path]]] = {kinds.DEPLOYMENT.kind: frozenset({(*_POD, "volumes", "*")})}
_CONTAINER: Final = frozenset({"command", "envFrom", "lifecycle", "restartPolicy", "volumeDevices", "workingDir"})
_PROBES: Final = ("startupProbe", "readinessProbe", "livenessProbe")
_PROBE: Final = frozenset({"exec", "grpc", "httpGet", "tcpSocket", "terminationGracePeriodSeconds"})
# What the API server fills in there (modes, schemes, periods) may stay, so these name what may not.
_VOLUMES: Final[Mapping[str, frozenset[str]]] = {
    "configMap": frozenset({"items", "optional"}),
    "secret": frozenset({"items", "optional"}),
    "emptyDir": frozenset({"medium", "sizeLimit"}),
    "persistentVolumeClaim": frozenset({"readOnly"}),
}
# Not there unless the intent says it: what sends traffic elsewhere, what keeps the API server from taking our own fields, or makes other
# pods of the same template. The host name is there
# because each pod has its own, by which the lock of a shared cache tells them apart.
_ABSENT: Final[Mapping[str, Mapping[Path, frozenset[str]]]] = {
    kinds.SERVICE.kind: {("spec",): frozenset({"externalIPs", "externalName", "loadBalancerSourceRanges"})},
    kinds.POD_DISRUPTION_BUDGET.kind: {("spec",): frozenset({"minAvailable"})},
    kinds.DEPLOYMENT.kind: {
        # What is put back into its template would reach no pod.
        ("spec",): frozenset({"paused"}),
        _POD: frozenset(
            {
                *("initContainers", "hostNetwork", "hostPID", "hostIPC", "hostAliases", "hostname"),
                *("readinessGates", "shareProcessNamespace"),
            }
        ),
        **{(*_POD, list_, "*"): _CONTAINER for list_ in _CONTAINERS},
        **{(*_POD, "containers", "*", probe): _PROBE for probe in _PROBES},
        **{(*_POD, "containers", "*", probe, "httpGet"): frozenset({"host", "httpHeaders"}) for probe in _PROBES},
        **{(*_POD, "volumes", "*", source): fields for source, fields in _VOLUMES.items()},
    },
}
_NOTHING: Final = object()


def contains(observed: Any, intent: Any) -> bool:
    """Whether the observed value holds all of the intent. Fields the API server added do not count; lists must match in length;
    quantities compare by value (the server writes 1000m as 1), and what the server leaves out is false."""
    if isinstance(intent, Mapping):
        return isinstance(observed, Mapping) and all(
            contains(observed[key], value) if key in observed else key in _LEFT_OUT_WHEN_FALSE and value is False
            for key, value in intent.items()
        )
    if isinstance(intent, list | tuple):
        return (
            isinstance(observed, list)
            and len(observed) == len(intent)
            and all(contains(o, i) for o, i in zip(observed, intent, strict=True))
        )
    return bool(observed == intent) or _same_quantity(observed, intent)


def _same_quantity(observed: Any, intent: Any) -> bool:
    if not isinstance(observed, str) or not isinstance(intent, str):
        return False
    value = quantity_value(intent)
    return value is not None and value == quantity_value(observed)


def find_excess(observed: Manifest, intent: Manifest) -> Manifest:
    """The JSON merge patch that takes out what may not be there beside the intent: null for a key, the whole list of the intent where
    the observed one has other items. Empty when there is nothing of the kind. ``intent`` names its kind."""
    found = _excess(observed, intent, intent["kind"], (), exact=False)
    return {} if found is _NOTHING else dict(found)


def _excess(observed: Any, intent: Any, kind: str, path: Path, *, exact: bool) -> Any:
    exact = exact or path in _EXACT.get(kind, ())
    if isinstance(observed, Mapping) and isinstance(intent, Mapping):
        alone = exact or path in _ONE_OF.get(kind, ())
        unwanted = _ABSENT.get(kind, {}).get(path, frozenset())
        patch: Manifest = {key: None for key in observed if key not in intent and (alone or key in unwanted)}
        for key in intent:
            inner = _excess(observed.get(key), intent[key], kind, (*path, key), exact=exact)
            if inner is not _NOTHING:
                patch[key] = inner
        return patch or _NOTHING
    if isinstance(observed, list) and isinstance(intent, list | tuple):
        same = len(observed) == len(intent) and all(
            _excess(o, i, kind, (*path, "*"), exact=exact) is _NOTHING for o, i in zip(observed, intent, strict=True)
        )
        return _NOTHING if same else list(intent)
    return _NOTHING


def name_fields(patch: Manifest, prefix: str = "") -> Iterator[str]:
    """The fields a merge patch changes, as dotted paths."""
    for key, value in patch.items():
        if isinstance(value, dict) and value:
            yield from name_fields(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"
