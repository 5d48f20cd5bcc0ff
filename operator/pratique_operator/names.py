"""Every name the operator gives, and nothing else gives names. ``{service}`` is the entry; ``{service}-{revision}`` belongs to one
revision. A service's name has at most 50 characters (CEL), a revision 10, so all fit in a DNS label."""

from typing import Final

from pratique_contract import constants
from pratique_contract.canonical import short_digest

REVISION_DIGITS: Final = 10

CONTAINER: Final = "server"
FETCHER: Final = "fetch"
ENTRY_PORT: Final = 80

VOLUME_CONFIG: Final = "config"
VOLUME_TMP: Final = "tmp"
VOLUME_MODEL: Final = "model"
VOLUME_TOKENIZER: Final = "tokenizer"
VOLUME_TEMPLATE: Final = "chat-template"
VOLUME_KEYS: Final = "api-keys"
VOLUME_CACHE: Final = "cache"
VOLUME_CREDENTIALS: Final = "credentials"
VOLUME_FETCH_TMP: Final = "fetch-tmp"

VOLUME_RECORDED: Final = "recorded"

TEMPLATE_DIR: Final = "/etc/pratique-template"
KEYS_DIR: Final = "/etc/pratique-keys"

# When a revision first had ready endpoints behind the entry Service (RFC 3339); absent: it never served.
ANNOTATION_SERVED_AT: Final = f"{constants.GROUP}/served-at"

# On a recorded ConfigMap and on Deployments under TrustFirst: the digest of the declared release.
ANNOTATION_DECLARED: Final = f"{constants.GROUP}/declared-release"
# The same as a label, cut to what a label's value may hold.
LABEL_DECLARED: Final = f"{constants.GROUP}/declared-release"
LABEL_DECLARED_DIGITS: Final = 32
# On a Deployment: the fingerprint that was recorded for it, and whether somebody approved it. Remembered apart from the record's
# ConfigMap, so that its loss is not taken for "nothing was recorded yet".
ANNOTATION_RECORDED: Final = f"{constants.GROUP}/recorded-fingerprint"
# On a recorded ConfigMap: the fingerprint its first pod had been handed.
ANNOTATION_PINNED: Final = f"{constants.GROUP}/pinned-fingerprint"
ANNOTATION_APPROVED: Final = f"{constants.GROUP}/approved"


def revision_child(service: str, revision: str) -> str:
    """Name of the Deployment, Service and ConfigMap of one revision."""
    return f"{service}-{revision}"


def adapter_volume(adapter: str) -> str:
    """Name of the volume of an adapter that is mounted, and of its folder beside the model's."""
    return f"adapter-{adapter}"


def user_volume(name: str) -> str:
    """Name in the pod of a volume that the spec brings: never one of the operator's own."""
    return f"user-{name}"


def recorded(service: str, declared: str) -> str:
    """Name of the ConfigMap that keeps the record of a declared release: one per declaration, so it can only be created once."""
    return f"{service}-recorded-{short_digest(declared, length=REVISION_DIGITS)}"


def entry(service: str) -> str:
    """Name of the entry Service, the PodDisruptionBudget, the NetworkPolicy and the ServiceAccount."""
    return service


def url(service: str, namespace: str) -> str:
    """Where clients inside the cluster find the API."""
    return f"http://{entry(service)}.{namespace}.svc"
