//! Tokens with a role: which they are, and which end a generation.
//!
//! Most files name only some of them; the rest is found by well-known strings, as llama.cpp does.

use std::collections::{BTreeSet, HashMap};

use super::{Attr, Model, NONE};
use crate::Result;
use crate::gguf::Metadata;

macro_rules! specials {
    ($($variant:ident = $keys:expr, $doc:literal;)*) => {
        /// A role that at most one token has. The order is part of the format.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Special {
            $(#[doc = $doc] $variant,)*
        }

        /// Every role and its GGUF keys (the last that is present holds).
        pub const SPECIALS: &[(Special, &[&str])] = &[$((Special::$variant, &$keys),)*];
    };
}

specials! {
    Bos = ["tokenizer.ggml.bos_token_id"], "Begins a text.";
    Eos = ["tokenizer.ggml.eos_token_id"], "Ends a text.";
    Eot = ["tokenizer.ggml.eot_token_id"], "Ends a turn.";
    Eom = ["tokenizer.ggml.eom_token_id"], "Ends a message.";
    Unk = ["tokenizer.ggml.unknown_token_id"], "Stands for what the vocabulary cannot express.";
    Sep = ["tokenizer.ggml.seperator_token_id"], "Separates texts.";
    Pad = ["tokenizer.ggml.padding_token_id"], "Pads a batch.";
    Mask = ["tokenizer.ggml.mask_token_id"], "Hides a token.";
    FimPre = ["tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"], "Before a prefix.";
    FimSuf = ["tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"], "Before a suffix.";
    FimMid = ["tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"], "Before a middle.";
    FimPad = ["tokenizer.ggml.fim_pad_token_id"], "Pads a fill-in-the-middle prompt.";
    FimRep = ["tokenizer.ggml.fim_rep_token_id"], "Before a repository's name.";
    FimSep = ["tokenizer.ggml.fim_sep_token_id"], "Between files.";
}

/// Token of each role, [`NONE`] where there is none.
pub(crate) type SpecialIds = [u32; SPECIALS.len()];

/// Strings by which a role is found that the file does not name; the first that exists holds.
const BY_STRING: &[(Special, &[&str])] = &[
    (
        Special::Eot,
        &[
            "<|eot_id|>",
            "<|im_end|>",
            "<|end|>",
            "<end_of_turn>",
            "<|endoftext|>",
            "<|end_of_text|>",
            "<EOT>",
            "_<EOT>",
            "[EOT]",
            "<｜end▁of▁sentence｜>",
            "<end_of_utterance>",
        ],
    ),
    (Special::Eom, &["<|eom_id|>"]),
    (
        Special::FimPre,
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
    ),
    (
        Special::FimSuf,
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
    ),
    (
        Special::FimMid,
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
    ),
    (Special::FimPad, &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"]),
    (Special::FimRep, &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"]),
    (Special::FimSep, &["<|file_sep|>"]),
];

/// Strings that end a generation in any vocabulary.
const EOG: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Strings of gpt-oss that are text to be shown.
const SHOWN: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// The vocabulary as far as it is known when roles are looked for.
pub(crate) struct Tokens<'a> {
    pub(crate) by_text: &'a HashMap<&'a [u8], u32>,
    pub(crate) attrs: &'a mut [Attr],
    pub(crate) warnings: &'a mut Vec<String>,
}

impl Tokens<'_> {
    fn id(&self, text: &str) -> Option<u32> {
        self.by_text.get(text.as_bytes()).copied()
    }

    fn attr(&mut self, id: u32) -> Option<&mut Attr> {
        self.attrs.get_mut(usize::try_from(id).ok()?)
    }

    fn make_control(&mut self, id: u32, text: &str) {
        let Some(attr) = self.attr(id) else { return };
        if !attr.any(Attr::CONTROL) {
            *attr = attr.and(Attr::CONTROL);
            self.warnings.push(format!("token {id} '{text}' is not marked as control; it is one"));
        }
    }
}

/// The ids that a file without any `*_token_id` key has.
pub(crate) fn defaults(model: Model, tokenizer_model: &str, no_bos: bool) -> SpecialIds {
    let mut ids = [NONE; SPECIALS.len()];
    let mut set = |special: Special, id| ids[special as usize] = id;
    match (model, tokenizer_model) {
        (Model::Spm, _) => {
            set(Special::Bos, 1);
            set(Special::Eos, 2);
            set(Special::Unk, 0);
        }
        (Model::Bpe, "gemma4") => {}
        (Model::Bpe, _) => {
            set(Special::Bos, if no_bos { NONE } else { 11 });
            set(Special::Eos, 11);
        }
    }
    ids
}

