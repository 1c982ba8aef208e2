#!/usr/bin/env python3
"""minfer and llama.cpp side by side, in one run: prefill of 512 tokens, decode of 128, and the start.

usage: bench_vs_llamacpp.py --peer DIR --bin DIR [--device cpu|cuda] [--rounds 5] [--planes LIST] NAME|FILE.gguf...

The two programs take turns, round by round, so that a machine whose speed drifts drifts for both;
what counts is the ratio of the medians. llama.cpp is measured by its own llama-bench, minfer by
minfer-bench, with the same flags and tests. The start is a whole process that loads the file, which is
cached, and computes one token (`-p 1 -n 0 -r 1 --no-warmup`): from its start to its end, by this script's
clock. Prints a Markdown table. `scripts/bench-vs-llamacpp.sh` builds both sides and calls this.

Each GGUF is packed anew, by the minfer-pack that is measured, into a folder beside it that goes when the
script ends: a container that lies there already may be of another file or of an older version. Exit codes:
0 done, 1 a program failed (the last line says which, and what it said), 2 wrong use, 4 a file cannot be
read or written, 128 + n ended by signal n.
"""
import argparse
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from models import MODELS, fetch

N_PROMPT, N_GEN = 512, 128
TESTS = [f'prefill {N_PROMPT}', f'decode {N_GEN}', 'start, ms']
# What a program that fails has said is printed, but not the whole log of a loader.
MOST_LINES = 20


class Failed(Exception):
    """A program failed, or did not print what it should."""


def output(program, *args):
    """What it prints. What it says meanwhile is of interest if it fails, and then all that is."""
    name = os.path.basename(program)
    try:
        done = subprocess.run([program, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise Failed(f'{program}: cannot start: {error.strerror}') from None
    if done.returncode == 0:
        return done.stdout
    said = [line for line in done.stderr.decode(errors='replace').splitlines() if line.strip()]
    # Its error comes last, here too; what follows it there is advice.
    errors = [i for i, line in enumerate(said) if 'error' in line.lower()]
    why = said.pop(errors[-1] if errors else -1) if said else 'it said nothing'
    for line in said[-MOST_LINES:]:
        print(line, file=sys.stderr)
    how = f'ended with {done.returncode}' if done.returncode > 0 else f'was ended by signal {-done.returncode}'
    raise Failed(f'{name} {how}: {why}')


def rows(command):
    """Tokens a second of the tests of one run, by whether they have a prompt."""
    text = output(*command)
    try:
        by_test = {bool(row['n_prompt']): float(row['avg_ts']) for row in json.loads(text)}
        if not all(0 < speed < math.inf for speed in by_test.values()):
            raise ValueError(f'tokens a second: {list(by_test.values())}')
        return by_test
    except (ValueError, KeyError, TypeError) as error:
        raise Failed(f'{os.path.basename(command[0])} did not print the rows of its tests: {error!r}') from None


class Side:
    """One of the two programs, with the file that it runs."""

    def __init__(self, program, file, flags, own):
        self.command = [program, '-m', file, *flags]
        self.own = own

    def round(self):
        """Tokens a second of prefill and decode, milliseconds of a start."""
        tests = ['-p', str(N_PROMPT), '-n', str(N_GEN), '-r', '1', '-o', 'json']
        by_test = rows([*self.command, *self.own, *tests])
        if len(by_test) != 2:
            raise Failed(f'{os.path.basename(self.command[0])} printed {len(by_test)} of 2 tests')
        began = time.monotonic()
        output(*self.command, *self.own, '-p', '1', '-n', '0', '-r', '1', '--no-warmup', '-o', 'json')
        start = 1e3 * (time.monotonic() - began)
        return by_test[True], by_test[False], start


def pack(args, gguf, folder):
    mpk = os.path.join(folder, f'{os.path.basename(gguf).removesuffix(".gguf")}.{args.planes.replace(",", "-")}.mpk')
    output(os.path.join(args.bin, 'minfer-pack'), '-q', '--planes', args.planes, '--', gguf, mpk)
    return mpk


def sides(args, gguf, mpk):
    if args.device == 'cpu':
        flags, ours, theirs = ['-t', str(args.threads)], ['--device', 'cpu', '--no-limits'], ['-ngl', '0']
    else:
        flags, ours, theirs = [], ['--device', 'cuda', '--no-limits'], ['-ngl', '99', '-fa', '1']
    return (Side(os.path.join(args.peer, 'llama-bench'), gguf, flags, theirs),
            Side(os.path.join(args.bin, 'minfer-bench'), mpk, flags, ours))


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


def measure(args, name):
    gguf = fetch(name, args.dir) if name in MODELS else name
    try:
        folder = tempfile.TemporaryDirectory(prefix='.minfer-bench-', dir=os.path.dirname(gguf) or '.')
    except OSError as error:
        raise Failed(f'{gguf}: cannot make a folder beside it for its container: {error.strerror}') from None
    with folder as beside:
        theirs, ours = sides(args, gguf, pack(args, gguf, beside))
        rounds = [(theirs.round(), ours.round()) for _ in range(args.rounds)]
    report(os.path.basename(name), *zip(*rounds))


def count(text):
    # Not more digits than that: Python does not read thousands of them.
    if not re.fullmatch('[0-9]{1,9}', text) or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f'{text!r}: expected a whole number from 1 to 1024')
    return int(text)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('names', nargs='+', help=f'{", ".join(MODELS)}, all, or GGUF files')
    parser.add_argument('--peer', required=True, help='folder with llama-bench')
    parser.add_argument('--bin', required=True, help='folder with minfer-pack and minfer-bench')
    parser.add_argument('--dir', default='models')
    parser.add_argument('--device', choices=['cpu', 'cuda'], default='cpu')
    parser.add_argument('--planes', default='default', help='as minfer-pack takes them')
    parser.add_argument('--rounds', type=count, default=5)
    parser.add_argument('--threads', type=count, default=2)
    args = parser.parse_args()
    args.names = [each for name in args.names for each in (MODELS if name == 'all' else [name])]
    for name in args.names:
        if name not in MODELS and not os.path.exists(name):
            parser.error(f'{name}: neither a model of {", ".join(MODELS)} nor a file')
    for folder, program in [(args.peer, 'llama-bench'), (args.bin, 'minfer-pack'), (args.bin, 'minfer-bench')]:
        if not os.path.exists(os.path.join(folder, program)):
            parser.error(f'{folder}: no {program} in it')
    return args


def main():
    args = arguments()
    # What is unfinished goes, however the script ends.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        print(f'{args.device}, --planes {args.planes}, {args.rounds} rounds\n')
        print('| model | test | llama.cpp tok/s: median (min..max) | minfer | speed: ratio of medians '
              '| worst minfer / best llama.cpp |')
        print('|---|---|---|---|---|---|', flush=True)
        for name in args.names:
            measure(args, name)
    except Failed as error:
        sys.exit(f'{os.path.basename(__file__)}: error: {error}')
    except OSError as error:
        # Closing standard output would try, and fail, again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # Whoever read the table has gone.
        if not isinstance(error, BrokenPipeError):
            place = error.filename or 'standard output'
            print(f'{os.path.basename(__file__)}: error: {place}: {error.strerror}', file=sys.stderr)
            sys.exit(4)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == '__main__':
    main()
