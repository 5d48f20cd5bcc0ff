"""Labels and selectors of the children."""

from pratique_contract import constants
from pratique_contract.canonical import short_digest
from pratique_operator import names

Labels = dict[str, str]


def service_labels(service: str) -> Labels:
    """Labels of every child of a service."""
    return {
        constants.LABEL_NAME: "pratique",
        constants.LABEL_INSTANCE: service,
        constants.LABEL_MANAGED_BY: constants.MANAGED_BY,
        constants.LABEL_SERVICE: service,
    }


def revision_labels(service: str, revision: str) -> Labels:
    """Labels of the children and pods of one revision."""
    return {**service_labels(service), constants.LABEL_REVISION: revision}


def declared_label(declared: str) -> Labels:
    """The declared release, cut to what a label may hold."""
    return {names.LABEL_DECLARED: short_digest(declared, length=names.LABEL_DECLARED_DIGITS)}


def service_selector(service: str) -> Labels:
    """Selects everything of a service, whatever its revision."""
    return {constants.LABEL_SERVICE: service}


def revision_selector(service: str, revision: str) -> Labels:
    """Selects the pods of one revision."""
    return {constants.LABEL_SERVICE: service, constants.LABEL_REVISION: revision}


def selector_text(selector: Labels) -> str:
    """The selector as the API's query parameter."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))


MANAGED_SELECTOR = selector_text({constants.LABEL_MANAGED_BY: constants.MANAGED_BY})


def owner_selector(operator_name: str) -> str:
    """Selects the services that an operator of this name looks after."""
    return f"{constants.LABEL_OPERATOR}={operator_name}" if operator_name else f"!{constants.LABEL_OPERATOR}"
