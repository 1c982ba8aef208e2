#!/usr/bin/env python3
"""Checks minfer-run's logits and greedy answers against the float32 reference and llama.cpp. Needs numpy.

usage: accuracy.py --run MINFER_RUN --golden DIR --refs DIR [options] NAME=MODEL.mpk...

NAME is the model's name in the golden data, e.g. smollm2-135m-instruct-q4_1.
DIR of --golden holds NAME.ref.json (token ids of a text) and greedy.json (llama.cpp's greedy continuations).
DIR of --refs holds NAME.npy: log probabilities of a float32 forward pass over those ids, [n_tokens][n_vocab]
(`scripts/reference.py MODEL.gguf IDS.json NAME.npy` writes it). The KL gate fails without it.

For each model, tier and batch size the gates are checked, and a row is printed:
  KL      mean KL divergence at most 1.05 times and 99th percentile at most 1.25 times llama.cpp's, perplexity within
          1 % of the reference's.
  greedy  teacher-forced: llama.cpp's token within 0.75 of our best logit everywhere, the same token at 93 % or more;
          free-running (--free): equal up to llama.cpp's first margin under 0.5.
  text    on a GPU: greedy answers equal those on the CPU, or part where the CPU has a margin under 0.5.
Exit: 0 if every gate holds, 1 if one does not, 2 for wrong use.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

# llama.cpp (build 11434, CPU) against the same reference: mean KL, 99th percentile; perplexity of the reference.
LLAMA_CPP = {
    "smollm2-135m-instruct-q4_1": (0.00346, 0.0195, 22.089),
    "gemma3-270m-q4_k_m": (0.00651, 0.0469, 19.388),
    "qwen2.5-coder-0.5b-instruct-q4_k_m": (0.00154, 0.0079, 14.395),
    "qwen2.5-coder-1.5b-instruct-q4_k_m": (0.01034, 0.0255, 6.488),
}
MEAN_FACTOR, P99_FACTOR, PERPLEXITY_SHARE = 1.05, 1.25, 0.01
GREEDY_MARGIN, GREEDY_SHARE, FREE_MARGIN = 0.75, 0.93, 0.5


def run(args, model, tier, *flags):
    """Runs minfer-run on `model` in `tier`; returns its standard output."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("MINFER_")}
    if tier != "auto":
        env["MINFER_CPU"] = tier
    command = [args.run, model, "-q", "--device", args.device, "--prefill", args.prefill, *flags]
    if args.threads:
        command += ["-t", str(args.threads)]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def logits_of(args, model, tier, batch, ids, folder):
    """Logits of every position of `ids`: a float32 map, [n_tokens][n_vocab]."""
    ids_path, out = os.path.join(folder, "ids.json"), os.path.join(folder, "logits.f32")
    with open(ids_path, "w") as f:
        json.dump(ids, f)
    run(args, model, tier, "-b", str(batch), "-c", str(len(ids)), "--ids", ids_path, "--logits", out)
    logits = np.memmap(out, "<f4", "r")
    if logits.size % len(ids):
        sys.exit(f"{out}: {logits.size} values are not {len(ids)} rows")
    return logits.reshape(len(ids), -1)


def log_softmax(rows):
    rows = rows.astype(np.float64)
    rows -= rows.max(-1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(-1, keepdims=True))


def divergence(reference, logits, ids):
    """Mean and 99th percentile of KL(reference || ours), and our perplexity of `ids`. A few rows at a time: a whole
    matrix of a large vocabulary would not fit in memory twice."""
    if reference.shape != logits.shape:
        sys.exit(f"the reference has shape {reference.shape}, the logits {logits.shape}")
    kl, nll = [], []
    for at in range(0, len(ids), 32):
        p = reference[at : at + 32].astype(np.float64)
        rows = logits[at : at + 32]
        if not np.isfinite(rows).all():
            sys.exit("non-finite logits")
        q = log_softmax(rows)
        kl.append((np.exp(p) * (p - q)).sum(-1))
        following = ids[at + 1 : at + 33]
        nll.append(-q[np.arange(len(following)), following])
    kl, nll = np.concatenate(kl), np.concatenate(nll)
    return float(kl.mean()), float(np.quantile(kl, 0.99)), float(np.exp(nll.mean()))


def kl_gate(args, name, model, tier, batch, folder):
    """A cell for the table and whether the gate holds."""
    reference = os.path.join(args.refs or "", name + ".npy")
    if not args.refs or not os.path.exists(reference):
        return "no reference", False
    with open(os.path.join(args.golden, name + ".ref.json")) as f:
        ids = json.load(f)["ids"]
    reference = np.load(reference, mmap_mode="r")
    mean, p99, perplexity = divergence(reference, logits_of(args, model, tier, batch, ids, folder), ids)
    text = f"KL mean {mean:.5f} p99 {p99:.4f} PPL {perplexity:.3f}"
    if name not in LLAMA_CPP:
        return text + " (no figures to compare)", True
    llama_mean, llama_p99, f32_perplexity = LLAMA_CPP[name]
    holds = (
        mean <= MEAN_FACTOR * llama_mean
        and p99 <= P99_FACTOR * llama_p99
        and abs(perplexity / f32_perplexity - 1) <= PERPLEXITY_SHARE
    )
    ratios = f" ({mean / llama_mean:.2f}x {p99 / llama_p99:.2f}x {100 * (perplexity / f32_perplexity - 1):+.2f} %)"
    return text + ratios, holds


