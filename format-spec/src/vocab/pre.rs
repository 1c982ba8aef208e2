//! Pre-tokenizers: which rule splits a text into words, by `tokenizer.ggml.pre`.
//!
//! Names and switches are llama.cpp's. Several names share a rule; a rule's id is part of the
//! format. To add a rule, add a line to each of the two tables here and write its scanner in the
//! runtime.

use super::Flags;

macro_rules! splits {
    ($($id:literal => $variant:ident, $doc:literal;)*) => {
        /// How a text is split into words before merging. Discriminants are part of the format.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Split {
            $(#[doc = $doc] $variant = $id,)*
        }

        impl Split {
            /// Every rule.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub(crate) fn from_id(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

splits! {
    0 => Whole, "No split (SentencePiece).";
    1 => Default, "llama.cpp's default: punctuation, GPT-2's rule, digits by three.";
    2 => Gpt2, "GPT-2's rule.";
    3 => DigitsGpt2, "Each digit alone, then GPT-2's rule (StarCoder, SmolLM).";
    4 => Llama3, "Llama 3's rule: digits by up to three.";
    5 => Qwen2, "Qwen 2's rule: each digit alone.";
    6 => Qwen35, "Qwen 2's rule with combining marks in words.";
    7 => Falcon, "Punctuation, GPT-2's rule, digits by three.";
    8 => DeepseekCoder, "DeepSeek Coder's rules.";
    9 => DeepseekV3, "DeepSeek V3's rules.";
    10 => Tekken, "Mistral's Tekken rule.";
    11 => Gpt4o, "GPT-4o's rule.";
    12 => SeedCoder, "Qwen 2's rule with newlines apart from punctuation.";
    13 => Poro, "Poro's and BLOOM's rule.";
    14 => Viking, "Poro's rule, then each digit alone.";
    15 => MiniCpm5, "Digits by three, then Llama 3's rule.";
    16 => Ufakzeka, "Qwen 2's rule without English contractions.";
    17 => Lines, "Newline runs apart, nothing else (Gemma 4).";
}

/// One name of `tokenizer.ggml.pre`.
pub(crate) struct Pre {
    pub(crate) split: Split,
    pub(crate) flags: Flags,
    /// Whether there is no bos token unless the file names one.
    pub(crate) no_default_bos: bool,
}

const CLEAN: Flags = Flags::CLEAN_SPACES;
const KEEP: Flags = Flags(0);
const fn both(a: Flags, b: Flags) -> Flags {
    Flags(a.0 | b.0)
}
const WORDS: Flags = Flags::IGNORE_MERGES;

/// (names, rule, switches besides `BYTE_ENCODED`)
const TABLE: &[(&[&str], Split, Flags)] = &[
    (&["default"], Split::Default, CLEAN),
    (&["minicpm5"], Split::MiniCpm5, both(CLEAN, WORDS)),
    (
        &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        Split::Llama3,
        both(CLEAN, both(WORDS, Flags::ADD_BOS)),
    ),
    (&["dbrx", "smaug-bpe", "chatglm-bpe"], Split::Llama3, CLEAN),
    (&["glm4", "glm5"], Split::Llama3, both(CLEAN, WORDS)),
    (&["deepseek-coder"], Split::DeepseekCoder, KEEP),
    (&["deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"], Split::DeepseekV3, KEEP),
    (&["falcon"], Split::Falcon, CLEAN),
    (
        &["starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"],
        Split::DigitsGpt2,
        CLEAN,
    ),
    (&["command-r", "smollm"], Split::DigitsGpt2, KEEP),
    (
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "mpt",
            "olmo",
            "jais",
            "exaone4",
        ],
        Split::Gpt2,
        CLEAN,
    ),
    (&["trillion", "granite-docling"], Split::Gpt2, KEEP),
    (&["stablelm2", "megrez"], Split::Qwen2, CLEAN),
    (
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "hunyuan",
            "solar-open",
            "grok-2",
            "bailingmoe",
            "bailingmoe2",
            "llada-moe",
        ],
        Split::Qwen2,
        KEEP,
    ),
    (&["qwen35"], Split::Qwen35, KEEP),
    (&["poro-chat"], Split::Poro, KEEP),
    (&["bloom", "gpt3-finnish"], Split::Poro, CLEAN),
    (&["viking"], Split::Viking, KEEP),
    (&["tekken"], Split::Tekken, both(WORDS, Flags::ADD_BOS)),
    (&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], Split::Gpt4o, KEEP),
    (&["ufakzeka"], Split::Ufakzeka, KEEP),
    (&["seed-coder"], Split::SeedCoder, KEEP),
    (&["gemma4"], Split::Lines, both(CLEAN, Flags::ESCAPE_SPACES)),
];

/// The entry of `name`.
pub(crate) fn by_name(name: &str) -> Option<Pre> {
    let (_, split, mut flags) = *TABLE.iter().find(|(names, ..)| names.contains(&name))?;
    flags.set(Flags::BYTE_ENCODED, split != Split::Lines);
    let no_default_bos = matches!(name, "chatglm-bpe" | "glm4" | "glm5");
    Some(Pre { split, flags, no_default_bos })
}

/// Every known name, for error messages.
pub(crate) fn names() -> String {
    TABLE.iter().flat_map(|(names, ..)| names.iter().copied()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = TABLE.iter().flat_map(|(names, ..)| names.iter()).collect();
        names.sort();
        let n_names = names.len();
        names.dedup();
        assert_eq!(names.len(), n_names);
    }
}
