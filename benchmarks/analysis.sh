#!/bin/sh
# Every figure of docs/analysis.md, made again. Usage, in the root of a checkout:
#     benchmarks/analysis.sh MESSAGES CORPUS RUNS
# MESSAGES: the file SMSSpamCollection of the UCI SMS Spam Collection. CORPUS: English text, a folder of .txt or .txt.xz
# files. RUNS: a folder for everything on the way. About four and a half CPU hours, most of them the ablations, two at
# a time; a run that was stopped goes on where it was. Keep the machine quiet for the last part, which measures times.
set -eu
messages=$1 corpus=$2 runs=$3
export OMP_NUM_THREADS=1
python=${PYTHON:-python}

analyze() {
    command=$1
    shift
    "$python" -m edge_albert.analyze "$command" "$@" --output docs/analysis --document docs/analysis.md --force
}

[ -e "$runs/vocab-8k" ] || "$python" -m edge_albert.train_vocab "$corpus" --vocab-size 8000 --output "$runs/vocab-8k"
if [ ! -e "$runs/shards-8k" ]; then  # --quick in another folder, for the tokenised corpus that both seeds read
    "$python" -m edge_albert.analyze ablate "$corpus" --tokenizer "$runs/vocab-8k" --shards "$runs/shards-8k" \
        --work "$runs/ablation-quick" --quick
fi
set -- "$corpus" --tokenizer "$runs/vocab-8k" --shards "$runs/shards-8k" --work "$runs/ablation"
"$python" -m edge_albert.analyze ablate "$@" --seed 1 &
first=$!
trap 'kill "$first" 2>/dev/null || true' EXIT
"$python" -m edge_albert.analyze ablate "$@" --seed 2
wait "$first"
analyze ablate "$@"
analyze count

"$python" benchmarks/train_default.py --messages "$messages" --split-only --work "$runs/default"
for cell in base share-none; do  # one shared layer, and four layers, fine-tuned on the same messages
    [ -e "$runs/sms/$cell" ] || "$python" -m edge_albert.finetune --task text-classification --lr 3e-4 \
        --model "$runs/ablation/$cell/seed-1/model" --train "$runs/default/train.tsv" --dev "$runs/default/dev.tsv" \
        --output "$runs/sms/$cell"
done
analyze layers --model edge_albert/default_model "$runs/sms/base" "$runs/sms/share-none" \
    --texts calibration/sentences.txt --data "$runs/default/test.tsv"
analyze speed