def greedy_gate(args, name, model, tier, batch, folder):
    """A cell for the table and whether the gate holds."""
    with open(os.path.join(args.golden, "greedy.json")) as f:
        entries = [entry for entry in json.load(f) if entry["model"] == name]
    worst, same, total, free = 0.0, 0, 0, True
    for entry in entries:
        prompt, answer = entry["prompt_ids"], entry["greedy_ids"]
        logits = logits_of(args, model, tier, batch, prompt + answer, folder)
        rows = np.asarray(logits[len(prompt) - 1 : -1], np.float64)
        chosen = rows[np.arange(len(answer)), answer]
        worst = max(worst, float((rows.max(-1) - chosen).max()))
        same += int((rows.argmax(-1) == answer).sum())
        total += len(answer)
        if args.free:
            free = free and free_running(args, entry, model, tier, batch, folder)
    if not total:
        return "no greedy entries", True
    holds = worst <= GREEDY_MARGIN and same >= GREEDY_SHARE * total and free
    text = f"greedy {same}/{total} ({100 * same / total:.1f} %), worst {worst:.3f}"
    return text + (f", free {'equal' if free else 'DIFFERS'}" if args.free else ""), holds


def free_running(args, entry, model, tier, batch, folder):
    """Whether our own greedy answer equals llama.cpp's up to the first margin under FREE_MARGIN."""
    sure = next((i for i, margin in enumerate(entry["margin"]) if margin < FREE_MARGIN), len(entry["margin"]))
    ids = os.path.join(folder, "prompt.json")
    with open(ids, "w") as f:
        json.dump(entry["prompt_ids"], f)
    out = run(args, model, tier, "-b", str(batch), "--ids", ids, "--json", "--temp", "0", "-n", str(max(sure, 1)))
    return json.loads(out)["token_ids"][:sure] == entry["greedy_ids"][:sure]


def text_gate(args, name, model, tier, batch, folder):
    """Our greedy answers on --device against those on the CPU: equal, or parted where the CPU's own margin between the
    two tokens is small."""
    with open(os.path.join(args.golden, "greedy.json")) as f:
        entries = [entry for entry in json.load(f) if entry["model"] == name]
    n_equal, worst = 0, 0.0
    on_cpu = argparse.Namespace(**{**vars(args), "device": "cpu"})
    for entry in entries:
        prompt, flags = entry["prompt_ids"], ("--json", "--temp", "0", "-n", str(len(entry["greedy_ids"])))
        ids = os.path.join(folder, "prompt.json")
        with open(ids, "w") as f:
            json.dump(prompt, f)
        answers = [
            json.loads(run(one, model, tier, "-b", str(batch), "--ids", ids, *flags))["token_ids"] for one in (args, on_cpu)
        ]
        parted = next((i for i, (a, b) in enumerate(zip(*answers)) if a != b), None)
        if parted is None:
            n_equal += 1
            continue
        row = logits_of(on_cpu, model, tier, batch, prompt + answers[1][:parted], folder)[-1]
        worst = max(worst, float(row[answers[1][parted]] - row[answers[0][parted]]))
    if not entries:
        return "no greedy entries", True
    return f"text {n_equal}/{len(entries)} equal to the CPU's, else parted at a margin of {worst:.3f} at most", worst < FREE_MARGIN


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True, help="the minfer-run binary")
    parser.add_argument("--golden", required=True, help="folder with NAME.ref.json and greedy.json")
    parser.add_argument("--refs", help="folder with NAME.npy")
    parser.add_argument("--tiers", default="auto", help="comma-separated: auto, or what MINFER_CPU takes [auto]")
    parser.add_argument("--device", default="cpu", help="--device of minfer-run [cpu]")
    parser.add_argument("--prefill", default="auto", help="--prefill of minfer-run, for a GPU [auto]")
    parser.add_argument("--batches", default="512,1", help="comma-separated values of -b [512,1]")
    parser.add_argument("--gates", default="kl,greedy", help="which gates to check: kl, greedy, text [kl,greedy]")
    parser.add_argument("--free", action="store_true", help="also compare free-running answers")
    parser.add_argument("--threads", type=int, help="-t of minfer-run")
    parser.add_argument("--tmp", help="folder for logits files (up to n_tokens x n_vocab x 4 bytes)")
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL.mpk")
    args = parser.parse_args()
    pairs = [model.partition("=") for model in args.models]
    if not all(separator for _, separator, _ in pairs):
        parser.error("a model is given as NAME=MODEL.mpk")
    gates = {"kl": kl_gate, "greedy": greedy_gate, "text": text_gate}
    wanted = [gates[gate] for gate in args.gates.split(",") if gate in gates] or parser.error("no such gate")
    failed = 0
    for name, _, model in pairs:
        for tier in args.tiers.split(","):
            for batch in map(int, args.batches.split(",")):
                with tempfile.TemporaryDirectory(dir=args.tmp) as folder:
                    start = time.monotonic()
                    cells = [gate(args, name, model, tier, batch, folder) for gate in wanted]
                holds = all(ok for _, ok in cells)
                failed += not holds
                row = " | ".join(f"{text} {'ok' if ok else 'FAILED'}" for text, ok in cells)
                where = tier if args.device == "cpu" else f"{args.device} {args.prefill}"
                print(f"{name} | {where} | -b {batch} | {row} | {time.monotonic() - start:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