/// Reads the `*_token_id` keys over the defaults in `ids`.
pub(crate) fn read_ids(
    metadata: &Metadata<'_>,
    n_tokens: u32,
    ids: &mut SpecialIds,
    warnings: &mut Vec<String>,
) -> Result<()> {
    for (id, (_, keys)) in ids.iter_mut().zip(SPECIALS) {
        if *id >= n_tokens {
            *id = NONE;
        }
        for key in *keys {
            match metadata.u32(key)? {
                Some(new) if new < n_tokens => *id = new,
                Some(new) => warnings
                    .push(format!("key {key}: token {new} does not exist, the key is ignored")),
                None => {}
            }
        }
    }
    Ok(())
}

/// Finds the roles that the keys did not name and returns the tokens that end a generation.
pub(crate) fn find_roles(tokens: &mut Tokens<'_>, ids: &mut SpecialIds) -> BTreeSet<u32> {
    for (special, texts) in BY_STRING {
        let id = &mut ids[*special as usize];
        if *id != NONE {
            continue;
        }
        if let Some((text, found)) = texts.iter().find_map(|text| Some((text, tokens.id(text)?))) {
            *id = found;
            tokens.make_control(found, text);
        }
    }
    let mut eog = BTreeSet::new();
    for text in EOG {
        if let Some(id) = tokens.id(text) {
            eog.insert(id);
            tokens.make_control(id, text);
        }
    }
    for text in SHOWN {
        if let Some(attr) = tokens.id(text).and_then(|id| tokens.attr(id)) {
            *attr = Attr::USER_DEFINED;
        }
    }
    let of = |special: Special| ids[special as usize];
    eog.extend(
        [
            Special::FimPad,
            Special::FimRep,
            Special::FimSep,
            Special::Eos,
            Special::Eot,
            Special::Eom,
        ]
        .map(of)
        .iter()
        .filter(|&&id| id != NONE),
    );
    remove_false_ends(tokens, &mut eog);
    eog
}

/// Some families use a well-known end string for something else.
fn remove_false_ends(tokens: &mut Tokens<'_>, eog: &mut BTreeSet<u32>) {
    let has = |tokens: &Tokens<'_>, eog: &BTreeSet<u32>, text: &str| {
        tokens.id(text).filter(|id| eog.contains(id))
    };
    let ends = |text: &str| has(tokens, eog, text).is_some();
    // gpt-oss and Solar end a message, not a turn, with <|end|>.
    let calls = ends("<|call|>") || ends("<|calls|>");
    let end_is_text = calls && (ends("<|return|>") || ends("<|flush|>"));
    // Gemma 4 and PLaMo have a normal </s>.
    let s_is_text = ends("<|tool_response>") || ends("<|plamo:eos|>");
    for (text, is_text, attr) in
        [("<|end|>", end_is_text, Attr::USER_DEFINED), ("</s>", s_is_text, Attr::NORMAL)]
    {
        if let Some(id) = has(tokens, eog, text).filter(|_| is_text) {
            eog.remove(&id);
            if let Some(old) = tokens.attr(id) {
                *old = attr;
            }
        }
    }
}

/// Control tokens that their makers call unused.
pub(crate) fn mark_unused(texts: &[&[u8]], attrs: &mut [Attr]) {
    for (text, attr) in texts.iter().zip(attrs) {
        if attr.any(Attr::CONTROL) && text.windows(6).any(|part| part == b"unused") {
            *attr = attr.and(Attr::UNUSED);
        }
    }
}

/// Which tokens swallow the white space beside them; GGUF does not say, so the model's name does.
pub(crate) fn mark_strips(tokens: &mut Tokens<'_>, pre: &str, name: &str, architecture: &str) {
    let contains = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let set = |tokens: &mut Tokens<'_>, text: &str, bit: Attr, on: bool| {
        if let Some(attr) = tokens.id(text).and_then(|id| tokens.attr(id)) {
            *attr = if on { attr.and(bit) } else { attr.without(bit) };
        }
    };
    let name = name.to_ascii_lowercase();
    if contains(pre, &["jina-v2-de", "jina-v2-es", "jina-v2-code", "mmbert"])
        || contains(architecture, &["nomic-bert-moe", "jina-bert-v3"])
    {
        set(tokens, "<mask>", Attr::LSTRIP, true);
    } else if contains(&name, &["phi-3", "phi3"]) {
        for attr in tokens.attrs.iter_mut().filter(|attr| is_cut_out(**attr)) {
            *attr = attr.and(Attr::RSTRIP);
        }
        set(tokens, "</s>", Attr::RSTRIP, true);
        for text in ["<unk>", "<s>", "<|endoftext|>"] {
            set(tokens, text, Attr::RSTRIP, false);
        }
    } else if name.contains("modern-bert") {
        set(tokens, "[MASK]", Attr::LSTRIP, true);
    }
}

/// Whether a token is cut out of a text before the rest is split into words.
pub(crate) fn is_cut_out(attr: Attr) -> bool {
    attr.any(Attr::CONTROL.and(Attr::USER_DEFINED).and(Attr::UNKNOWN))
}
