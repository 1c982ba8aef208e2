#!/usr/bin/env python3
"""Writes templates_more.json: what Python's jinja2 makes of the templates in templates.json with tools, tool calls, extra arguments
and without a generation prompt. Needs jinja2; the environment is the one that transformers sets up.

    python3 make_template_tools.py > templates_more.json
"""

import datetime
import json
import pathlib

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)


class Generation(Extension):
    """`{% generation %}`: marks text for training, prints it as it is."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Wëather & <b> for \"a\" city\\town\n",
        "parameters": {
            "type": "object",
            "properties": {
                "zip": {"type": "string", "description": "the city's code"},
                "days": {"type": "integer", "default": 3, "minimum": None},
                "scale": {"type": "number", "enum": [1.0, 2.5, 1e-7]},
            },
            "required": ["zip"],
            "additionalProperties": False,
        },
    },
}
CALL = {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": {"zip": "8001", "days": 2}}}
CHATS = {
    "tools": ([{"role": "user", "content": "Weather in \"Paris\"?"}], [TOOL, TOOL], {}, True),
    "call": (
        [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call12345", "name": "get_weather", "content": "{\"t\": 3}"},
            {"role": "assistant", "content": "Cold."},
            {"role": "user", "content": "Thanks"},
        ],
        [TOOL],
        {},
        True,
    ),
    "thought": (
        [
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\n4"},
            {"role": "user", "content": " and 3+3? "},
        ],
        None,
        {"enable_thinking": False},
        True,
    ),
    "answered": ([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}], None, {}, False),
}


def main():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    sources = {case["template"]: case["source"] for case in json.loads((HERE / "templates.json").read_text())}
    cases = []
    for template, source in sources.items():
        for chat, (messages, tools, args, prompt) in CHATS.items():
            case = {"template": template, "chat": chat, "messages": messages, "args": args, "add_generation_prompt": prompt}
            variables = {"messages": messages, "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": prompt, **args}
            if tools:
                case["tools"] = variables["tools"] = tools
            try:
                case["rendered"] = environment.from_string(source).render(**variables)
            except (TypeError, jinja2.exceptions.UndefinedError):
                continue  # Python cannot print it; there is nothing to compare.
            except jinja2.exceptions.TemplateError as error:
                case["error"] = f"TemplateError: {error}"
            cases.append(case)
    print(json.dumps(cases, ensure_ascii=False, indent=1))


main()
