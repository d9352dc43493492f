#!/usr/bin/env bash
# A second user lies in wait in the shared folders while npukit works: what could they change, what is left behind?
# Run as root, which can act as both: sudo python -m benchmarks two_users. Fails if the answer is not "nothing".
set -euo pipefail
cd "$(dirname "$0")/../.."
[ "$(id -u)" = 0 ] || { echo "two_users.sh: run it as root, which can act as two users" >&2; exit 2; }

python=${PYTHON:-.venv/bin/python}
shared=$(mktemp -d)
work=$(mktemp -d)
trap 'kill "$other" 2>/dev/null || true; rm -rf "$shared" "$work"' EXIT
chmod 1777 "$shared"

# The other user makes the names that npukit might want, and notes every file there that they could write or replace.
other=54321
touch "$work/changed" && chmod 666 "$work/changed" && chmod 755 "$work"
setpriv --reuid=$other --regid=$other --clear-groups bash -c '
    for name in npukit npukit-0 npukit_0 torchinductor_root; do mkdir -m 777 "$0/$name"; done
    while :; do find "$0" /dev/shm -type f \( -writable -o -path "$0/npukit*/*" -o -path "$0/torchinductor*/*" \) -newer "$1"; done
' "$shared" "$work" >>"$work/changed" 2>/dev/null &
other=$!

cat >"$work/train.py" <<'PY'
import torch
model = torch.nn.Linear(4, 1)
for step in range(3):
    loss = model(torch.ones(8, 4)).square().mean()
    loss.backward()
    print(f"step {step} loss {loss.item()}")
PY
mkdir "$work/before" && cp "$work/train.py" "$work/before/" && cp -r "$work/before" "$work/after"
export TMPDIR=$shared

try() {
    local what=$1 wanted=$2 code=0
    shift 2
    timeout -s KILL "${limit:-300}" "$python" -m npukit "$@" >"$work/output" 2>&1 || code=$?
    [ "$code" = "$wanted" ] || { echo "$what ended with $code:" >&2; cat "$work/output" >&2; exit 1; }
    printf '%-44s %8s %12s\n' "$what" "$(sort -u "$work/changed" | wc -l)" "$(find "$shared" -mindepth 1 -user root | wc -l)"
}

printf '%-44s %8s %12s\n' "command" "exposed" "left behind"
try "run" 0 run --device cpu "$work/train.py"
try "run, 2 ranks" 0 run --device cpu --devices 2 "$work/train.py"
try "run, simulated NPU" 0 run --device sim "$work/train.py"
try "launch, 2 ranks" 0 launch --device cpu --devices 2 --log-dir "$work/logs" "$work/train.py"
try "verify" 0 verify --device cpu "$work/before" "$work/after" -- python train.py
"$python" examples/finetune/make.py "$work/chat" >/dev/null 2>&1
sft=(sft --device cpu --model "$work/chat/model" --dataset "$work/chat/data/cards.jsonl" --max_steps 2)
try "sft" 0 "${sft[@]}" --output_dir "$work/one"
try "sft, 2 ranks" 0 "${sft[@]}" --output_dir "$work/two" --devices 2
limit=60 try "sft, killed" 137 "${sft[@]}" --output_dir "$work/killed" --max_steps 100000

exposed=$(sort -u "$work/changed")
left=$(find "$shared" -mindepth 1 -user root)
[ -z "$exposed$left" ] || { printf 'exposed:\n%s\nleft behind:\n%s\n' "$exposed" "$left" >&2; exit 1; }
