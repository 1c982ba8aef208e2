//! The tokenizer keys of a GGUF, checked.

use std::borrow::Cow;

use super::{Attr, BakeOptions, Flags, Model, Split, pre};
use crate::gguf::{Metadata, ValueType};
use crate::{Error, Result};

pub(super) const MODEL_KEY: &str = "tokenizer.ggml.model";
const PRE_KEY: &str = "tokenizer.ggml.pre";
const TOKENS_KEY: &str = "tokenizer.ggml.tokens";
const SCORES_KEY: &str = "tokenizer.ggml.scores";
const TYPES_KEY: &str = "tokenizer.ggml.token_type";
const MERGES_KEY: &str = "tokenizer.ggml.merges";
const SUPPRESS_KEY: &str = "tokenizer.ggml.suppress_tokens";

/// What kind of tokenizer it is, before any token is read.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) model: Model,
    pub(super) split: Split,
    pub(super) flags: Flags,
    pub(super) pre: String,
    pub(super) no_default_bos: bool,
}

impl Kind {
    /// Defaults of the model, then of its pre-tokenizer, then the file's own switches.
    pub(super) fn read(
        metadata: &Metadata<'_>,
        tokenizer_model: &str,
        options: &BakeOptions,
        warnings: &mut Vec<String>,
    ) -> Result<Self> {
        let pre_name = match &options.pre {
            Some(name) => Some(name.as_str()),
            None => metadata.str(PRE_KEY)?,
        };
        let mut kind = match tokenizer_model {
            "llama" => Self::spm(pre_name),
            "gpt2" => Self::bpe(pre_name, warnings)?,
            "gemma4" => Self::bpe(Some("gemma4"), warnings)?,
            other => {
                return Err(Error::Unsupported {
                    what: format!("key {MODEL_KEY}"),
                    found: format!("tokenizer '{other}'"),
                    supported: "known: llama, gpt2, gemma4".into(),
                });
            }
        };
        for (key, flag) in [
            ("tokenizer.ggml.add_bos_token", Flags::ADD_BOS),
            ("tokenizer.ggml.add_eos_token", Flags::ADD_EOS),
            ("tokenizer.ggml.add_space_prefix", Flags::ADD_SPACE_PREFIX),
        ] {
            if let Some(on) = metadata.bool(key)? {
                kind.flags.set(flag, on);
            }
        }
        if kind.pre == "gemma4" && !kind.flags.has(Flags::ADD_BOS) {
            // Files of this family carry a wrong switch; llama.cpp corrects it too.
            kind.flags.set(Flags::ADD_BOS, true);
            warnings.push("add_bos_token is switched on: Gemma 4 needs it".into());
        }
        Ok(kind)
    }

    fn spm(pre_name: Option<&str>) -> Self {
        let mut flags = Flags::ADD_BOS;
        flags.set(Flags::ADD_SPACE_PREFIX, true);
        flags.set(Flags::ESCAPE_SPACES, true);
        let pre = pre_name.unwrap_or("default").to_owned();
        Self { model: Model::Spm, split: Split::Whole, flags, pre, no_default_bos: false }
    }

    fn bpe(pre_name: Option<&str>, warnings: &mut Vec<String>) -> Result<Self> {
        let name = pre_name.filter(|name| !name.is_empty()).unwrap_or_else(|| {
            warnings.push(format!(
                "key {PRE_KEY} is missing: 'default' is used, the text may be split differently \
                 from what the model was trained with"
            ));
            "default"
        });
        let pre = pre::by_name(name).ok_or_else(|| Error::Unsupported {
            what: format!("key {PRE_KEY}"),
            found: format!("pre-tokenizer '{name}'"),
            supported: format!("known: {}", pre::names()),
        })?;
        Ok(Self {
            model: Model::Bpe,
            split: pre.split,
            flags: pre.flags,
            pre: name.to_owned(),
            no_default_bos: pre.no_default_bos,
        })
    }
}

/// An error about a key that has to be there.
fn missing(key: &str) -> Error {
    Error::Field {
        field: format!("key {key}"),
        offset: 0,
        expected: "an array of str".into(),
        found: "no such key".into(),
    }
}

