//! Chat templates as models bring them, before an engine reads them.

/// Longest template. The longest of public models have 20 KB.
pub const MAX_TEMPLATE_BYTES: usize = 256 << 10;

/// Takes away `{% generation %}` and `{% endgeneration %}`, which mark the assistant's text for
/// training and which only transformers knows.
pub fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        // Behind the opening: `{%}` opens and does not close.
        let (_, inside) = tag.split_at(2);
        let Some(end) = inside.find("%}").map(|at| at + 2) else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        let inner = &tag[2..end];
        let name = inner.trim_matches(['-', '+']).trim();
        if matches!(name, "generation" | "endgeneration") {
            // Comments trim white space as tags do.
            let open = if inner.starts_with('-') { "{#-" } else { "{#" };
            let close = if inner.ends_with('-') { "-#}" } else { "#}" };
            out.push_str(open);
            out.push_str(close);
        } else {
            out.push_str(tag);
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_go_and_nothing_else_does() {
        let plain = without_generation_tags;
        assert_eq!(plain("a{% generation %}b{%- endgeneration -%} c"), "a{##}b{#--#} c");
        for kept in ["{% generations %}", "{%}", "{% if x", "{{ generation }}", "{% if %}"] {
            assert_eq!(plain(kept), kept);
        }
    }
}
