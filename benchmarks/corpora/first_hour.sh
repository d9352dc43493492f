#!/usr/bin/env bash
# Record benchmarks/results/first-hour.md: what a new user meets, from an empty virtual environment and an empty cache on.
#
#     python -m benchmarks first_hour > benchmarks/results/first-hour.md
#
# Took four minutes on two quiet cores, and three quarters of an hour with a load of 18. Everything it makes is in a folder under /tmp, which it removes.
set -uo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d /tmp/first-hour.XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export NPUKIT_CACHE=$work/cache PIP_DISABLE_PIP_VERSION_CHECK=1 OMP_NUM_THREADS=1
export PATH=$work/.venv/bin:$PATH
seconds_since() { awk -v began="$1" -v now="$EPOCHREALTIME" 'BEGIN { print now - began }'; }
progress() { echo "first_hour: $*" >&2; }

# show COMMAND: the command, what it prints (paths of the checkout shortened), its exit code and time
show() {
    progress "$1"
    printf '$ %s\n' "${1//$source/npukit}"
    local began=$EPOCHREALTIME code
    bash -c "$1" > said 2>&1
    code=$?
    sed "/^WARNING: Location/d; s|$source|npukit|g; s|$work/||g" said # pip's warnings about its own configuration
    printf '[exit code %s, %.1f s]\n' "$code" "$(seconds_since "$began")"
}

block() { printf '\n```\n'; for each in "$@"; do show "$each"; [ "$each" = "${!#}" ] || echo; done; printf '```\n'; }

cp -r "$source/examples/cuda_project" my_project
load=$(cut -d' ' -f1 /proc/loadavg)
cat << TEXT
# The first hour

What a new user meets: the commands, their output, exit codes and times, recorded by \`python -m benchmarks first_hour\` on $(date +%Y-%m-%d), starting with an empty virtual environment and an empty cache. The machine has $(nproc --all) $(uname -m) cores and no NPU; its load was $load when the recording began, so an idle machine is faster. Nothing here was run on a card.

## Install
TEXT
block "python3 -m venv .venv" "pip install -q $source" "npukit --version"
printf '\n## Port a project\n\n`my_project` is a copy of `examples/cuda_project`, which is written for CUDA. No torch is needed to analyse and migrate it:\n'
block "npukit doctor" "npukit analyze my_project" "npukit migrate my_project --diff" "npukit migrate my_project --output migrated" \
    "npukit verify my_project migrated -- python train.py --steps 5"
printf '\nTo run it takes torch, and what the last sentence says. The first use of a simulated NPU downloads torch_npu and compiles the rest; `npukit sim setup` does that ahead of time.\n'
block "pip install -q torch==2.13.0" "pip install -q '$source[train]'" "npukit sim setup" \
    "npukit verify my_project migrated -- python train.py --steps 5"
printf '\n## Fine-tune a model\n\nThe model is a tiny one with random weights and its 400 rows are made up, so that nothing is downloaded.\n'
block "npukit run --device cpu $source/examples/finetune/make.py model_and_rows" \
    "npukit init --model model_and_rows/model --data model_and_rows/data/cards.jsonl"
printf '\nThe file that it wrote:\n\n```yaml\n'
cat train.yaml
printf '```\n\nTrain, and stop it on the way, as Ctrl-C does (`kill -INT`):\n'
stop='npukit train train.yaml --device sim training.log_every=5 & until grep -qs "\"step\": 5" output/model/log.jsonl; do sleep 1; done; kill -INT -$!; wait $!' # the whole group, as a terminal does
progress "train and stop"
printf '\n```\n$ npukit train train.yaml --device sim training.log_every=5\n'
began=$EPOCHREALTIME
bash -c "set -m; $stop" > said 2>&1
code=$?
sed "s|$work/||g" said
printf '[exit code %s, %.1f s]\n```\n\nThe same command resumes:\n' "$code" "$(seconds_since "$began")"
block "npukit train train.yaml --device sim training.log_every=20"
printf '\n## Use it\n'
block "echo 'How much memory does a 910B3 have?' | npukit chat output/model --device sim --max-new-tokens 12" \
    "npukit sft --model model_and_rows/model --dataset model_and_rows/data/cards.jsonl --max_steps 3 --output_dir swift --device sim"
cat > two.py << 'PYTHON'
import os
import torch
import torch.distributed as dist

torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("hccl")
x = torch.ones(64, 64, device="npu")
for step in range(20):
    x = (x @ x).tanh()
    dist.all_reduce(x)
torch.npu.synchronize()
PYTHON
printf '\n## Explain an error\n\nA script on two simulated NPUs, with a fault on the second one:\n'
block "npukit run --device sim --devices 2 --fault acl=507015@30,rank=1 two.py > all.log 2>&1" "npukit explain all.log"
