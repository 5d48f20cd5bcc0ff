from pathlib import Path
from e2e.cluster.lifecycle import Context
def build_and_load(context: Context, *, output: Path | None = None) -> None:
    raise NotImplementedError
