"""Let torchvision be imported beside PyTorch's CPU build: `python -m harness.serving.torchvision_beside_cpu`.

Called by set-up. The wheel that package indexes have was compiled against CUDA, so that its operators (nms, roi_align
and the like) cannot load here. That alone does no harm, but it then describes each of them to PyTorch, which refuses
descriptions of operators that nobody defined, and the import fails. With the descriptions taken out it succeeds; image
transforms, all that processors of images use, are plain PyTorch. Where the operators load nothing is changed.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

from harness.errors import UserError, run_command
from harness.files import replacing

DESCRIPTIONS = "_meta_registrations.py"
EMPTY = '"""Left empty by Specproof\'s set-up: the operators that stood here are not in PyTorch\'s CPU build."""\n'


def _imports() -> bool:
    """Whether a fresh interpreter can import it; PyTorch keeps what a failed import defined."""
    command = [sys.executable, "-W", "ignore", "-c", "import torchvision.transforms.v2"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def mend(folder: Path) -> str:
    """Make the package in `folder` importable; says what was done.

    Raises:
        UserError: it is another fault than the known one.
    """
    if _imports():
        return "torchvision imports"
    with replacing(folder / DESCRIPTIONS) as partial:
        partial.write_text(EMPTY)
    if not _imports():
        raise UserError(f"{folder}: cannot be imported beside this PyTorch. Fix: install the versions of requirements/")
    return "torchvision imports, without its compiled operators"


def main() -> None:
    """Mend the running Python's torchvision, if it has one."""
    found = importlib.util.find_spec("torchvision")
    if found is None or not found.submodule_search_locations:
        raise UserError("torchvision: not installed. Fix: make setup")
    print(mend(Path(found.submodule_search_locations[0])))


if __name__ == "__main__":
    run_command(main)
