"""The API process reads its tokenizer without loading torch, and reads the same tokenizer."""

import json
import subprocess
import sys
from pathlib import Path

from pratique_server.text.tokenizer import Tokenizer

TEXT = "A lighthouse 🚢 in the harbour, Ένα πλοίο <|im_end|>"
SCRIPT = """
import json, sys
from pratique_server.serve import keep_torch_out
from pratique_server.text.tokenizer import Tokenizer
keep_torch_out()
tokenizer = Tokenizer.load(sys.argv[1])
loaded = [name for name in sys.modules if name.split(".")[0] == "torch" and sys.modules[name] is not None]
print(json.dumps([tokenizer.encode(sys.argv[2]), tokenizer.special_tokens, loaded]))
"""


def test_the_tokenizer_is_the_same_without_torch(tiny_model_dir: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tiny_model_dir), TEXT],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    expected = Tokenizer.load(tiny_model_dir)
    assert json.loads(result.stdout) == [expected.encode(TEXT), expected.special_tokens, []]
    assert result.stderr == ""
