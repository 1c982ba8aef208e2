#!/usr/bin/env python3
"""minfer and llama.cpp side by side, in one run: prefill of 512 tokens, decode of 128, and the start.

usage: bench_vs_llamacpp.py --peer DIR --bin DIR [--device cpu|cuda] [--rounds 5] [--planes LIST] NAME|FILE.gguf...

The two programs take turns, round by round, so that a machine whose speed drifts drifts for both;
what counts is the ratio of the medians. llama.cpp is measured by its own llama-bench, minfer by
minfer-bench, with the same flags and tests. The start is a whole process that loads the file, which is
cached, and computes one token (`-p 1 -n 0 -r 1 --no-warmup`): from its start to its end, by this script's
clock. Prints a Markdown table. `scripts/bench-vs-llamacpp.sh` builds both sides and calls this.
"""
import argparse
import json
import os
import statistics
import subprocess
import time

from models import MODELS, fetch

N_PROMPT, N_GEN = 512, 128
TESTS = [f'prefill {N_PROMPT}', f'decode {N_GEN}', 'start, ms']


def output(*args):
    return subprocess.run(args, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout


class Side:
    """One of the two programs, with the file that it runs."""

    def __init__(self, program, file, flags, own):
        self.command = [program, '-m', file, *flags]
        self.own = own

    def round(self):
        """Tokens a second of prefill and decode, milliseconds of a start."""
        rows = json.loads(output(*self.command, *self.own, '-p', str(N_PROMPT), '-n', str(N_GEN), '-r', '1', '-o', 'json'))
        by_test = {bool(row['n_prompt']): row for row in rows}
        began = time.monotonic()
        output(*self.command, *self.own, '-p', '1', '-n', '0', '-r', '1', '--no-warmup', '-o', 'json')
        start = 1e3 * (time.monotonic() - began)
        return by_test[True]['avg_ts'], by_test[False]['avg_ts'], start


def pack(args, gguf):
    mpk = f'{gguf.removesuffix(".gguf")}.{args.planes.replace(",", "-")}.mpk'
    if args.pack or not os.path.exists(mpk):
        output(os.path.join(args.bin, 'minfer-pack'), '--force', '-q', '--planes', args.planes, gguf, mpk)
    return mpk


def sides(args, gguf):
    if args.device == 'cpu':
        flags, ours, theirs = ['-t', str(args.threads)], ['--device', 'cpu', '--no-limits'], ['-ngl', '0']
    else:
        flags, ours, theirs = [], ['--device', 'cuda', '--no-limits'], ['-ngl', '99', '-fa', '1']
    return (Side(os.path.join(args.peer, 'llama-bench'), gguf, flags, theirs),
            Side(os.path.join(args.bin, 'minfer-bench'), pack(args, gguf), flags, ours))


def cell(values):
    return f'{statistics.median(values):.1f} ({min(values):.1f}..{max(values):.1f})'


def report(name, theirs, ours):
    for i, test in enumerate(TESTS):
        a, b = [t[i] for t in theirs], [o[i] for o in ours]
        # Times are better when they are smaller: the ratio is of speeds all the same.
        speed = i < 2
        ratio = statistics.median(b) / statistics.median(a)
        worst = min(b) / max(a) if speed else min(a) / max(b)
        print(f'| {name} | {test} | {cell(a)} | {cell(b)} | {ratio if speed else 1 / ratio:.2f} | {worst:.2f} |', flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('names', nargs='+', help=f'{", ".join(MODELS)}, all, or GGUF files')
    parser.add_argument('--peer', required=True, help='folder with llama-bench')
    parser.add_argument('--bin', required=True, help='folder with minfer-pack and minfer-bench')
    parser.add_argument('--dir', default='models')
    parser.add_argument('--device', choices=['cpu', 'cuda'], default='cpu')
    parser.add_argument('--planes', default='default', help='as minfer-pack takes them')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--pack', action='store_true', help='pack again even if the .mpk is there')
    args = parser.parse_args()
    names = list(MODELS) if 'all' in args.names else args.names
    for name in names:
        if name not in MODELS and not os.path.exists(name):
            parser.error(f'{name}: neither a model of {", ".join(MODELS)} nor a file')
    print(f'{args.device}, --planes {args.planes}, {args.rounds} rounds\n')
    print('| model | test | llama.cpp tok/s: median (min..max) | minfer | speed: ratio of medians '
          '| worst minfer / best llama.cpp |')
    print('|---|---|---|---|---|---|')
    for name in names:
        gguf = fetch(name, args.dir) if name in MODELS else name
        theirs, ours = sides(args, gguf)
        rounds = [(theirs.round(), ours.round()) for _ in range(args.rounds)]
        report(os.path.basename(name), *zip(*rounds))


if __name__ == '__main__':
    main()
