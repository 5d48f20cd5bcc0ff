"""Names of objects in the cluster, looked at before they get into a path or a manifest."""

import re
from typing import Final

from pratique_cli.errors import EXIT_USAGE, CliError
from pratique_cli.printing import plain

_NAME: Final = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")


def require_names(**given: str) -> None:
    """Raise ``CliError`` for a text that no object can have as its name: an empty one, or dots, would ask for something else."""
    for what, name in given.items():
        if not _NAME.fullmatch(name):
            raise CliError(f"No {what} can have the name {plain(name)!r}", code=EXIT_USAGE)


def check_map_name(name: str | None) -> str | None:
    """For an option that names a ConfigMap."""
    if name is not None:
        require_names(ConfigMap=name)
    return name
