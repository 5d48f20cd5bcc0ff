"""Lists that are kept between passes: asked again whenever they may be others by now, and only then."""

from collections.abc import Callable
from typing import Any

import pytest

from pratique_operator import kinds
from pratique_operator.cluster import Cluster
from pratique_operator.errors import ConflictError
from pratique_operator.kinds import Kind
from pratique_operator.remembered import KEPT, RememberedLists

Manifest = dict[str, Any]
SELECTOR = "service=svc"


class Server(Cluster):
    """Answers each list with another object, writes with ``error`` where there is one; ``meanwhile`` happens while it lists."""

    def __init__(self) -> None:
        self.asked: list[tuple[Kind, str | None, str]] = []
        self.error: Exception | None = None
        self.meanwhile: Callable[[], None] = lambda: None
        self.text = ""

    def list(self, kind: Kind, namespace: str | None, selector: str = "", *, fields: str = "") -> list[Manifest]:
        self.asked.append((kind, namespace, selector))
        self.meanwhile()
        return [{"metadata": {"name": f"object-{len(self.asked)}"}, "data": {"text": self.text}}]

    def _write(self, *_: Any, **__: Any) -> Any:
        if self.error is not None:
            raise self.error
        return {"metadata": {"name": "written"}}

    get = version = create = apply = patch = delete = read_pod = close = _write


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lists(server: Server, clock: Clock) -> RememberedLists:
    return RememberedLists(server, seconds=60, now=clock)


def ask(lists: RememberedLists, kind: Kind = kinds.SERVICE, namespace: str = "a", selector: str = SELECTOR) -> str:
    (found,) = lists.list(kind, namespace, selector)
    return str(found["metadata"]["name"])


@pytest.mark.parametrize("kind", sorted(KEPT, key=str), ids=str)
def test_a_list_is_asked_for_once(lists: RememberedLists, server: Server, kind: Kind) -> None:
    assert ask(lists, kind) == ask(lists, kind) == "object-1"
    assert ask(lists, kind, selector="service=other") == "object-2"
    assert ask(lists, kind, namespace="b") == "object-3"
    assert len(server.asked) == 3


@pytest.mark.parametrize("kind", [kinds.POD, kinds.DEPLOYMENT, kinds.ENDPOINT_SLICE, kinds.EVENT])
def test_what_decides_in_each_pass_is_never_kept(lists: RememberedLists, kind: Kind) -> None:
    assert ask(lists, kind) != ask(lists, kind)


def test_other_questions_are_never_kept(lists: RememberedLists) -> None:
    assert lists.list(kinds.SERVICE, None) != lists.list(kinds.SERVICE, None)
    fields = "metadata.name=x"
    assert lists.list(kinds.SERVICE, "a", fields=fields) != lists.list(kinds.SERVICE, "a", fields=fields)


def test_a_change_that_is_told_of_makes_it_ask_again(lists: RememberedLists) -> None:
    first = ask(lists)
    other_kind, other_namespace = ask(lists, kinds.CONFIG_MAP), ask(lists, namespace="b")
    lists.changed(kinds.SERVICE, "a")
    assert ask(lists) != first
    assert (ask(lists, kinds.CONFIG_MAP), ask(lists, namespace="b")) == (other_kind, other_namespace)


def test_labels_that_move_an_object_to_another_service_change_both_lists(lists: RememberedLists) -> None:
    first, second = ask(lists), ask(lists, selector="service=other")
    lists.changed(kinds.SERVICE, "a")
    assert ask(lists) != first
    assert ask(lists, selector="service=other") != second


WRITES = {
    "create": lambda lists: lists.create(kinds.SERVICE, "a", {}),
    "apply": lambda lists: lists.apply(kinds.SERVICE, "a", {}),
    "patch": lambda lists: lists.patch(kinds.SERVICE, "a", "x", {}),
    "delete": lambda lists: lists.delete(kinds.SERVICE, "a", "x", uid="u"),
}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_of_our_own_makes_it_ask_again(
    lists: RememberedLists, server: Server, write: Any, *, fails: bool
) -> None:
    """A failed one, too: it met something that the list does not hold, or was carried out without our hearing of it."""
    first, other = ask(lists), ask(lists, kinds.CONFIG_MAP)
    if fails:
        server.error = ConflictError(409, "it is another one")
        with pytest.raises(ConflictError):
            write(lists)
    else:
        write(lists)
    assert ask(lists) != first
    assert ask(lists, kinds.CONFIG_MAP) == other


def test_a_change_while_it_is_asked_for_may_not_be_in_the_answer(lists: RememberedLists, server: Server) -> None:
    server.meanwhile = lambda: lists.changed(kinds.SERVICE, "a")
    assert ask(lists) == "object-1"
    server.meanwhile = lambda: None
    assert ask(lists) == ask(lists) == "object-2"


def test_what_no_watch_told_of_is_found_by_age(lists: RememberedLists, server: Server, clock: Clock) -> None:
    def slow() -> None:
        clock.seconds += 5

    server.meanwhile = slow
    assert ask(lists) == "object-1"
    clock.seconds = 59.9
    assert ask(lists) == "object-1"
    clock.seconds = 60.0  # of age since it was asked for, not since it was answered
    assert ask(lists) == "object-2"


def test_an_answer_that_is_altered_by_whoever_asked_stays_whole(lists: RememberedLists) -> None:
    lists.list(kinds.SERVICE, "a", SELECTOR).clear()
    assert ask(lists) == "object-1"


def test_the_oldest_go_when_it_is_too_much(server: Server, clock: Clock) -> None:
    lists = RememberedLists(server, seconds=60, characters_max=50_000, now=clock)
    server.text = "x" * 15_000
    kept = {name: ask(lists, kinds.CONFIG_MAP, selector=name) for name in ("first", "second", "third")}
    assert ask(lists, kinds.CONFIG_MAP, selector="third") == kept["third"]
    assert ask(lists, kinds.CONFIG_MAP, selector="second") == kept["second"]
    assert ask(lists, kinds.CONFIG_MAP, selector="first") != kept["first"]
    server.text = "x" * 60_000
    assert ask(lists, kinds.CONFIG_MAP, selector="huge") != ask(lists, kinds.CONFIG_MAP, selector="huge")
