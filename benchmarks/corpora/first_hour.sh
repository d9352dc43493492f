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

# print_end LINES: the last lines of what was said; the checkout's and the folder's paths are shortened
print_end() {
    sed "/^WARNING: Location/d; s|$source|npukit|g; s|$work/||g" said > shown # pip's warnings about its own configuration
    [ "$(wc -l < shown)" -le "$1" ] || echo "…"
    tail -n "$1" shown
}

# show COMMAND [LINES]: the command, the last lines that it prints, its exit code and time
show() {
    progress "$1"
    printf '$ %s\n' "${1//$source/npukit}"
    local began=$EPOCHREALTIME code
    bash -c "$1" > said 2>&1
    code=$?
    print_end "${2:-30}"
    printf '[exit code %s, %.1f s]\n' "$code" "$(seconds_since "$began")"
}

fence() { printf '\n```\n'; }

cp -r "$source/examples/cuda_project" my_project
load=$(cut -d' ' -f1 /proc/loadavg)
cat << TEXT
# The first hour

The first commands of a new user, with their output (… where it is shortened), exit codes and times: install, port a project, fine-tune a model, use it, explain an error. Recorded by \`python -m benchmarks first_hour\` on $(date +%Y-%m-%d), from an empty virtual environment and an empty cache, on $(nproc --all) $(uname -m) cores without an NPU. The load was $load at the start, so an idle machine is faster. Nothing was run on a card.

## Install
TEXT
fence
show "python3 -m venv .venv"
show "pip install -q $source"
printf '```\n\n## Port a project\n\n`my_project` is a copy of `examples/cuda_project`, which is written for CUDA. `analyze` and `migrate` need no torch:\n'
fence
show "npukit analyze my_project" 10
show "npukit migrate my_project --output migrated"
show "npukit verify my_project migrated -- python train.py --steps 5"
printf '```\n\n`verify` runs the project, which takes torch and a simulated NPU. The first use of a simulated NPU downloads torch_npu and compiles the rest; `npukit sim setup` does that ahead of time.\n'
fence
show "pip install -q torch==2.13.0"
show "pip install -q '$source[train]'"
show "npukit sim setup" 2
show "npukit verify my_project migrated -- python train.py --steps 5" 16
printf '```\n\n## Fine-tune a model\n\nA tiny model with random weights and 400 made-up rows, so that nothing is downloaded:\n'
fence
show "npukit run --device cpu $source/examples/finetune/make.py model_and_rows"
show "npukit init --model model_and_rows/model --data model_and_rows/data/cards.jsonl"
printf '```\n\nTrain, and interrupt it with Ctrl-C:\n'
stop='npukit train train.yaml --device sim training.log_every=5 & until grep -qs "\"step\": 5" output/model/log.jsonl; do sleep 1; done; kill -INT -$!; wait $!' # the whole group, as a terminal does
progress "train and stop"
fence
printf '$ npukit train train.yaml --device sim\n'
began=$EPOCHREALTIME
bash -c "set -m; $stop" > said 2>&1
code=$?
print_end 15
printf '[exit code %s, %.1f s]\n```\n\nThe same command resumes:\n' "$code" "$(seconds_since "$began")"
fence
show "npukit train train.yaml --device sim" 14
printf '```\n\n## Use it\n\nA model this small knows nothing, so its answer is noise:\n'
fence
show "echo 'How much memory does a 910B3 have?' | npukit chat output/model --device sim --max-new-tokens 12"
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
printf '```\n\n## Explain an error\n\nA script on two simulated NPUs, with a fault on the second one:\n'
fence
show "npukit run --device sim --devices 2 --fault acl=507015@30,rank=1 two.py > all.log 2>&1"
show "npukit explain all.log"
printf '```\n'
