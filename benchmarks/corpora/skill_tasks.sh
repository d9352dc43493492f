#!/usr/bin/env bash
# Three tasks, done with the commands of the skill alone (npukit skill): port a project, fine-tune from LLaMA-Factory's
# YAML, and find out what an error means. About two minutes; everything on the CPU and a simulated NPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "==> 1/3 Port examples/cuda_project"
npukit analyze examples/cuda_project >/dev/null
npukit migrate examples/cuda_project --output "$work/ported" >/dev/null
npukit verify examples/cuda_project "$work/ported" -- python train.py --steps 10 >/dev/null
echo "verified"

echo "==> 2/3 Fine-tune from a LLaMA-Factory file"
npukit run --device cpu examples/finetune/make.py "$work/finetune" >/dev/null
cat >"$work/sft.yaml" <<YAML
model_name_or_path: $work/finetune/model
stage: sft
do_train: true
finetuning_type: lora
dataset_dir: $work/finetune/data
dataset: questions
template: qwen
cutoff_len: 256
output_dir: $work/run
per_device_train_batch_size: 4
max_steps: 4
learning_rate: 1.0e-3
YAML
echo '{"questions": {"file_name": "cards.jsonl"}}' >"$work/finetune/data/dataset_info.json"
npukit train "$work/sft.yaml" --dry-run >/dev/null
npukit train "$work/sft.yaml" --device sim >/dev/null
echo "trained: $(ls "$work/run" | tr '\n' ' ')"

echo "==> 3/3 What does ERR02200 mean?"
npukit explain "RuntimeError: HCCL function error, error code is 7 ERR02200 DIST call hccl api failed" | head -3
