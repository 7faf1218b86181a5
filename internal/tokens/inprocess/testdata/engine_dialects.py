"""Renders requests to /v1/messages and /v1/responses with an installed engine's own code, for the tests of internal/tokens/inprocess.

    <vllm venv>/bin/python testdata/engine_dialects.py vllm > testdata/dialects_vllm.json
    <sglang venv>/bin/python testdata/engine_dialects.py sglang > testdata/dialects_sglang.json

As in engine_requests.py, only the engine's protocol classes and message handling run. Made with vLLM 0.32.0 and SGLang 0.5.23.
"""

import json
import logging
import sys

import engine_requests

TEMPLATES = {name: engine_requests.TEMPLATES[name] for name in ("string", "openai", "chat", "engine")}
TEMPLATES["first"] = ("{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
                      "<{{ m.role }}>{{ m.content }}{% endfor %}{{ enable_thinking }}")

T = lambda s, **more: dict({"type": "text", "text": s}, **more)
USE = lambda id="t1", name="f", **input: {"type": "tool_use", "id": id, "name": name, "input": input}
RESULT = lambda content, id="t1", **more: dict({"type": "tool_result", "tool_use_id": id, "content": content}, **more)
U = lambda *blocks: {"role": "user", "content": list(blocks)}
A = lambda *blocks: {"role": "assistant", "content": list(blocks)}
HI = {"role": "user", "content": "hi"}
THINK = {"type": "thinking", "thinking": "hm", "signature": "s"}
TOOL = {"name": "f", "description": "d", "input_schema": {"properties": {"b": {"type": "string"}, "a": {}}, "required": ["b"]}}
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
BILLING = "x-anthropic-billing-header: cc_version=2.1.9; cc_entrypoint=cli; cch=8f3a1;"


def M(*messages, **more):
    return dict({"model": "m", "max_tokens": 9, "messages": list(messages)}, **more)


MESSAGES = [
    M(HI), M(), M(HI, system="be brief"), M(HI, system=""), M(HI, system="  \n"), M(HI, system=None), M(HI, system=[]),
    M(HI, system=[T("a", **EPHEMERAL), T("b")]), M(HI, system=[T("a"), T(""), T("é\"\n")]),
    M(HI, system=BILLING), M(HI, system=BILLING + "\nbe brief"), M(HI, system=[T(BILLING), T("You are Claude Code."), T("x", **EPHEMERAL)]),
    M(HI, system=[T(BILLING + "\nmore"), T("y")]), M(HI, system=[T("y"), T(BILLING)]), M(HI, system=[THINK, T("x")]),
    M(U(T("a"))), M(U(T("a", **EPHEMERAL), T("b"))), M(U(T(""))), M(U()), M(U(T(""), T("x"))), M(HI, {"role": "assistant", "content": ""}),
    M(HI, A(T("yo")), HI), M(HI, A(T("yo"))), M(HI, {"role": "assistant", "content": "yo"}), M(HI, A(), HI), M(HI, A(T("")), HI),
    M(HI, A(T("I look"), USE(q="é", n=1, f=1.0, e=1e22, b=True, z=None, l=[1, {"k": "v"}], d={})), U(RESULT("ok"))),
    M(HI, A(USE()), U(RESULT([T("one"), T("two")]), T("and now?"))),
    M(HI, A(USE("t1"), USE("t2", "g", a=1)), U(RESULT("r2", "t2"), RESULT("r1", "t1", is_error=True))),
    M(HI, A(USE()), U(T("before"), RESULT("ok"), T("after"))),
    M(HI, A(USE()), U(RESULT([]))), M(HI, A(USE()), U(RESULT(""))), M(HI, A(USE()), U(RESULT(None))), M(HI, A(USE()), U(RESULT([T(""), T("x")]))),
    M(HI, A(USE()), U(RESULT([{"type": "tool_reference", "tool_name": "f"}, T("x")]))),
    M(HI, A(USE()), U(RESULT([T("x"), {"type": "tool_reference", "name": "f"}, {"type": "tool_reference", "tool_name": "g"}]))),
    M(HI, A(USE()), U({"type": "tool_result", "id": "t1", "content": "x"})),
    M(HI, A({"type": "tool_use", "id": "t", "name": "f"}), U(RESULT("x"))),
    M(HI, A(THINK, T("yo")), HI), M(HI, A(THINK, THINK, USE()), U(RESULT("ok"))), M(HI, A(THINK), HI), M(HI, A({"type": "thinking", "thinking": ""}, T("x")), HI),
    M(HI, A({"type": "redacted_thinking", "data": "zz"}, T("yo")), HI), M(U({"type": "redacted_thinking", "data": "zz"}, THINK, T("x"))),
    M(U(USE(), T("x"))), M(U({"type": "document", "source": {}})), M(U({"type": "text"})), M({"role": "tool", "content": "x"}),
    M(HI, {"role": "system", "content": "remember"}, HI), M(HI, {"role": "system", "content": [T("r1"), T("r2")]}, HI, system="s"),
    M(HI, {"role": "system", "content": BILLING}, HI), M(HI, {"role": "system", "content": [T(BILLING), T("r")]}, HI), M(HI, {"role": "system", "content": ""}, HI),
    M(HI, tools=[TOOL]), M(HI, tools=[]), M(HI, tools=None), M(HI, tools=[{"name": "g", "input_schema": {}}]),
    M(HI, tools=[{"name": "g", "input_schema": {"type": "object", "properties": {}}, "description": None}, TOOL]),
    M(HI, tools=[dict(TOOL, strict=True, **EPHEMERAL)]), M(HI, tools=[dict(TOOL, strict=False)]), M(HI, tools=[dict(TOOL, defer_loading=True)]),
    M(HI, tools=[dict(TOOL, type="custom")]), M(HI, tools=[{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}, TOOL]),
    M(HI, tools=[TOOL], tool_choice={"type": "auto"}), M(HI, tools=[TOOL], tool_choice={"type": "any", "disable_parallel_tool_use": True}),
    M(HI, tools=[TOOL, dict(TOOL, name="g")], tool_choice={"type": "tool", "name": "g"}), M(HI, tools=[TOOL], tool_choice={"type": "tool", "name": "nope"}),
    M(HI, tools=[TOOL], tool_choice={"type": "none"}), M(HI, tool_choice={"type": "none"}), M(HI, tool_choice={"type": "any"}), M(HI, tool_choice={"type": "auto"}),
    M(HI, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=4096), M(HI, thinking={"type": "disabled"}), M(HI, thinking={"type": "adaptive"}),
    M(HI, thinking={"type": "adaptive"}, output_config={"effort": "high"}), M(HI, thinking={"type": "disabled"}, output_config={"effort": "high"}),
    M(HI, output_config={"effort": "xhigh"}), M(HI, output_config={"effort": "low"}), M(HI, output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}}),
    M(HI, chat_template_kwargs={"x": 1, "enable_thinking": False}), M(HI, chat_template_kwargs={"thinking": True}, output_config={"effort": "low"}),
    M(HI, metadata={"user_id": "u"}, temperature=0.5, top_k=3, stop_sequences=["x"], stream=True),
]

