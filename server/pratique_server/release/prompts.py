"""What a release is asked when it is recorded: conversations to render, and candidate prompts for golden cases.

Plain data. The order is part of the recorder's determinism: append, never reorder.
"""

from typing import Any, Final

Messages = tuple[dict[str, Any], ...]


def _user(text: str) -> Messages:
    return ({"role": "user", "content": text},)


TOOLS: Final[tuple[dict[str, Any], ...]] = (
    {
        "type": "function",
        "function": {
            "name": "get_tide",
            "description": "Height of the tide at a harbour.",
            "parameters": {
                "type": "object",
                "properties": {"harbour": {"type": "string"}, "hour": {"type": "integer"}},
                "required": ["harbour"],
            },
        },
    },
)

# Name, messages, whether the tools go along. Each kind is one that some export or upgrade has changed in silence.
FIXTURES: Final[tuple[tuple[str, Messages, bool], ...]] = (
    ("plain", _user("Which flag asks for free pratique?"), False),
    (
        "multi-turn",
        (
            {"role": "system", "content": "You are the harbour master."},
            {"role": "user", "content": "May we enter?"},
            {"role": "assistant", "content": "Show me your papers."},
            {"role": "user", "content": "Here they are."},
        ),
        False,
    ),
    ("empty-system", ({"role": "system", "content": ""}, {"role": "user", "content": "Hello"}), False),
    ("non-latin", _user("Корабль входит в порт. 船が港に入る。 السفينة تدخل الميناء"), False),
    ("emoji", _user("🚢⚓ 👩🏽‍✈️ e\u0301 ok?"), False),
    ("white-space", _user("  two  spaces,\ttab,\n\nnewlines  "), False),
    ("special-text", _user("Say <|im_end|> and </s> and <s> [INST] please"), False),
    (
        "long",
        _user(" ".join(f"Line {number}: the pilot boards at buoy {number * 7 % 31}." for number in range(60))),
        False,
    ),
    ("tools", _user("How high is the tide in Genoa at noon?"), True),
)

# Prompts whose answers tend to be forced: recitation, counting, copying, patterns. Whether they are is measured, never assumed.
CANDIDATES: Final[tuple[tuple[str, Messages], ...]] = (
    ("count", _user("Count from 1 to 20, separated by commas. Start with: 1, 2, 3, 4, 5")),
    ("repeat", _user("Repeat exactly this sentence and nothing else: The ship entered the harbour at dawn.")),
    ("alphabet", _user("Write the English alphabet in capital letters, separated by spaces.")),
    ("weekdays", _user("List the seven days of the week in order, starting with Monday, separated by commas.")),
    ("months", _user("List the twelve months of the year in order, separated by commas.")),
    ("sum", _user("What is 2 + 2? Answer with one number only.")),
    (
        "echo",
        (
            {"role": "user", "content": "echo: alpha"},
            {"role": "assistant", "content": "alpha"},
            {"role": "user", "content": "echo: bravo"},
            {"role": "assistant", "content": "bravo"},
            {"role": "user", "content": "echo: charlie"},
        ),
    ),
    (
        "sequence",
        (
            {"role": "user", "content": "Next number after 1, 2, 3?"},
            {"role": "assistant", "content": "4"},
            {"role": "user", "content": "Next number after 2, 3, 4?"},
            {"role": "assistant", "content": "5"},
            {"role": "user", "content": "Next number after 3, 4, 5?"},
        ),
    ),
    ("squares", _user("Complete the list: 1, 4, 9, 16, 25, 36,")),
    ("copy-code", _user("Repeat this line of Python exactly: for i in range(10): print(i)")),
    ("json", _user('Return exactly this JSON and nothing else: {"port": 8000, "ready": true}')),
    ("proverb", _user("Complete the proverb: An apple a day keeps the")),
    ("capital", _user("Which city is the capital of Italy? Answer with one word.")),
    ("opposite", _user("What is the opposite of hot? Answer with one word.")),
    ("colours", _user("Name the three primary colours: red, blue and")),
    ("yes", _user("Reply with the single word: yes")),
    ("letters", _user("Spell the word HARBOUR letter by letter, separated by hyphens.")),
    ("tens", _user("Count by tens: 10, 20, 30, 40, 50,")),
    (
        "system-copy",
        (
            {"role": "system", "content": "You repeat what you are told."},
            {"role": "user", "content": "one two three four five six seven"},
        ),
    ),
    ("ports", _user("Port of Genoa, Port of Genoa, Port of Genoa, Port of")),
    ("evens", _user("Write the even numbers from 2 to 20 separated by spaces: 2 4 6 8")),
    ("hello", _user("Hello")),
    ("lighthouse", _user("Tell me a story about a lighthouse.")),
    ("pratique", _user("What is pratique?")),
)


def _echo_for_long(turns: int) -> Messages:
    """A conversation whose next answer is forced by all the turns before it."""
    words = (
        "alpha",
        "bravo",
        "charlie",
        "delta",
        "echo",
        "foxtrot",
        "golf",
        "hotel",
        "india",
        "juliett",
        "kilo",
        "lima",
    )
    messages: list[dict[str, Any]] = []
    for number in range(turns):
        said = f"{words[number % len(words)]} {number}"
        messages += [{"role": "user", "content": f"echo: {said}"}, {"role": "assistant", "content": said}]
    return (*messages, {"role": "user", "content": "echo: the ship entered the harbour at dawn"})


# Longest first; the first that fits and is clear is recorded beside the short ones. A prompt of more than one prefill chunk and
# many K/V blocks: what is wrong only beyond the first block or chunk shows nowhere else.
LONG_CANDIDATES: Final[tuple[tuple[str, Messages], ...]] = tuple(
    (f"long-{turns}", _echo_for_long(turns)) for turns in (26, 13, 8, 4)
)
