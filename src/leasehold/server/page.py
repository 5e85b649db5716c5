"""The protocol as one page that needs nothing else: no script, no font and no host but this one."""

from __future__ import annotations

import html
import json
from typing import Any

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc } h3 { margin-bottom: 0 } code, pre { font: 14px/1.4 ui-monospace, monospace }
pre { background: #f5f5f2; padding: .6rem; overflow: auto } .m { display: inline-block; min-width: 4.5rem; font-weight: 700 }
table { border-collapse: collapse } td, th { text-align: left; padding: .1rem .8rem .1rem 0; vertical-align: top } details { margin: .3rem 0 }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #1b1b1b } pre { background: #262626 } }
"""


def docs_page(schema: dict[str, Any]) -> str:
    by_tag: dict[str, list[str]] = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append(_operation(path, method, operation))
    info = schema["info"]
    parts = [f"<h1>{_(info['title'])} {_(info['version'])}</h1><p>{_(info['description'])}</p>"]
    parts.append(
        "<p>JSON by default, MessagePack with <code>Content-Type</code> and <code>Accept: application/msgpack</code>; payloads are "
        'base64 in JSON. The same as OpenAPI: <a href="/schema">/schema</a>.</p>'
    )
    for tag, operations in by_tag.items():
        parts.append(f"<h2>{_(tag)}</h2>" + "".join(operations))
    parts.append("<h2>messages</h2>")
    for name, component in sorted(schema["components"]["schemas"].items()):
        parts.append(f'<h3 id="{_(name)}"><code>{_(name)}</code></h3>{_component(component)}')
    body = "\n".join(parts)
    return f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Leasehold</title><style>{_STYLE}</style><body>{body}</body></html>'


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    lines = [f'<h3><code><span class="m">{method.upper()}</span>{_(path)}</code></h3>']
    lines.append(f"<p>{_(operation['summary'])} {_code(operation['description'])}</p>")
    query = [p for p in operation["parameters"] if p["in"] == "query"]
    if query:
        rows = "".join(f"<tr><td><code>{_(p['name'])}</code></td><td>{_type(p['schema'])}</td></tr>" for p in query)
        lines.append(f"<table>{rows}</table>")
    if "requestBody" in operation:
        lines.append(f"<p>asks: {_type(operation['requestBody']['content']['application/json']['schema'])}</p>")
    lines.append(f"<p>answers: {_type(operation['responses']['200']['content']['application/json']['schema'])}</p>")
    return "".join(lines)


def _component(component: dict[str, Any]) -> str:
    text = f"<p>{_(component['description'])}</p>" if "description" in component else ""
    fields = component.get("properties")
    if not fields:
        return text + f"<details><summary>schema</summary><pre>{_(json.dumps(component, indent=1))}</pre></details>"
    needed = set(component.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{_(name)}</code></td><td>{_type(field)}</td><td>{'' if name in needed else _default(field)}</td></tr>"
        for name, field in fields.items()
    )
    return text + f"<table>{rows}</table>"


def _default(field: dict[str, Any]) -> str:
    return f"default {_(json.dumps(field['default']))}" if "default" in field else "optional"


def _type(schema: dict[str, Any]) -> str:
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