CALL = lambda id="c1", **more: dict({"type": "function_call", "call_id": id, "name": "f", "arguments": "{\"a\": 1}"}, **more)
OUT = lambda text, **more: dict({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}, **more)
OUTPUT = lambda text, id="c1": {"type": "function_call_output", "call_id": id, "output": text}
REASON = lambda text, **more: dict({"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}, **more)
FN = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object", "properties": {"b": {}, "a": {}}}, "strict": True}
IN = lambda *texts, **more: dict({"role": "user", "content": [{"type": "input_text", "text": t} for t in texts]}, **more)


def R(input, **more):
    return dict({"model": "m", "input": input}, **more)


RESPONSES = [
    R("hi"), R(""), R("hi", instructions="be brief"), R("hi", instructions=""), R([]), R([HI]), R([dict(HI, type="message")]), R([IN("a")]), R([IN("a", "b", type="message")]),
    R([{"role": "developer", "content": "d"}, HI]), R([{"role": "system", "content": "s"}, HI], instructions="i"),
    R([HI, {"role": "assistant", "content": "yo"}, HI]), R([HI, OUT("yo"), HI]), R([HI, OUT("yo", id="m1", status="completed"), HI]), R([HI, OUT("a"), OUT("b"), HI]),
    R([HI, REASON("hm"), OUT("yo"), HI]), R([HI, REASON("hm"), CALL(), OUTPUT("ok")]), R([HI, REASON("hm"), OUT("yo"), CALL(), CALL("c2"), OUTPUT("a"), OUTPUT("b", "c2")]),
    R([HI, CALL(id="c1", status="completed"), OUTPUT("ok"), OUT("done"), HI]), R([HI, OUT("a"), REASON("b"), REASON("c"), HI]), R([REASON("hm"), HI]),
    R([HI, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "sum"}]}, OUT("x"), HI]), R([HI, {"type": "reasoning", "summary": []}, OUT("x"), HI]),
    R([HI, OUT("part", status="incomplete")]), R([HI, {"role": "assistant", "content": [{"type": "output_text", "text": "yo"}]}, HI]),
    R([HI, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, HI]), R([HI, OUT(""), HI]),
    R([HI, OUTPUT([{"type": "input_text", "text": "x"}])]), R([{"type": "item_reference", "id": "x"}]), R([HI, CALL(namespace="n"), OUTPUT("ok")]),
    R("hi", tools=[FN]), R("hi", tools=[]), R("hi", tools=[dict(FN, strict=None, description=None)]), R("hi", tools=[{"type": "function", "name": "g"}]),
    R("hi", tools=[{"type": "function", "name": "g", "parameters": None, "strict": False}]), R("hi", tools=[{"type": "web_search"}, FN]), R("hi", tools=[FN], tool_choice="none"),
    R("hi", tools=[FN], tool_choice="required"), R("hi", tools=[FN], tool_choice={"type": "function", "name": "f"}),
    R("hi", reasoning={"effort": "low"}), R("hi", reasoning={"effort": "none"}), R("hi", reasoning={"summary": "auto"}), R("hi", reasoning=None),
    R("hi", reasoning={"effort": "high"}, chat_template_kwargs={"enable_thinking": False, "x": 2}), R("hi", chat_template_kwargs={"thinking": True}),
    R("hi", text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}), R("hi", previous_response_id="resp_1"), R("hi", truncation="auto"),
    R("hi", stream=True, store=False, max_output_tokens=5, metadata={"a": "b"}, include=["reasoning.encrypted_content"], parallel_tool_calls=False),
]


