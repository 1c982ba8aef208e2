//! Chat templates: renderings of Python's jinja2, and what hostile templates and messages can do.

use std::path::Path;

use runtime::template::{Clock, RenderOptions, Template};
use serde_json::Value as Json;

fn options() -> RenderOptions {
    RenderOptions {
        bos_token: "<s>".into(),
        eos_token: "</s>".into(),
        clock: Clock::from_source_date_epoch(Some("1767323045")).unwrap(),
        ..RenderOptions::default()
    }
}

#[test]
fn renderings_are_pythons() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/templates.json");
    let cases: Vec<Json> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let (mut n_rendered, mut n_refused) = (0, 0);
    for case in cases {
        let name = format!("{} {}", case["template"], case["chat"]);
        let template = Template::new(case["source"].as_str().unwrap()).unwrap();
        let messages = case["messages"].as_array().unwrap();
        let result = template.render(messages, &options(), None);
        match case["error"].as_str() {
            Some(error) => {
                let message = error.split_once(": ").unwrap().1;
                let found = result.unwrap_err().to_string();
                assert!(found.contains(message), "{name}: {found}");
                n_refused += 1;
            }
            None => {
                let rendered = result.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(rendered.text, case["rendered"].as_str().unwrap(), "{name}");
                n_rendered += 1;
            }
        }
    }
    assert_eq!((n_rendered, n_refused), (46, 2));
}
