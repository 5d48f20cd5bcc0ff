"""Import what is large without the garbage collector: every entry point brings torch and transformers in through here.

They make half a million objects that live as long as the process. While they come in, the collector would walk what is there already
again and again, and free nothing: a second of processor time in each process that imports them. Afterwards every full collection would
walk them all (0.4 s in which nothing else happens, no token either), and the interpreter once more before it ends. So collection rests
while they are imported, and what is there then is never looked at again.

And transformers reads its thousand model files for the names in them: when it is imported, and once more for ``transformers.models``,
because the memory of what it has read is bounded to fewer folders than it has. The second time it is given the first one's answer.
"""

import gc
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

LIBRARY: Final = "transformers"
MODELS: Final = f"{LIBRARY}.models"


def import_large(*names: str) -> None:
    """Import the modules of these names; those that are there already cost nothing. Not for a module that loads a model: what a
    model leaves behind must be freed. ``MODELS`` goes before what brings transformers in."""
    missing = [name for name in names if name not in sys.modules]
    if not missing:
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for name in missing:
            if name == MODELS:
                _import_models()
            else:
                import_module(name)
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def _import_models() -> None:
    """Import ``MODELS`` with what the library has read of that folder just before; plainly with a version that does it otherwise."""
    folder = Path(str(import_module(LIBRARY).__file__)).parent / "models"
    utils: Any = import_module(f"{LIBRARY}.utils.import_utils")
    read: Any = getattr(utils, "create_import_structure_from_path", None)
    if read is None:
        import_module(MODELS)
        return
    known = read(folder)  # of the first reading it remembers this folder, the last one, and few of those within
    utils.create_import_structure_from_path = lambda path: known if Path(path) == folder / "__init__.py" else read(path)
    try:
        import_module(MODELS)
    finally:
        utils.create_import_structure_from_path = read