def vllm():
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages as Serving
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.openai.responses.utils import construct_input_messages, construct_tool_dicts
    from vllm.renderers import hf
    from vllm.renderers.chat_utils import parse_chat_messages

    chat = engine_requests.vllm()
    for name, template in TEMPLATES.items():  # vLLM's test render has no variables but messages
        TEMPLATES[name] = template.replace("tools | tojson", "(tools or none) | tojson").replace("documents | tojson", "(documents or none) | tojson")

    def probed(effort, template):
        try:
            return chat.render(ChatCompletionRequest(messages=[{"role": "user", "content": "Hi"}], reasoning_effort=effort), template)
        except Exception:
            return None

    def quiet(template):  # Serving._probe_disabled_thinking_effort
        none = probed("none", template)
        return "low" if none is None or none in [probed(e, template) for e in ("low", "medium", "high", "xhigh", "max")] else "none"

    def messages(body, template):
        return chat.render(Serving.to_chat_completion_request(AnthropicMessagesRequest.model_validate(body),
                           merge_inline_system=Serving._detect_merge_inline_system(template), disabled_thinking_effort=quiet(template)), template)

    def responses(body, template):  # OnlineRenderer.render_responses
        request = ResponsesRequest.model_validate(body)
        if request.previous_response_id is not None:
            raise ValueError("it depends on earlier answers")
        tools = construct_tool_dicts(request.tools, request.tool_choice)
        params = request.build_chat_params(None, "auto").with_defaults(dict(tools=tools, tokenize=False))
        said = construct_input_messages(request_instructions=request.instructions, request_input=request.input)
        conversation, _, _ = parse_chat_messages(said, chat.config, content_format=hf._detect_content_format(template, default="string"))
        kwargs = params.get_apply_chat_template_kwargs()
        kwargs["chat_template"] = template
        return hf.safe_apply_chat_template(chat.config, chat.tokenizer, conversation, **kwargs)

    return {"messages": messages, "responses": responses}


def sglang():
    import types

    from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from sglang.srt.entrypoints.anthropic.serving import AnthropicServing
    from sglang.srt.parser.template_detection import detect_inline_system_support

    chat = engine_requests.sglang()

    def messages(body, template):
        def refuse(*args):
            raise ValueError("it depends on --reasoning-parser")

        serving = AnthropicServing(types.SimpleNamespace(supports_inline_system=detect_inline_system_support(template),
                                   supports_native_reasoning_history=refuse, apply_reasoning_enabled=refuse))
        return chat.render(serving._convert_to_chat_completion_request(AnthropicMessagesRequest.model_validate(body)), template)

    return {"messages": messages}


def main():
    logging.disable(logging.CRITICAL)
    real, sys.stdout = sys.stdout, sys.stderr
    runs = {"vllm": vllm, "sglang": sglang}[sys.argv[1]]()
    results = []
    for dialect, run in runs.items():
        for body in {"messages": MESSAGES, "responses": RESPONSES}[dialect]:
            entry = {"dialect": dialect, "body": json.dumps(body, ensure_ascii=False), "results": {}}
            for name, template in TEMPLATES.items():
                try:
                    entry["results"][name] = {"text": run(json.loads(entry["body"]), template)}
                except Exception as e:
                    entry["results"][name] = {"error": "%s: %s" % (type(e).__name__, str(e).split("\n")[0][:150])}
            results.append(entry)
    json.dump({"templates": TEMPLATES, "requests": results}, real, ensure_ascii=False, indent=1)
    real.write("\n")


if __name__ == "__main__":
    main()
