#!/usr/bin/env python3
"""Tiny random models, one for each thing that an architecture does differently.

usage: make_models.py DIR     (needs the PyPI packages gguf and numpy)
Weights are far from zero, so that a wrong rotation, window or scale moves the logits. They are f32, but
for the experts of qwen3moe_quants: beside that model stands qwen3moe_quants.exact.gguf, the same weights
in f32, from which its logits are computed (and which is not kept).
"""
import sys
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants

N_VOCAB = 272
N_IDS = 40


def tokens():
    """<unk>, <s>, </s>, the 256 bytes, and a few words."""
    names = ['<unk>', '<s>', '</s>'] + [f'<0x{i:02X}>' for i in range(256)]
    names += [f'\u2581w{i}' for i in range(N_VOCAB - len(names))]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    kinds += [TokenType.NORMAL] * (N_VOCAB - len(kinds))
    return names, kinds


def random_blocks(g, quant, shape):
    """Random blocks of a quant type, weights of about unit gain."""
    elems, size = {'Q4_K': (256, 144), 'Q6_K': (256, 210), 'Q8_0': (32, 34)}[quant]
    n = int(np.prod(shape)) // elems
    blocks = g.integers(0, 256, (n, size), np.uint8)
    # Where d stands, and what the largest centred value is in units of it; q4_K's minimum centres it.
    at, reach = {'Q4_K': (0, 500.0), 'Q6_K': (208, 4096.0), 'Q8_0': (0, 128.0)}[quant]
    d = (1.5 * 3 ** 0.5 / shape[-1] ** 0.5 / reach * (1 + 0.3 * g.random(n))).astype(np.float16)
    blocks[:, at:at + 2] = d.view(np.uint8).reshape(n, 2)
    if quant == 'Q4_K':
        blocks[:, 2:4] = (d * np.float16(7.5)).view(np.uint8).reshape(n, 2)
    return blocks.reshape(*shape[:-1], shape[-1] // elems * size)


def experts(arch, n_expert, n_used, n_ff, split=False, types=None):
    """Layers of experts, stacked in one tensor or (split) a tensor each. `types`: those of gate, up and
    down, a list a layer."""
    def tensors(w, g, layer, n_embd):
        p = f'blk.{layer}.'
        router = g.standard_normal((n_expert, n_embd)) / n_embd ** 0.5 * 3
        w.add_tensor(p + 'ffn_gate_inp.weight', router.astype(np.float32))
        for i, name in enumerate(('gate', 'up', 'down')):
            shape = (n_expert, n_embd, n_ff) if name == 'down' else (n_expert, n_ff, n_embd)
            if types:
                quant = types[layer][i]
                data = random_blocks(g, quant, shape)
                w.add_tensor(f'{p}ffn_{name}_exps.weight', data, raw_dtype=GGMLQuantizationType[quant])
                continue
            values = (g.standard_normal(shape) / shape[-1] ** 0.5 * 1.5).astype(np.float32)
            if split:
                for e in range(n_expert):
                    w.add_tensor(f'{p}ffn_{name}.{e}.weight', values[e])
            else:
                w.add_tensor(f'{p}ffn_{name}_exps.weight', values)

    def keys(w):
        w.add_expert_count(n_expert)
        w.add_expert_used_count(n_used)
        if arch == 'qwen3moe':
            w.add_expert_feed_forward_length(n_ff)
    return keys, tensors


class Both:
    """Writes to two files, of which the second has the experts' weights in f32."""
    def __init__(self, path, exact, arch):
        self.files = GGUFWriter(path, arch), GGUFWriter(exact, arch)

    def add_tensor(self, name, data, raw_dtype=None):
        self.files[0].add_tensor(name, data, raw_dtype=raw_dtype)
        if raw_dtype is None:
            self.files[1].add_tensor(name, data)
        else:
            self.files[1].add_tensor(name, quants.dequantize(data, raw_dtype).astype(np.float32))

    def __getattr__(self, name):
        def both(*args):
            for file in self.files:
                getattr(file, name)(*args)
        return both


def model(path, arch, n_layer, n_embd, n_head, n_kv, head_dim, n_ff, tied, bias, extra, moe=None, exact=None):
    w = Both(path, exact, arch) if exact else GGUFWriter(path, arch)
    if moe:
        moe[0](w)
    w.add_block_count(n_layer)
    w.add_context_length(512)
    w.add_embedding_length(n_embd)
    w.add_feed_forward_length(n_ff)
    w.add_head_count(n_head)
    w.add_head_count_kv(n_kv)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(N_VOCAB)
    if head_dim * n_head != n_embd:
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
    else:
        w.add_rope_dimension_count(head_dim)
    names, kinds = tokens()
    w.add_tokenizer_model('llama')
    w.add_token_list(names)
    w.add_token_scores([0.0 if i < 259 else -float(i) for i in range(N_VOCAB)])
    w.add_token_types(kinds)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    g = np.random.default_rng(len(arch) * 1000 + n_embd)

    def t(name, *shape):
        w.add_tensor(name, (g.standard_normal(shape) / shape[-1] ** 0.5 * 1.5).astype(np.float32))

    def v(name, n, base=1.0):
        w.add_tensor(name, (base + 0.3 * g.standard_normal(n)).astype(np.float32))

    t('token_embd.weight', N_VOCAB, n_embd)
    v('output_norm.weight', n_embd)
    if not tied:
        t('output.weight', N_VOCAB, n_embd)
    n_q, n_k = n_head * head_dim, n_kv * head_dim
    for i in range(n_layer):
        p = f'blk.{i}.'
        v(p + 'attn_norm.weight', n_embd)
        v(p + 'ffn_norm.weight', n_embd)
        for name, rows in ('q', n_q), ('k', n_k), ('v', n_k):
            t(p + f'attn_{name}.weight', rows, n_embd)
            if bias:
                v(p + f'attn_{name}.bias', rows, 0.0)
        t(p + 'attn_output.weight', n_embd, n_q)
        if moe:
            moe[1](w, g, i, n_embd)
        else:
            t(p + 'ffn_gate.weight', n_ff, n_embd)
            t(p + 'ffn_up.weight', n_ff, n_embd)
            t(p + 'ffn_down.weight', n_embd, n_ff)
        if arch in ('gemma3', 'qwen3', 'qwen3moe'):
            for name, n in ('attn_q_norm', head_dim), ('attn_k_norm', head_dim):
                v(p + name + '.weight', n, 1.5)
        if arch == 'gemma3':
            v(p + 'post_attention_norm.weight', n_embd)
            v(p + 'post_ffw_norm.weight', n_embd)
    extra(w, g)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama3(w, g):
    w.add_rope_freq_base(500000.0)
    w.add_string('llama.rope.scaling.type', 'linear')
    w.add_rope_scaling_factor(4.0)
    factors = np.array([1.0, 1.0, 1.3, 2.0, 3.0, 5.0, 8.0, 8.0], np.float32)
    w.add_tensor('rope_freqs.weight', factors)


def yarn(w, g):
    w.add_rope_freq_base(10000.0)
    w.add_string('qwen2.rope.scaling.type', 'yarn')
    w.add_rope_scaling_factor(4.0)
    w.add_rope_scaling_orig_ctx_len(64)


def gemma3(w, g):
    w.add_rope_freq_base(1000000.0)
    w.add_sliding_window(8)
    w.add_string('gemma3.rope.scaling.type', 'linear')
    w.add_rope_scaling_factor(8.0)
    w.add_final_logit_softcapping(4.0)


d = sys.argv[1]
model(f'{d}/llama.gguf', 'llama', 2, 48, 3, 1, 16, 80, False, False, lambda w, g: None)
model(f'{d}/llama3.gguf', 'llama', 2, 32, 2, 2, 16, 64, True, False, llama3)
model(f'{d}/qwen2.gguf', 'qwen2', 2, 64, 4, 2, 16, 64, False, True, lambda w, g: None)
model(f'{d}/yarn.gguf', 'qwen2', 1, 32, 1, 1, 32, 32, True, False, yarn)
model(f'{d}/gemma3.gguf', 'gemma3', 7, 32, 2, 1, 32, 48, True, False, gemma3)
plain = lambda w, g: None
model(f'{d}/qwen3.gguf', 'qwen3', 2, 48, 2, 1, 32, 64, True, False, plain)
moe = experts('qwen3moe', 6, 3, 32)
model(f'{d}/qwen3moe.gguf', 'qwen3moe', 2, 48, 2, 1, 32, 96, False, False, plain, moe)
for name, split in ('mixtral', False), ('mixtral_split', True):
    moe = experts('llama', 4, 2, 64, split)
    model(f'{d}/{name}.gguf', 'llama', 2, 32, 2, 1, 16, 64, False, False, plain, moe)
moe = experts('qwen3moe', 3, 2, 256, types=[('Q4_K', 'Q8_0', 'Q6_K')])
name = f'{d}/qwen3moe_quants'
model(f'{name}.gguf', 'qwen3moe', 1, 256, 2, 1, 64, 512, True, False, plain, moe, f'{name}.exact.gguf')
ids = np.random.default_rng(7).integers(3, N_VOCAB, N_IDS)
print(' '.join(map(str, ids)))
