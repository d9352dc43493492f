#!/bin/sh
# Train on two GPUs.
export CUDA_VISIBLE_DEVICES=0,1
export NCCL_DEBUG=WARN
torchrun --standalone --nproc-per-node 2 train.py --steps 200 --amp "$@"
