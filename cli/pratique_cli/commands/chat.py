"""``pratique chat``: talk to a service in the cluster, or to a URL; the answer streams to the terminal."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from pratique_cli.errors import EXIT_USAGE, CliError
from pratique_cli.printing import is_read, note, plain

if TYPE_CHECKING:
    from pratique_cli.chat_client import ChatClient, Message, SocketTarget


def chat(
    service: Annotated[str | None, typer.Argument(help="Name of the InferenceService. Left out with --url.")] = None,
    message: Annotated[
        str | None, typer.Argument(help="What to say. Default: a conversation on the terminal, until Ctrl-D.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Base URL of a server instead of a service in the cluster.")] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Default: the context's.")] = None,
    context: Annotated[str | None, typer.Option(help="Kubeconfig context.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of an answer.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="PRATIQUE_API_KEY", show_envvar=True, help="Key for the API.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the answer.")] = False,
) -> None:
    """Say something to a verified pod and stream the answer."""
    from pratique_cli.chat_client import ChatClient, Target

    if url is not None and message is None:
        service, message = None, service
    if (service is None) == (url is None):
        raise CliError("Give either a service or --url", code=EXIT_USAGE)
    target = Target(url) if url is not None else _service_target(str(service), namespace, context)
    client = ChatClient(target, api_key=api_key)
    options: dict[str, object] = {}
    if max_tokens is not None:
        options["max_tokens"] = max_tokens
    if temperature is not None:
        options["temperature"] = temperature
    options["model"] = client.first_model()
    history: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    if message is not None:
        _answer(client, [*history, {"role": "user", "content": message}], options, quiet=quiet)
        return
    _converse(client, history, options, quiet=quiet)


def _service_target(service: str, namespace: str | None, context: str | None) -> "SocketTarget":
    from pratique_cli.chat_client import SocketTarget
    from pratique_cli.kube import Cluster

    cluster = Cluster(context=context)
    where = namespace or cluster.namespace
    pod, port = cluster.ready_pod(service, where)
    return SocketTarget(f"pod {where}/{pod}", lambda: cluster.connect(pod, port, where))


def _converse(client: "ChatClient", history: "list[Message]", options: dict[str, object], *, quiet: bool) -> None:
    """Read lines until the end of the input; each is answered with what was said before in mind."""
    is_person = sys.stdin.isatty()
    while True:
        if is_person:
            print("> ", end="", flush=True, file=sys.stderr)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            history.append({"role": "user", "content": line.rstrip("\n")})
            history.append({"role": "assistant", "content": _answer(client, history, options, quiet=quiet)})


def _answer(client: "ChatClient", messages: "list[Message]", options: dict[str, object], *, quiet: bool) -> str:
    pieces = []
    for piece in client.stream(messages, **options):
        pieces.append(piece)
        print(plain(piece), end="", flush=True)
        if not is_read():  # nobody wants the rest, and it costs the server's time
            raise typer.Exit
    print(flush=True)
    if not quiet:
        note(_footer(client))
    return "".join(pieces)


def _footer(client: "ChatClient") -> str:
    summary = client.summary
    first = f", first text after {summary.first_text_ms:.0f} ms" if summary.first_text_ms is not None else ""
    total = f" in {summary.total_ms / 1000:.1f} s" if summary.total_ms is not None else ""
    return f"[{summary.completion_tokens} tokens{total}{first}, {summary.finish_reason}; release {summary.fingerprint}]"
