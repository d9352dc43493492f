#!/usr/bin/env bash
# Set up torch, npukit and the simulated NPU in the Python of a CI job; action.yml runs it, and so can any other CI.
#   NPUKIT_TORCH   version of torch to install; empty: the installed one
#   NPUKIT_FROM    what pip installs as npukit; empty: the checkout that this script belongs to
#   PYTHON         the Python to use (python)
set -euo pipefail

python=${PYTHON:-python}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
pip=("$python" -m pip install -qq --disable-pip-version-check)

if [ -n "${NPUKIT_TORCH:-}" ]; then
    # PyPI's torch for x86_64 is a CUDA build of gigabytes; PyTorch's own index has one for CPUs.
    "${pip[@]}" --extra-index-url "${NPUKIT_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}" "torch==$NPUKIT_TORCH"
fi
"${pip[@]}" numpy pytest "${NPUKIT_FROM:-$here}"
"$python" -m npukit sim setup
