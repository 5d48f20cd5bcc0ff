"""The Jinja environment a chat template runs in: the same dialect that ``transformers`` gives templates (trimmed blocks, loop
controls, ``tojson``, ``raise_exception``, generation blocks), minus everything that makes a rendering differ from
one run to the next (clock, random choice) and with a budget of time and size.
"""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

TICKS_PER_CLOCK_READ: Final = 64
SEQUENCE_LENGTH_MAX: Final = 4_000_000
EXPONENT_MAX: Final = 64
_TICK: Final = "pratique_tick"


class BudgetExceededError(jinja2.TemplateError):
    """The template used up its time or produced too much."""


class Budget:
    """Thread CPU time and output characters of one rendering. CPU time, not wall time: a busy host must not turn a good
    template into a refused request."""

    def __init__(self, *, seconds: float, characters: int) -> None:
        self._deadline = time.thread_time() + seconds
        self._characters_left = characters
        self._ticks = 0

    def tick(self) -> str:
        """Called once per loop iteration, from inside the template."""
        self._ticks += 1
        if self._ticks % TICKS_PER_CLOCK_READ == 0:
            self.check_time()
        return ""

    def check_time(self) -> None:
        if time.thread_time() > self._deadline:
            raise BudgetExceededError("The chat template took too long to render")

    def spend(self, characters: int) -> None:
        """Count output; raises when the cap is passed."""
        self.check_time()
        self._characters_left -= characters
        if self._characters_left < 0:
            raise BudgetExceededError("The chat template rendered more text than is allowed")


class _GenerationBlock(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` marks text for training masks; when serving it is plain text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_keep"), [], [], body).set_lineno(lineno)

    def _keep(self, caller: Callable[[], str]) -> str:
        return caller()


class _Environment(ImmutableSandboxedEnvironment):
    """Puts a tick at the head of every loop body, and bounds the operators that can build huge values in one step."""

    intercepted_binops = frozenset({"*", "**"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            tick = nodes.ExprStmt(nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None))
            loop.body.insert(0, tick.set_lineno(loop.lineno))
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (_is_small(left) and _is_small(right)):
            raise BudgetExceededError("The chat template computes a power that is too large")
        if operator == "*" and _product_length(left, right) > SEQUENCE_LENGTH_MAX:
            raise BudgetExceededError("The chat template builds a value that is too large")
        return super().call_binop(context, operator, left, right)


def _is_small(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= EXPONENT_MAX


def _product_length(left: Any, right: Any) -> int:
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, str | list | tuple) and isinstance(count, int):
            return len(sequence) * max(count, 0)
    return 0


class _Namespace(jinja2.utils.Namespace):
    """``namespace()`` without underscore names, which are the usual way out of a sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _refuse_private(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError("A chat template may not store names that start with an underscore on a namespace")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which models were not trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def make_environment() -> jinja2.Environment:
    """A fresh environment. ``strftime_now`` is left undefined on purpose: a template that tests for it takes its fixed
    branch, one that insists on the clock is refused, since its text could never be verified."""
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.filters.pop("random")
    environment.globals.pop("lipsum")
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["dict"] = _new_dict
    environment.globals["namespace"] = _Namespace
    return environment


def render_within(template: jinja2.Template, budget: Budget, variables: dict[str, Any]) -> str:
    """Render, counting output and time. The tick travels as a variable so that concurrent renderings do not share it."""
    return "".join(_counted(template.generate({**variables, _TICK: budget.tick}), budget))


def _counted(chunks: Iterator[str], budget: Budget) -> Iterator[str]:
    for chunk in chunks:
        budget.spend(len(chunk))
        yield chunk
