"""The protocol as one page that needs nothing else: no script, no font and no host but this one."""

from __future__ import annotations

import base64
import hashlib
import html
import json

from tenure.server.openapi import Schema

_STYLE = """
:root { --text: #222; --back: #fff; --soft: #f5f5f2; --line: #ccc; --link: #0645ad }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --back: #1b1b1b; --soft: #262626; --line: #444; --link: #8ab4f8 } }
body { overflow-wrap: anywhere } body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: var(--text); background: var(--back) }
a { color: var(--link) } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line) } h3 { margin: 1.6rem 0 0; overflow-wrap: anywhere }
code, pre { font: 14px/1.4 ui-monospace, monospace } p { margin: .2rem 0 } .m { display: inline-block; min-width: 4.5rem; font-weight: 700 }
pre { background: var(--soft); padding: .6rem; overflow: auto; white-space: pre-wrap; margin: .4rem 0 } a { text-decoration: underline } nav a { margin-right: .8rem; white-space: nowrap }
.t { overflow-x: auto } table { border-collapse: collapse } td, th { text-align: left; padding: .1rem .8rem .1rem 0; vertical-align: top }
"""

#: What a Content-Security-Policy allows this style by.
STYLE_HASH = "sha256-" + base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

_FIRST = """curl localhost:8400/v1/queues/emails/jobs -d '{"text": "to ada"}'
curl localhost:8400/v1/queues/emails/claims -d '{"wait_ms": 5000}'
curl localhost:8400/v1/queues/emails/settle -d '{"items": [{"verb": "ack", "receipt": "RECEIPT"}]}'"""
#: In the order in which one needs them.
_TAGS = {
    "produce": "Put jobs in.",
    "consume": "Take jobs under a lease, and settle them by the receipt that comes with each.",
    "look": "Look, and change nothing. Any scope does.",
    "mend": "Policies, pauses, replays and purges of a tenant's queues.",
    "operate": "The whole store, for operators.",
}


def docs_page(schema: Schema) -> str:
    by_tag: dict[str, list[str]] = {tag: [] for tag in _TAGS}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append(_operation(path, method, operation))
    info = schema["info"]
    parts = [f"<h1>{_(info['title'])} {_(info['version'])}</h1><p>{_(info['description'])}</p>"]
    named = [*(tag for tag in by_tag if by_tag[tag]), "errors", "messages"]
    parts.append("<nav>" + "".join(f'<a href="#{_(name)}">{_(name)}</a>' for name in named) + "</nav>")
    parts.append(
        "<p>JSON by default, MessagePack with <code>Content-Type</code> and <code>Accept: application/msgpack</code>; payloads are "
        "base64 in JSON. A server that asks for tokens takes them as <code>Authorization: Bearer</code>. "
        'The same as OpenAPI: <a href="/schema">/schema</a>.</p>'
    )
    parts.append(f'<pre tabindex="0" role="group" aria-label="First requests">{_(_FIRST)}</pre>')
    for tag, operations in by_tag.items():
        if operations:
            parts.append(f'<h2 id="{_(tag)}">{_(tag)}</h2><p>{_(_TAGS.get(tag, ""))}</p>' + "".join(operations))
    parts.append(_errors(schema))
    parts.append('<h2 id="messages">messages</h2>')
    for name, component in sorted(schema["components"]["schemas"].items()):
        parts.append(f'<h3 id="{_(name)}"><code>{_(name)}</code></h3>{_component(component)}')
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Tenure</title><style>{_STYLE}</style>"
    )
    body = "\n".join(parts)
    return f'<!doctype html><html lang="en"><head>{head}</head><body><main>{body}</main></body></html>'


def _errors(schema: Schema) -> str:
    """The refusals, which are the same for every operation."""
    some = next(iter(next(iter(schema["paths"].values())).values()))
    rows = "".join(
        f"<tr><td><code>{_(status)}</code></td><td>{_code(_codes(answer['description']))}</td></tr>"
        for status, answer in sorted(some["responses"].items())
        if status >= "400"
    )
    return (
        '<h2 id="errors">errors</h2><p>Whatever is refused is answered with a <a href="#Problem"><code>Problem</code></a>; its '
        f"<code>code</code> says which.</p>{_table(rows)}"
    )


def _codes(description: str) -> str:
    return ", ".join(f"`{code}`" for code in description.removeprefix("code: ").split(", "))


def _operation(path: str, method: str, operation: Schema) -> str:
    lines = [f'<h3><code><span class="m">{method.upper()}</span>{_(path)}</code></h3>']
    lines.append(f"<p>{_(operation['summary'])} {_code(operation['description'])}</p>")
    query = [p for p in operation["parameters"] if p["in"] == "query"]
    if query:
        rows = "".join(f"<tr><td><code>{_(p['name'])}</code></td><td>{_type(p['schema'])}</td></tr>" for p in query)
        lines.append(f"{_table(rows)}")
    asks = ""
    if "requestBody" in operation:
        asks = f"asks {_type(operation['requestBody']['content']['application/json']['schema'])} · "
    content = operation["responses"]["200"]["content"]
    answers = _type(content["application/json"]["schema"]) if "application/json" in content else _(", ".join(content))
    lines.append(f"<p>{asks}answers {answers}</p>")
    sample = operation["x-codeSamples"][0]["source"]
    lines.append(
        f'<pre tabindex="0" role="group" aria-label="Example of {_(operation["operationId"])}">{_(sample)}</pre>'
    )
    return "".join(lines)


def _component(component: Schema) -> str:
    text = f"<p>{_(component['description'])}</p>" if "description" in component else ""
    fields = component.get("properties")
    if not fields:
        return text + f"<details><summary>schema</summary><pre>{_(json.dumps(component, indent=1))}</pre></details>"
    needed = set(component.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{_(name)}</code></td><td>{_type(field)}</td><td>{'' if name in needed else _default(field)}</td></tr>"
        for name, field in fields.items()
    )
    return text + f"{_table(rows)}"


def _table(rows: str) -> str:
    """It scrolls where it is wider than the window: by the keyboard, too."""
    return f'<div class="t" tabindex="0" role="group" aria-label="Fields"><table>{rows}</table></div>'


def _default(field: Schema) -> str:
    return f"default {_(json.dumps(field['default']))}" if "default" in field else "optional"


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f'<a href="#{_(name)}"><code>{_(name)}</code></a>'
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    if schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        return "list of " + _type(schema["items"])
    if "enum" in schema:
        return ", ".join(f"<code>{_(str(choice))}</code>" for choice in schema["enum"])
    kind = schema.get("contentEncoding") or schema.get("type") or "anything"
    if "minimum" in schema and "maximum" in schema:
        return f"{_(str(kind))}, {schema['minimum']:,} to {schema['maximum']:,}"
    return _(str(kind))


def _code(text: str) -> str:
    first, *rest = _(text).split("`")
    return first + "".join(f"<code>{part}" if n % 2 == 0 else f"</code>{part}" for n, part in enumerate(rest))


def _(text: str) -> str:
    return html.escape(text)
