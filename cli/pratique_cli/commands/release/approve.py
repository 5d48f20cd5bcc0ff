"""``pratique release approve``: make the release that TrustFirst recorded the approved one.

It sets ``spec.release.fingerprint`` and nothing else, which restarts no pod. What is approved is what was shown: the patch holds only for
the generation of the service that was read, and the record is checked against the fingerprint the operator tells.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pratique_cli.commands.release.output import describe_manifest
from pratique_cli.errors import EXIT_NO, CliError
from pratique_cli.printing import note, say

if TYPE_CHECKING:
    from pratique_cli.kube import Cluster
    from pratique_contract.record import ReleaseRecord

ATTEMPTS_MAX: Final = 5


def approve(
    service: Annotated[str, typer.Argument(help="Name of the InferenceService.")],
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Default: the context's.")] = None,
    context: Annotated[str | None, typer.Option(help="Kubeconfig context.")] = None,
    fingerprint: Annotated[
        str | None, typer.Option(help="Approve only if this is what was recorded; asks nothing.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Approve whatever was recorded, without asking.")] = False,
) -> None:
    """Approve the release that a TrustFirst service recorded from its first pod. Restarts nothing. Ends with 1 when it is not approved."""
    from pratique_cli.kube import Cluster

    cluster = Cluster(context=context)
    where = namespace or cluster.namespace
    resource = cluster.get_service(service, where)
    found = read_recorded(resource)
    if found["approved"]:
        say(f"Release {found['fingerprint']} is approved already.")
        return
    record = read_kept_record(cluster, found, where)
    say(f"Service:     {where}/{service}\nRecorded in: ConfigMap {found['recordRef']}")
    say(describe_manifest(record.manifest), end="")
    if fingerprint is not None and fingerprint != record.fingerprint:
        say(f"Not approved: {fingerprint} was expected.")
        raise typer.Exit(EXIT_NO)
    if not yes and fingerprint is None and not typer.confirm(f"\nApprove release {record.fingerprint}?", default=False):
        say("Not approved.")
        raise typer.Exit(EXIT_NO)
    write_approval(cluster, resource, record.fingerprint)
    say(f"Approved release {record.fingerprint}.")
    note(f"Keep it in your manifest too:\n  spec:\n    release:\n      fingerprint: {record.fingerprint}")


def read_recorded(resource: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the operator says was recorded for this very spec; raises ``CliError`` saying why there is nothing."""
    release, status = resource["spec"].get("release") or {}, resource.get("status") or {}
    name = resource["metadata"]["name"]
    if release.get("recordRef") or release.get("policy") != "TrustFirst":
        raise CliError(
            f"{name} does not trust its first pod: it approves what spec.release.fingerprint names "
            "(pratique release stamp writes it)"
        )
    if status.get("observedGeneration") != resource["metadata"].get("generation"):
        raise CliError("The operator has not seen the newest spec yet; try again in a moment")
    recorded: Mapping[str, Any] | None = status.get("recorded")
    if recorded is None:
        raise CliError(
            "No pod was recorded yet for what is declared; "
            f"pratique status {name} -n {resource['metadata']['namespace']} says how far it is"
        )
    return recorded


def read_kept_record(cluster: "Cluster", recorded: Mapping[str, Any], namespace: str) -> "ReleaseRecord":
    """The record itself, which must be of the fingerprint that the status tells."""
    from pratique_contract.constants import RECORD_FILE
    from pratique_contract.record import RecordError, ReleaseRecord

    name = recorded["recordRef"]
    try:
        record = ReleaseRecord.from_json(cluster.get_config_map(name, namespace).get(RECORD_FILE, ""))
    except RecordError as error:
        raise CliError(f"ConfigMap {name}: {error}") from error
    if record.fingerprint != recorded["fingerprint"]:
        raise CliError(
            f"ConfigMap {name} holds release {record.fingerprint}, but {recorded['fingerprint']} was recorded; it was exchanged"
        )
    return record


def write_approval(cluster: "Cluster", resource: Mapping[str, Any], fingerprint: str) -> None:
    """Set the fingerprint on the very spec that was read. The status is written all the time, so only a changed *spec* ends it."""
    metadata = resource["metadata"]
    generation = metadata["generation"]
    for _ in range(ATTEMPTS_MAX):
        version = metadata["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "spec": {"release": {"fingerprint": fingerprint}}}
        if cluster.patch_service(metadata["name"], metadata["namespace"], body):
            return
        metadata = cluster.get_service(metadata["name"], metadata["namespace"])["metadata"]
        if metadata["generation"] != generation:
            raise CliError("The service was changed meanwhile; look at it again before you approve it")
    raise CliError("The service is written too often at the moment; try again")
