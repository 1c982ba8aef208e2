//! Where the prompt comes from: text, messages or token ids.

use crate::args::Args;
use cli::{ExitCode, Failure, Ui};
use serde_json::{Value, json};
use std::fs;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::Path;

/// A prompt as it was given.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Prompt {
    /// A text: one user message, or the beginning of a text to continue.
    Text(String),
    /// Messages for the chat template.
    Messages(Conversation),
    /// Token ids, used as they stand.
    Ids(Vec<u32>),
}

/// What `--messages` reads.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Conversation {
    /// At least one, each with its role.
    pub(crate) messages: Vec<Value>,
    /// Tool definitions for the template.
    pub(crate) tools: Vec<Value>,
}

/// The prompt that the command line names, or standard input when that is no terminal. Nothing if
/// it is one.
///
/// # Errors
/// If a file cannot be read or does not hold what it should; wrong use without a prompt: if
/// standard input is empty, or a terminal and standard output is none on which to chat.
pub(crate) fn read(args: &Args, ui: &Ui) -> Result<Option<Prompt>, Failure> {
    let given = &args.prompt;
    let unescape = |text: String| if given.escape { unescape(&text) } else { text };
    if let Some(text) = args.positional()?.or_else(|| given.prompt.clone()) {
        return Ok(Some(Prompt::Text(unescape(text))));
    }
    if let Some(path) = &given.messages {
        let (conversation, ignored) = messages(path)?;
        if !ignored.is_empty() {
            ui.warn(format_args!(
                "{}: not used: {} (flags of minfer-run set what they mean)",
                path.display(),
                ignored.join(", ")
            ));
        }
        return Ok(Some(Prompt::Messages(conversation)));
    }
    if let Some(path) = &given.ids {
        return ids(path).map(Prompt::Ids).map(Some);
    }
    if let Some(path) = &given.file {
        return Ok(Some(Prompt::Text(unescape(text_file(path)?))));
    }
    if io::stdin().is_terminal() {
        // The line editor draws on standard output, which is the answer's alone elsewhere.
        if !io::stdout().is_terminal() {
            return Err(Failure::usage(
                "there is no prompt, and to chat standard output must be a terminal (-p, -f or a \
                 pipe gives a prompt)",
            ));
        }
        return Ok(None);
    }
    let text = stdin()?;
    // Text of no length has ids and a rendering, and nobody to answer: what an empty pipe or /dev/null
    // says is nothing. A prompt that is given and empty is one.
    if text.is_empty() && !args.inspect.tokenize && !args.inspect.show_prompt {
        return Err(Failure::usage(
            "no prompt: standard input is empty (PROMPT, -p or -f gives one, -p '' an empty one)",
        ));
    }
    Ok(Some(Prompt::Text(unescape(text))))
}

/// The system message, if there is one.
///
/// # Errors
/// If its file cannot be read.
pub(crate) fn system(args: &Args) -> Result<Option<String>, Failure> {
    match &args.prompt.system_file {
        Some(path) => text_file(path).map(Some),
        None => Ok(args.prompt.system.clone()),
    }
}

/// A message as templates want it.
pub(crate) fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// Reads a text file, or standard input for "-", byte for byte.
///
/// # Errors
/// I/O; input not usable if it is no UTF-8, with the offset.
pub(crate) fn text_file(path: &Path) -> Result<String, Failure> {
    if path == Path::new("-") {
        return stdin();
    }
    let bytes = fs::read(path).map_err(|e| Failure::io(path, "cannot read", &e))?;
    utf8(bytes, &path.display().to_string())
}

fn stdin() -> Result<String, Failure> {
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .read_to_end(&mut bytes)
        .map_err(|e| Failure::new(ExitCode::Io, format!("standard input: cannot read: {e}")))?;
    utf8(bytes, "standard input")
}

fn utf8(bytes: Vec<u8>, name: &str) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|e| {
        let offset = e.utf8_error().valid_up_to();
        Failure::input(format!("{name}: not valid UTF-8 at offset {offset}"))
    })
}

fn json_file(path: &Path) -> Result<Value, Failure> {
    serde_json::from_str(&text_file(path)?)
        .map_err(|e| Failure::input(format!("{}: not valid JSON: {e}", path.display())))
}

