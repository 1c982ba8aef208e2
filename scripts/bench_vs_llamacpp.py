#!/usr/bin/env python3
"""minfer and llama.cpp side by side, in one run: prefill of 512 tokens and decode of 128.

usage: bench_vs_llamacpp.py --peer DIR --bin DIR --dir models [--rounds 5] [--threads 2] NAME...

The two programs take turns, round by round, so that a machine whose speed drifts drifts for both;
what counts is the ratio of the medians. llama.cpp is measured by its own llama-bench (warm-up
excluded, as it does), minfer by the figures that minfer-run reports with --json. Prints a Markdown
table. `scripts/bench-vs-llamacpp.sh` builds both sides and calls this.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile

from models import MODELS, fetch

N_PROMPT, N_GEN = 512, 128


def output(*args):
    return subprocess.run(args, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout


def llama(bench, gguf, threads):
    """(prefill, decode) in tokens a second."""
    rows = json.loads(output(bench, '-m', gguf, '-t', str(threads), '-p', str(N_PROMPT),
                             '-n', str(N_GEN), '-r', '1', '-o', 'json'))
    by_test = {bool(row['n_prompt']): row['avg_ts'] for row in rows}
    return by_test[True], by_test[False]


def minfer(run, mpk, threads, ids):
    def timings(path, n):
        out = output(run, mpk, '--ids', path, '-n', str(n), '--ignore-eos', '--temp', '0',
                     '--device', 'cpu', '-t', str(threads), '-c', '1024', '--json')
        return json.loads(out)['timings']
    prefill = timings(ids[N_PROMPT], 1)['prompt_per_second']
    decode = timings(ids[1], N_GEN)['predicted_per_second']
    return prefill, decode


def write_ids(folder, n):
    """`n` token ids that every vocabulary has; fixed, so that runs compare."""
    rng = random.Random(n)
    path = os.path.join(folder, f'ids{n}.json')
    json.dump([rng.randrange(1000, 40000) for _ in range(n)], open(path, 'w'))
    return path


def measure(args, name, ids):
    gguf = fetch(name, args.dir)
    mpk = gguf.removesuffix('.gguf') + '.mpk'
    if args.pack or not os.path.exists(mpk):
        output(os.path.join(args.bin, 'minfer-pack'), '--force', '-q', gguf, mpk)
    theirs, ours = [], []
    for _ in range(args.rounds):
        theirs.append(llama(os.path.join(args.peer, 'llama-bench'), gguf, args.threads))
        ours.append(minfer(os.path.join(args.bin, 'minfer-run'), mpk, args.threads, ids))
    return theirs, ours


def cell(values):
    return f'{statistics.median(values):.1f} ({min(values):.1f}..{max(values):.1f})'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('names', nargs='+', choices=[*MODELS, 'all'])
    parser.add_argument('--peer', required=True, help='folder with llama-bench')
    parser.add_argument('--bin', required=True, help='folder with minfer-pack and minfer-run')
    parser.add_argument('--dir', default='models')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--pack', action='store_true', help='pack again even if the .mpk is there')
    args = parser.parse_args()
    print('| model | test | llama.cpp tok/s: median (min..max) | minfer tok/s | ratio of medians '
          '| worst minfer / best llama.cpp |')
    print('|---|---|---|---|---|---|')
    with tempfile.TemporaryDirectory() as folder:
        ids = {n: write_ids(folder, n) for n in (1, N_PROMPT)}
        for name in MODELS if 'all' in args.names else args.names:
            theirs, ours = measure(args, name, ids)
            for i, test in enumerate((f'prefill {N_PROMPT}', f'decode {N_GEN}')):
                a, b = [t[i] for t in theirs], [o[i] for o in ours]
                ratio = statistics.median(b) / statistics.median(a)
                print(f'| {name} | {test} | {cell(a)} | {cell(b)} | {ratio:.2f} '
                      f'| {min(b) / max(a):.2f} |', flush=True)


if __name__ == '__main__':
    main()
