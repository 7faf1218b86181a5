"""Drive the official OpenAI and Anthropic clients from a Go test: one JSON request a line in, one JSON answer a line out.

in:  {"call": "chat" | "completions" | "models", "base": "http://…/v1", "body": {…}, "extra": {…}, "headers": {…}}
out: {"text", "finish", "usage", "headers", "chunks", "tool_calls", "extra"}, for models {"ids"}, and after an exception
     {"error": {"type", "status", "message", "body"}}

in:  {"call": "any", "client": "openai" | "anthropic", "method": "responses.create", "args": […], "body": {…}, "base"}
out: {"value": the result as plain JSON}, for a stream {"events": […]}, for bytes {"value": {"bytes": number}}
An argument {"$file": text} is a file with that content.
"""
import json
import sys

import openai


def plain(model):
    return model.model_dump() if model is not None else None


def answer(request):
    client = openai.OpenAI(base_url=request["base"], api_key="none", max_retries=0, timeout=request.get("timeout", 120))
    if request["call"] == "models":
        return {"ids": [m.id for m in client.models.list().data]}
    endpoint = client.chat.completions if request["call"] == "chat" else client.completions
    raw = endpoint.with_raw_response.create(
        **request["body"], extra_body=request.get("extra"), extra_headers=request.get("headers"))
    out = {"text": "", "finish": None, "usage": None, "chunks": 0, "tool_calls": [], "headers": dict(raw.headers)}
    parsed = raw.parse()
    if not request["body"].get("stream"):
        choice = parsed.choices[0]
        out["text"] = choice.message.content or "" if request["call"] == "chat" else choice.text
        out["finish"], out["usage"] = choice.finish_reason, plain(parsed.usage)
        if request["call"] == "chat":
            out["tool_calls"] = [plain(c) for c in choice.message.tool_calls or []]
        out["extra"] = {k: v for k, v in (parsed.model_extra or {}).items() if k != "prompt_logprobs"}
        return out
    for chunk in parsed:
        out["chunks"] += 1
        if chunk.usage is not None:
            out["usage"] = plain(chunk.usage)
        for choice in chunk.choices:
            piece = choice.delta.content if request["call"] == "chat" else choice.text
            out["text"] += piece or ""
            out["finish"] = choice.finish_reason or out["finish"]
            if request["call"] == "chat":
                out["tool_calls"] += [plain(c) for c in choice.delta.tool_calls or []]
    return out


def any_method(request):
    """Call a method of a client by its name."""
    limits = {"max_retries": 0, "timeout": 120}
    if request["client"] == "anthropic":
        import anthropic  # only here, because it takes a second

        target = anthropic.Anthropic(base_url=request["base"], api_key="none", **limits)
    else:
        target = openai.OpenAI(base_url=request["base"], api_key="none", **limits)
    for name in request["method"].split("."):
        target = getattr(target, name)
    named = {k: file_of(v) for k, v in request.get("body", {}).items()}
    result = target(*request.get("args", []), **named)
    if hasattr(result, "iter_bytes"):
        return {"value": {"bytes": len(result.read())}}
    if type(result).__name__ == "Stream":
        return {"events": [event.model_dump(mode="json", warnings=False) for event in result]}
    if hasattr(result, "model_dump"):
        return {"value": result.model_dump(mode="json", warnings=False)}
    return {"value": result}


def file_of(v):
    if isinstance(v, dict) and "$file" in v:
        return ("file.bin", v["$file"].encode(), "application/octet-stream")
    return v


for line in sys.stdin:
    try:
        call = json.loads(line)
        reply = any_method(call) if call["call"] == "any" else answer(call)
    except Exception as e:  # the test gets the error, and the driver must serve further calls
        reply = {"error": {"type": type(e).__name__, "status": getattr(e, "status_code", 0), "message": str(e),
                           "body": getattr(e, "body", None)}}
    print(json.dumps(reply), flush=True)
