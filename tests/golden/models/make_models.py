#!/usr/bin/env python3
"""Tiny random models, one for each thing that an architecture does differently.

usage: make_models.py DIR     (needs the PyPI packages gguf and numpy)
Weights are f32 and far from zero, so that a wrong rotation, window or scale moves the logits.
"""
import sys
import numpy as np
from gguf import GGUFWriter, TokenType

N_VOCAB = 272
N_IDS = 40


def tokens():
    """<unk>, <s>, </s>, the 256 bytes, and a few words."""
    names = ['<unk>', '<s>', '</s>'] + [f'<0x{i:02X}>' for i in range(256)]
    names += [f'\u2581w{i}' for i in range(N_VOCAB - len(names))]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    kinds += [TokenType.NORMAL] * (N_VOCAB - len(kinds))
    return names, kinds


def model(path, arch, n_layer, n_embd, n_head, n_kv, head_dim, n_ff, tied, bias, extra):
    w = GGUFWriter(path, arch)
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
        t(p + 'ffn_gate.weight', n_ff, n_embd)
        t(p + 'ffn_up.weight', n_ff, n_embd)
        t(p + 'ffn_down.weight', n_embd, n_ff)
        if arch == 'gemma3':
            for name, n in ('attn_q_norm', head_dim), ('attn_k_norm', head_dim):
                v(p + name + '.weight', n, 1.5)
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
ids = np.random.default_rng(7).integers(3, N_VOCAB, N_IDS)
print(' '.join(map(str, ids)))