/// The tokens' strings. An empty one gets a name that no text can hit by chance.
pub(super) fn texts<'a>(
    metadata: &Metadata<'a>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Cow<'a, [u8]>>> {
    let strings = metadata.strs(TOKENS_KEY)?.ok_or_else(|| missing(TOKENS_KEY))?;
    if strings.len() == 0 || u32::try_from(strings.len()).is_err() {
        return Err(metadata.error(TOKENS_KEY, "at least one token"));
    }
    let texts = (0..).zip(strings).map(|(id, text)| {
        if text.is_empty() {
            warnings.push(format!("token {id} is empty"));
            Cow::Owned(format!("[EMPTY_{id}]").into_bytes())
        } else {
            Cow::Borrowed(text)
        }
    });
    Ok(texts.collect())
}

/// The tokens' properties from their GGUF types.
pub(super) fn attrs(
    metadata: &Metadata<'_>,
    texts: &[Cow<'_, [u8]>],
    warnings: &mut Vec<String>,
) -> Result<Vec<Attr>> {
    let Some(types) = metadata.array(TYPES_KEY)? else {
        return Ok(vec![Attr::NORMAL; texts.len()]);
    };
    let ids = types
        .iter_int()
        .filter(|_| types.elem_type() == ValueType::I32 && types.len() >= texts.len())
        .ok_or_else(|| {
            metadata.error(TYPES_KEY, format!("an array of {} or more i32", texts.len()))
        })?;
    let attrs = ids.zip(texts).zip(0u32..).map(|((id, text), token)| match id {
        1 => Attr::NORMAL,
        2 => Attr::UNKNOWN,
        3 => Attr::CONTROL,
        4 => Attr::USER_DEFINED,
        5 => Attr::UNUSED,
        6 if byte_of(text).is_some() => Attr::BYTE,
        6 => {
            let text = String::from_utf8_lossy(text);
            warnings.push(format!("token {token} '{text}' names no byte: it is taken as text"));
            Attr::NORMAL
        }
        _ => Attr::default(),
    });
    Ok(attrs.collect())
}

/// The byte that a token `<0xNN>` stands for.
pub(super) fn byte_of(text: &[u8]) -> Option<u8> {
    let [b'<', b'0', b'x', high, low, b'>'] = *text else { return None };
    let digit = |c: u8| char::from(c).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// The tokens' scores, zeros if the file has none.
pub(super) fn scores(metadata: &Metadata<'_>, n_tokens: usize) -> Result<Vec<f32>> {
    let Some(array) = metadata.array(SCORES_KEY)? else { return Ok(vec![0.0; n_tokens]) };
    let wrong = || metadata.error(SCORES_KEY, format!("an array of {n_tokens} or more f32 or i32"));
    if array.len() < n_tokens {
        return Err(wrong());
    }
    let scores: Vec<f32> = match array.elem_type() {
        ValueType::F32 => array.iter_f32().ok_or_else(wrong)?.take(n_tokens).collect(),
        ValueType::I32 => {
            array.iter_int().ok_or_else(wrong)?.take(n_tokens).map(|v| v as f32).collect()
        }
        _ => return Err(wrong()),
    };
    if scores.iter().any(|score| score.is_nan()) {
        return Err(metadata.error(SCORES_KEY, "scores that are numbers"));
    }
    Ok(scores)
}

/// The merges, `left right` each, by rank.
pub(super) fn merges<'a>(
    metadata: &Metadata<'a>,
) -> Result<impl Iterator<Item = &'a [u8]> + use<'a>> {
    metadata.strs(MERGES_KEY)?.ok_or_else(|| missing(MERGES_KEY))
}

/// Tokens that must not be sampled; ids that do not exist are dropped.
pub(super) fn suppressed(metadata: &Metadata<'_>, n_tokens: u32) -> Result<Vec<u32>> {
    let Some(ids) = metadata.ints(SUPPRESS_KEY)? else { return Ok(Vec::new()) };
    Ok(ids.filter_map(|id| u32::try_from(id).ok()).filter(|&id| id < n_tokens).collect())
}
