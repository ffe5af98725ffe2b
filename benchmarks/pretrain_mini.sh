#!/bin/sh
# The pre-training run behind docs/pretraining.md: vocabulary, shards and a 2 M parameter ALBERT from raw text.
# Usage: benchmarks/pretrain_mini.sh CORPUS RUNS      Ctrl-C or a kill costs nothing: the same command goes on.
# Leaves RUNS/pretrain-mini/model, which every other command reads. PROCESSES: one for each core (2); 1, 2, 4 or 8.
# STEPS: updates in all (2000), 13,000 tokens each; the learning rate falls to nothing at the last.
set -eu
corpus=$1 runs=$2
export OMP_NUM_THREADS=1
# huge pages, and no giving back of memory between steps: about a fifth faster with glibc; without it, ignored
export GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592
python=${PYTHON:-python}
processes=${PROCESSES:-2}
steps=${STEPS:-2000}
pretrain="-m torch.distributed.run --standalone --nproc-per-node $processes -m edge_albert.pretrain"

if [ ! -e "$runs/vocab-8k" ]; then
    "$python" -m edge_albert.train_vocab "$corpus" --vocab-size 8000 --output "$runs/vocab-8k"
fi
if [ -e "$runs/pretrain-mini/run.json" ]; then
    # shellcheck disable=SC2086  # words, not one word
    exec "$python" $pretrain --resume "$runs/pretrain-mini"
fi
# shellcheck disable=SC2086
exec "$python" $pretrain "$corpus" --tokenizer "$runs/vocab-8k" --shards "$runs/shards-8k" \
    --preset mini --set hidden_size=256 --set num_attention_heads=4 --set intermediate_size=1024 \
    --set hidden_dropout_prob=0 --set attention_probs_dropout_prob=0 \
    --max-length 128 --mask-share 0.4 --batch-size 128 --micro-batch 16 --steps "$steps" \
    --optimizer adamw --learning-rate 1e-3 --warmup 0.05 --weight-decay 0.01 --clip-norm 1 --seed 1 \
    --checkpoint-every 50 --log-every 1 --output "$runs/pretrain-mini"
