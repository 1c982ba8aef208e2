//! Whether a model's chat template can be read at all; rendering it is the runtime's.

use format_spec::vocab::{MAX_TEMPLATE_BYTES, without_generation_tags};

use crate::error::{Error, Result};

/// Where a GGUF has it.
const KEY: &str = "tokenizer.chat_template";

/// Stack that the engine needs to read a template, and for each byte of it: what it nests, it
/// recurses into.
const STACK_BYTES: usize = 8 << 20;
const STACK_BYTES_PER_SOURCE_BYTE: usize = 1024;

/// Checks the syntax of a chat template. Filters, functions and methods are looked up when a template
/// runs, so that what this accepts may still fail then.
///
/// # Errors
/// Why the runtime would refuse it.
pub(crate) fn check(source: &str) -> Result<()> {
    if source.len() > MAX_TEMPLATE_BYTES {
        let problem = format!("has {} bytes, expected at most {MAX_TEMPLATE_BYTES}", source.len());
        return Err(Error::Template { key: KEY, problem });
    }
    let source = without_generation_tags(source);
    let stack_bytes = STACK_BYTES + source.len() * STACK_BYTES_PER_SOURCE_BYTE;
    let parse = move || {
        let environment = minijinja::Environment::new();
        environment.template_from_str(&source).map(|_| ()).map_err(|error| error.to_string())
    };
    let thread = std::thread::Builder::new().stack_size(stack_bytes).spawn(parse);
    let parsed = match thread {
        Ok(thread) => thread.join().unwrap_or_else(|_| Err("the engine gave up".to_owned())),
        Err(error) => return Err(Error::Read { what: format!("key {KEY}"), source: error }),
    };
    parsed.map_err(|problem| Error::Template {
        key: KEY,
        problem: format!("is not valid: {problem}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syntax_is_checked_and_names_are_not() {
        let says = |source: &str| check(source).err().map(|error| error.to_string());
        let sound = "{% for m in messages %}{% generation %}{{ m.content|unheard_of }}\
                     {% endgeneration %}{% if m.role == 'x' %}{% break %}{% endif %}{% endfor %}";
        assert_eq!(says(sound), None);
        for (source, problem) in [
            ("{% for m in messages %}x".to_owned(), "key tokenizer.chat_template is not valid: "),
            ("{{ ".to_owned(), "is not valid: "),
            (format!("{{{{ {}", "(".repeat(200_000)), "is not valid: "),
            (" ".repeat(MAX_TEMPLATE_BYTES + 1), "has 262145 bytes, expected at most 262144"),
        ] {
            let found = says(&source).unwrap_or_default();
            assert!(found.contains(problem), "{found}");
        }
    }
}
