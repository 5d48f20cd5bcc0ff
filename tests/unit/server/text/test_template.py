"""The chat template: the same text as ``transformers``, bounded, and never an internal error."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from pratique_contract import ServingSpec
from pratique_server.text import ChatTemplate, Renderer, TemplateError, Tokenizer, load_chat_template
from tests.support.models import CHATML
from tests.unit.server.scripted import byte_tokenizer, make_spec

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

BLOCKS = """{%- if tools %}
    {{- bos_token }}Tools:
    {%- for tool in tools %}
    {{ tool | tojson(indent=2) }}
    {%- endfor %}
{%- endif %}
{% set ns = namespace(count=0) %}
{% for message in messages %}
    {% if message.role == 'system' %}
        {% continue %}
    {% endif %}
    {% set ns.count = ns.count + 1 %}
    {% if message.role == 'assistant' %}
{% generation %}{{ message.content | trim }}{{ eos_token }}{% endgeneration %}
    {% else %}
[{{ message.role }} {{ loop.index }}/{{ loop.length }}]{{ message.content }}{{ message.tool_calls }}
    {% endif %}
    {% if ns.count > 6 %}
        {% break %}
    {% endif %}
{% endfor %}
{{ messages | map(attribute='content') | list | tojson }}{{ dict(a=1) | tojson }}
{%- if add_generation_prompt %}<|assistant|>{% endif %}
"""

REASONING = (
    "{% for m in messages %}{{ m.role }}:{% if m.reasoning_content is defined %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{{ m.name if m.name is defined }}\n{% endfor %}"
)

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"city": "Gênes <&>"}}}]


def user(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def assistant(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


CONVERSATIONS: list[list[dict[str, Any]]] = [
    [user("Hi")],
    [user("")],
    [{"role": "system", "content": ""}, user("Hi")],
    [{"role": "system", "content": "Be brief."}, user("Hi")],
    [user("one"), assistant(" two \n"), user("three")],
    [user("a\r\nb\tc"), assistant("d"), user("  leading and trailing  ")],
    [user("船が港に入る 🚢⚓ é <|im_end|> {{ bos_token }} {% raw %}")],
    [user("Hi", name="pilot"), assistant("x", reasoning_content="because")],
    [user("Hi"), assistant("x", thinking="hm"), user("y"), assistant("z", reasoning="why")],
    [user("Hi", tool_calls=None, name=None)],
    [user("q") if index % 2 == 0 else assistant("a") for index in range(15)],
]


@pytest.mark.parametrize("template", [CHATML, BLOCKS, REASONING], ids=["chatml", "blocks", "reasoning"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("prompt", [True, False], ids=["prompt", "bare"])
@pytest.mark.req("R27")
def test_renders_what_transformers_renders(template: str, tools: list[Any] | None, prompt: bool) -> None:
    for messages in CONVERSATIONS:
        # apply_chat_template drops null keys before it renders; this is the function underneath.
        cleaned = [{key: value for key, value in message.items() if value is not None} for message in messages]
        expected, _ = render_jinja_template(
            [cleaned], tools=tools, chat_template=template, add_generation_prompt=prompt, **SPECIAL
        )
        rendered = ChatTemplate(template).render(
            messages, tools=tools, add_generation_prompt=prompt, special_tokens=SPECIAL
        )
        assert rendered == expected[0]


@pytest.mark.req("R27", "R29")
def test_equals_apply_chat_template_of_the_real_tokenizer(tiny_model_dir: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(str(tiny_model_dir), local_files_only=True)
    template = load_chat_template(make_spec(model={"path": str(tiny_model_dir), "uri": "file:///m"}))
    renderer = Renderer(template, Tokenizer.load(tiny_model_dir))
    for messages in CONVERSATIONS:
        rendered = renderer.render(messages)
        assert rendered.text == reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert rendered.ids == reference.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]


@pytest.mark.parametrize(
    ("template", "part_of_message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content.nothing.more }}", "no attribute"),
        ("{{ messages[7].content }}", "no element 7"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages + 1 }}", "TypeError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% set ns = namespace(_x=1) %}", "underscore"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ strftime_now('%Y') }}", "cannot be verified"),
        ("{{ lipsum() }}", "undefined"),
        ("{{ 'a' * 10 ** 9 }}", "too large"),
        ("{{ 9 ** 9 ** 9 }}", "too large"),
        ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "more text"),
        ("{% for i in range(99999999) %}{% endfor %}", "OverflowError"),
    ],
)
@pytest.mark.req("R12")
def test_every_failure_of_a_template_is_a_template_error(template: str, part_of_message: str) -> None:
    """vllm#17119, vllm#54017, llama.cpp#11402: a template's exception became an internal error."""
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(template).render([user("Hi")])
    assert part_of_message in caught.value.message
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
        "{% set x = range(90000) %}{% for i in x %}{% for j in x %}{% endfor %}{% endfor %}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    ],
)
def test_rendering_has_a_time_limit(template: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(template).render([user("Hi")], seconds_max=0.05)


def test_a_huge_template_message_is_cut() -> None:
    with pytest.raises(TemplateError) as caught:
        ChatTemplate("{{ raise_exception(messages[0].content) }}").render([user("x" * 100_000)])
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("template", ["{% if %}", "{{ x", "{% unknown %}", "{{ [1, 2] | random }}", "half \ud800"])
def test_a_template_that_is_not_valid_is_refused_when_it_is_loaded(template: str) -> None:
    with pytest.raises(TemplateError, match="not valid"):
        ChatTemplate(template)


def test_a_template_that_tests_for_the_clock_takes_its_fixed_branch() -> None:
    template = ChatTemplate("{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}26 Jul 2024{% endif %}")
    assert template.reads_clock
    assert template.render([user("Hi")]) == "26 Jul 2024"


def test_knows_whether_a_template_reads_tools() -> None:
    assert ChatTemplate(BLOCKS).uses_tools
    assert not ChatTemplate(CHATML).uses_tools


def test_rendering_does_not_change_the_messages() -> None:
    messages = [user("Hi", name=None), assistant("x", thinking="hm")]
    before = json.dumps(messages)
    ChatTemplate(BLOCKS).render(messages, special_tokens=SPECIAL)
    assert json.dumps(messages) == before


def spec_of(folder: Path, **changes: Any) -> ServingSpec:
    return make_spec(model={"path": str(folder), "uri": "file:///m"}, **changes)


def write(folder: Path, *, jinja: str | None = None, config: Any = None) -> None:
    if jinja is not None:
        (folder / "chat_template.jinja").write_bytes(jinja.encode())
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": config}))


def test_the_declared_template_wins_over_the_file_over_the_tokenizer_configuration(tmp_path: Path) -> None:
    assert load_chat_template(spec_of(tmp_path)) is None
    write(tmp_path, config="from config")
    found = [load_chat_template(spec_of(tmp_path))]
    write(tmp_path, jinja="from file")
    found.append(load_chat_template(spec_of(tmp_path)))
    found.append(load_chat_template(spec_of(tmp_path, chat_template="declared")))
    assert [(t.text, t.origin) for t in found if t] == [
        ("from config", "tokenizer_config.json"),
        ("from file", "chat_template.jinja"),
        ("declared", "spec"),
    ]


def test_the_exact_characters_of_a_template_file_are_kept(tmp_path: Path) -> None:
    write(tmp_path, jinja="a\r\nb\n")
    template = load_chat_template(spec_of(tmp_path))
    assert template is not None
    assert template.text == "a\r\nb\n"


def test_the_default_of_several_named_templates_is_taken(tmp_path: Path) -> None:
    write(tmp_path, config=[{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}])
    template = load_chat_template(spec_of(tmp_path))
    assert template is not None
    assert template.text == "yes"


def test_an_unreadable_template_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(TemplateError, match=r"chat_template.jinja"):
        load_chat_template(spec_of(tmp_path))


def test_a_model_without_a_template_refuses_chat() -> None:
    with pytest.raises(TemplateError, match="no chat template"):
        Renderer(None, byte_tokenizer()).render([user("Hi")])