/// `[id, ...]`, or an object with such a list under `ids` or `token_ids`.
fn ids(path: &Path) -> Result<Vec<u32>, Failure> {
    let value = json_file(path)?;
    let list = value
        .get("ids")
        .or_else(|| value.get("token_ids"))
        .unwrap_or(&value)
        .as_array()
        .ok_or_else(|| {
            bad(path, "a list of token ids, or an object with one under `ids` or `token_ids`")
        })?;
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    list.iter()
        .enumerate()
        .map(|(i, v)| {
            id(v).ok_or_else(|| bad(path, &format!("a token id at index {i}, found {v}")))
        })
        .collect()
}

/// A list of messages, or an object with one under `messages` and perhaps `tools`; the names of
/// what else is in the object.
fn messages(path: &Path) -> Result<(Conversation, Vec<String>), Failure> {
    let value = json_file(path)?;
    let list =
        value.get("messages").unwrap_or(&value).as_array().ok_or_else(|| {
            bad(path, "a list of messages, or an object with one under `messages`")
        })?;
    let tools = match value.get("tools") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(tools)) => tools.clone(),
        Some(other) => return Err(bad(path, &format!("a list under `tools`, found {other}"))),
    };
    let is_used = |key: &&String| ["messages", "tools"].contains(&key.as_str());
    let keys = value.as_object().into_iter().flat_map(|object| object.keys());
    let ignored = keys.filter(|key| !is_used(key)).cloned().collect();
    if list.is_empty() {
        return Err(bad(path, "at least one message"));
    }
    let messages = list
        .iter()
        .enumerate()
        .map(|(i, message)| {
            if message.get("role").is_some_and(Value::is_string) {
                Ok(flatten(message.clone()))
            } else {
                Err(bad(path, &format!("an object with a `role` at index {i}")))
            }
        })
        .collect::<Result<_, _>>()?;
    Ok((Conversation { messages, tools }, ignored))
}

/// Templates expect text; clients may send it in parts.
fn flatten(mut message: Value) -> Value {
    let parts = message.get("content").and_then(Value::as_array);
    let texts: Option<Vec<&str>> = parts.and_then(|parts| {
        let text = |part: &Value| match part.get("type").and_then(Value::as_str) {
            Some("text") => Some(()),
            _ => None,
        };
        parts.iter().map(|part| text(part).and(part.get("text")).and_then(Value::as_str)).collect()
    });
    if let Some(texts) = texts {
        message["content"] = texts.concat().into();
    }
    message
}

fn bad(path: &Path, expected: &str) -> Failure {
    Failure::input(format!("{}: expected {expected}", path.display()))
}

/// What `-e` understands; anything else stays as it is.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some(c @ ('\\' | '"' | '\'')) => out.push(c),
            Some(c) => out.extend(['\\', c]),
            None => out.push('\\'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn ids_come_as_a_list_or_in_an_object() {
        for text in ["[1, 2]", r#"{"ids": [1, 2]}"#, r#"{"token_ids": [1, 2], "x": 0}"#] {
            assert_eq!(ids(file(text).path()).unwrap(), [1, 2], "{text}");
        }
        for text in ["{}", "[-1]", "[4294967296]", "[1.5]", "[\"1\"]", "[", ""] {
            assert_eq!(ids(file(text).path()).unwrap_err().code, ExitCode::Input, "{text}");
        }
    }

    #[test]
    fn messages_are_checked_and_text_parts_joined() {
        let text = r#"[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]"#;
        let read = |text: &str| messages(file(text).path()).unwrap().0.messages;
        assert_eq!(read(text), [message("user", "ab")]);
        let image = r#"{"messages": [{"role": "user", "content": [{"type": "image"}]}]}"#;
        assert!(read(image)[0]["content"].is_array());
        let tools = r#"{"messages": [{"role": "user"}], "tools": 1}"#;
        for text in ["[]", "[1]", r#"[{"content": "x"}]"#, "{}", tools] {
            assert_eq!(messages(file(text).path()).unwrap_err().code, ExitCode::Input, "{text}");
        }
    }

    #[test]
    fn escapes() {
        assert_eq!(unescape(r#"a\nb\t\\n\"\q\"#), "a\nb\t\\n\"\\q\\");
    }

    #[test]
    fn files_are_read_byte_for_byte() {
        assert_eq!(text_file(file(" a\r\n\n").path()).unwrap(), " a\r\n\n");
        let mut broken = tempfile::NamedTempFile::new().unwrap();
        broken.write_all(b"ab\xff").unwrap();
        let failure = text_file(broken.path()).unwrap_err();
        assert!(failure.message.contains("offset 2") && failure.code == ExitCode::Input);
    }
}
