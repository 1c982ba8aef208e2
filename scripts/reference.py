#!/usr/bin/env python3
"""Float32 reference: log probabilities of every position, from the GGUF itself.

usage: reference.py MODEL.gguf IDS.json OUT.npy

IDS.json is a list of token ids or an object with a list under "ids". OUT.npy gets float32
[n_tokens][n_vocab]. Weights are dequantized to float32 by the PyPI package `gguf`; activations
and the KV cache are never quantized. Architectures: llama, qwen2, gemma3. Needs numpy and gguf.
This is what minfer's logits are measured against, so it shares no code with minfer.
"""
import json
import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize


class Weights:
    """Tensors by name, dequantized when asked for (one at a time, so memory stays small)."""

    def __init__(self, path):
        reader = GGUFReader(path)
        self.tensors = {t.name: t for t in reader.tensors}
        self.fields = reader.fields

    def key(self, name, default=None):
        field = self.fields.get(name)
        return default if field is None else field.contents()

    def __contains__(self, name):
        return name in self.tensors

    def __getitem__(self, name):
        t = self.tensors[name]
        shape = [int(n) for n in reversed(t.shape)]
        return dequantize(t.data, t.tensor_type).astype(np.float32).reshape(shape)

    def linear(self, x, name):
        y = x @ self[name + '.weight'].T
        return y + self[name + '.bias'] if name + '.bias' in self else y


def rms_norm(x, weight, eps):
    return x * (1.0 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + eps)) * weight


def rotate(x, base, neox, factors):
    """Rotary embedding of [n_tokens][n_head][head_dim]; `factors` divides the frequencies."""
    n_tokens, _, dim = x.shape
    freq = base ** (-2.0 * np.arange(dim // 2) / dim) / factors
    angle = np.outer(np.arange(n_tokens), freq)
    cos, sin = (f(angle).astype(np.float32)[:, None, :] for f in (np.cos, np.sin))
    if neox:
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)


def attend(q, k, v, window):
    """Causal attention; q [T][H][D], k and v [T][H_kv][D]; `window` limits how far back."""
    n_tokens, n_head, dim = q.shape
    share = n_head // k.shape[1]
    back = np.arange(n_tokens)[:, None] - np.arange(n_tokens)[None, :]
    hidden = (back < 0) | (back >= window) if window else back < 0
    out = np.empty_like(q)
    for h in range(n_head):
        score = q[:, h] @ k[:, h // share].T * np.float32(dim ** -0.5)
        score[hidden] = -np.inf
        p = np.exp(score - score.max(axis=-1, keepdims=True))
        out[:, h] = (p / p.sum(axis=-1, keepdims=True)) @ v[:, h // share]
    return out.reshape(n_tokens, n_head * dim)


def forward(w, ids):
    arch = w.key('general.architecture')
    if arch not in ('llama', 'qwen2', 'gemma3'):
        sys.exit(f'reference.py: architecture {arch} is not known here')
    gemma = arch == 'gemma3'

    def hp(name, default=None):
        return w.key(f'{arch}.{name}', default)

    n_embd, n_head = hp('embedding_length'), hp('attention.head_count')
    n_head_kv = hp('attention.head_count_kv', n_head)
    dim = hp('attention.key_length', n_embd // n_head)
    eps = hp('attention.layer_norm_rms_epsilon')
    base = hp('rope.freq_base', 10000.0)
    window = hp('attention.sliding_window') if gemma else None
    factors = w['rope_freqs.weight'] if 'rope_freqs.weight' in w else 1.0
    embedding = w['token_embd.weight']
    n_tokens = len(ids)
    x = embedding[ids] * (np.float32(n_embd ** 0.5) if gemma else np.float32(1))
    for layer in range(hp('block_count')):
        p = f'blk.{layer}.'
        local = gemma and layer % 6 != 5
        h = rms_norm(x, w[p + 'attn_norm.weight'], eps)
        q = w.linear(h, p + 'attn_q').reshape(n_tokens, n_head, dim)
        k = w.linear(h, p + 'attn_k').reshape(n_tokens, n_head_kv, dim)
        v = w.linear(h, p + 'attn_v').reshape(n_tokens, n_head_kv, dim)
        if gemma:
            q = rms_norm(q, w[p + 'attn_q_norm.weight'], eps)
            k = rms_norm(k, w[p + 'attn_k_norm.weight'], eps)
        q, k = (rotate(t, 10000.0 if local else base, arch != 'llama', factors) for t in (q, k))
        h = w.linear(attend(q, k, v, window if local else None), p + 'attn_output')
        x = x + (rms_norm(h, w[p + 'post_attention_norm.weight'], eps) if gemma else h)
        h = rms_norm(x, w[p + 'ffn_norm.weight'], eps)
        gate, up = w.linear(h, p + 'ffn_gate'), w.linear(h, p + 'ffn_up')
        if gemma:
            gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate ** 3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        h = w.linear((gate * up).astype(np.float32), p + 'ffn_down')
        x = x + (rms_norm(h, w[p + 'post_ffw_norm.weight'], eps) if gemma else h)
        x = x.astype(np.float32)
    x = rms_norm(x, w['output_norm.weight'], eps)
    return x @ (w['output.weight'] if 'output.weight' in w else embedding).T


def log_softmax(logits):
    """In place, row by row: the logits of a large vocabulary are the largest array here."""
    for row in logits:
        row -= row.max()
        row -= np.log(np.exp(row.astype(np.float64)).sum())
    return logits


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    ids = json.load(open(sys.argv[2]))
    ids = ids['ids'] if isinstance(ids, dict) else ids
    log_p = log_softmax(forward(Weights(sys.argv[1]), ids).astype(np.float32))
    np.save(sys.argv[3], log_p)
    nll = -log_p[np.arange(len(ids) - 1), ids[1:]].astype(np.float64)
    print(f'{sys.argv[1]}: {len(ids)} tokens, perplexity {np.exp(nll.mean()):.4f}')


if __name__ == '__main__':
    main()
