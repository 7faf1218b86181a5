"""Renders chat requests with an installed engine's own request handling, for the tests of internal/tokens/inprocess.

    <vllm venv>/bin/python testdata/engine_requests.py vllm > testdata/requests_vllm.json
    <sglang venv>/bin/python testdata/engine_requests.py sglang > testdata/requests_sglang.json

Only the engine's protocol classes and message handling run, with a tiny tokenizer (TOKENIZER, a directory with any
tokenizer that transformers loads); no model and no server. Bodies and templates are our own, so the results are
committed. Made with vLLM 0.32.0 and SGLang 0.5.23.
"""

import json
import logging
import os
import sys
import types

TOKENIZER = os.environ.get("TOKENIZER", os.path.expanduser("~/.cache/warmpath/engines/vllm/tiny-llama"))

DUMP = "{{ messages | tojson }}|{{ tools | tojson }}|{{ documents | tojson }}|{{ add_generation_prompt }}|{{ reasoning_effort }}|{{ enable_thinking }}|{{ thinking }}|{{ x }}"
TEMPLATES = {
    "string": DUMP,
    "openai": "{% for message in messages %}{% for part in message.content %}{% endfor %}{% endfor %}" + DUMP,
    "developer": "{# 'developer' #}" + DUMP,
    "pairs": "{% for m in messages %}{{ m.tool_call_id }}{% endfor %}" + DUMP,
    "flat": "{% for t in tools or [] %}{{ t.name + '!' }}{% endfor %}" + DUMP,
    "chat": "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
    "trimming": "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>{% endfor %}",
    "refusing": "{{ raise_exception('no ' ~ messages[0].role) }}",
}

# the template of the tiny model that the tests with real engines serve (test/engines)
HERE = os.path.dirname(os.path.abspath(__file__))
TEMPLATES["engine"] = open(os.path.join(HERE, "chat_template.jinja"), encoding="utf-8").read()

USER = {"role": "user", "content": "hi"}


def fn(args, id="c1", **more):
    return dict({"type": "function", "id": id, "function": dict({"name": "f", "arguments": args}, **more)})


def tool(**more):
    return {"type": "function", "function": dict({"name": "f", "parameters": {"type": "object", "properties": {"b": {}, "a": {}}}}, **more)}


def called(*calls, **more):
    return [USER, dict({"role": "assistant", "tool_calls": list(calls)}, **more)]


def parts(*ps):
    return {"messages": [{"role": "user", "content": list(ps)}]}


T = lambda s, **more: dict({"type": "text", "text": s}, **more)

BODIES = [
    {"messages": [USER]},
    {"messages": [{"content": "hi", "role": "user", "name": "ann", "foo": 1}]},
    {"messages": []},
    {"messages": [{"role": "system", "content": "s"}, USER], "add_generation_prompt": False},
    {"messages": [USER, {"role": "assistant", "content": "yo"}]},
    {"messages": [USER, {"role": "assistant", "content": "yo"}], "add_generation_prompt": False},
    {"messages": [USER, {"role": "assistant", "content": "yo "}], "add_generation_prompt": False, "continue_final_message": True},
    {"messages": [USER, {"role": "assistant", "content": " yo \n"}], "add_generation_prompt": False, "continue_final_message": True},
    {"messages": [USER, {"role": "assistant", "content": "yo"}], "continue_final_message": True},
    {"messages": [USER, {"role": "assistant", "content": "yo"}], "add_generation_prompt": True, "continue_final_message": True},
    {"messages": [USER], "add_generation_prompt": False, "continue_final_message": True},
    {"messages": [USER, {"role": "assistant", "content": [T("a"), T("b")]}], "add_generation_prompt": False, "continue_final_message": True},
    {"messages": [USER, {"role": "assistant", "content": ""}], "add_generation_prompt": False, "continue_final_message": True},
    parts(T("a"), T("b")),
    parts(T("a", cache_control={"type": "ephemeral"}), {"text": "b", "type": "text", "more": 1}),
    parts("a", T("b")),
    parts("a", "b"),
    parts(T("")),
    parts(T(""), T("x"), T("")),
    parts(),
    parts({"type": "input_text", "text": "a"}),
    parts({"type": "refusal", "refusal": "no"}),
    parts({"type": "thinking", "thinking": "hm"}, T("x")),
    parts({"type": "tool_reference", "name": "f"}, T("x")),
    parts({"text": "x"}),
    parts({"type": "nonsense", "text": "x"}),
    {"messages": [{"role": "system", "content": [T("a"), T("b")]}, USER]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [USER, {"role": "assistant"}]},
    {"messages": [USER, {"role": "assistant", "content": None}, USER]},
    {"messages": [{"role": "developer", "content": "d"}, USER]},
    {"messages": [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, USER, {"role": "developer", "content": "e"}]},
    {"messages": [{"role": "developer", "content": "d", "tools": [tool()]}, USER]},
    {"messages": [{"role": "developer", "content": [T("d"), T("e")]}, {"role": "system", "content": [T("s")]}, USER]},
    {"messages": [{"role": "critic", "content": "d"}, USER]},
    {"messages": [{"role": "User", "content": "d"}]},
    {"messages": [{"role": "System", "content": "d"}, USER]},
    {"messages": [{"role": "function", "name": "f", "content": "d"}, USER]},
    {"messages": [{"role": "system", "content": "x-anthropic-billing-header: cch=1\nRest."}, USER]},
    {"messages": [{"role": "system", "content": [T("x-anthropic-billing-header: a"), T("b")]}, USER]},
    {"messages": called(fn("{\"b\": 1, \"a\": 2.0}"))},
    {"messages": called(fn("{\"b\": 1, \"a\": 2.0}"), content="") + [USER]},
    {"messages": called(fn("{\"b\": 1}"), content=None, reasoning_content="hm") + [USER]},
    {"messages": called(fn("{}"), content="x", reasoning="hm") + [USER]},
    {"messages": called(fn("{}"), content="x", reasoning="r", reasoning_content="rc") + [USER]},
    {"messages": [USER, {"role": "assistant", "content": "x", "reasoning_content": "rc"}, USER]},
    {"messages": [USER, {"role": "assistant", "content": "x", "reasoning_content": None}, USER]},
    {"messages": [USER, {"role": "assistant", "content": "x", "reasoning_content": ""}, USER]},
    {"messages": called(fn(""), content="x") + [USER]},
    {"messages": called(fn("not json"), content="x") + [USER]},
    {"messages": called(fn("[1]"), content="x") + [USER]},
    {"messages": called(fn("{\"a\": NaN}"), content="x") + [USER]},
    {"messages": called(fn("{\"a\": 1, \"a\": 2, \"u\": \"\\u00e9\"}"), content="x") + [USER]},
    {"messages": called(fn("{\"big\": 123456789012345678901234567890}"), content="x") + [USER]},
    {"messages": called(fn({"a": 1}), content="x") + [USER]},
    {"messages": called({"id": "c", "function": {"arguments": "{}", "name": "f"}}, content="x") + [USER]},
    {"messages": called({"type": "function", "function": {"arguments": "{}", "name": "f"}}, content="x") + [USER]},
    {"messages": called(dict(fn("{}"), index=0, extra={"k": 1}), content="x") + [USER]},
    {"messages": called(fn("{}", zz=1), content="x") + [USER]},
    {"messages": called(content="x") + [USER]},
    {"messages": [USER, {"role": "assistant", "content": "x", "tool_calls": None}, USER]},
    {"messages": called(fn("{}", "c1"), fn("{}", "c2")) + [{"role": "tool", "tool_call_id": "c2", "content": "two"}, {"role": "tool", "tool_call_id": "c1", "content": "one"}]},
    {"messages": called(fn("{}")) + [{"role": "tool", "tool_call_id": "c1", "content": [T("a"), T("b")]}]},
    {"messages": called(fn("{}")) + [{"role": "tool", "content": [T("a"), {"type": "tool_reference", "name": "f"}], "tool_call_id": "c1"}]},
    {"messages": called(fn("{}")) + [{"role": "tool", "tool_call_id": "c1", "content": []}]},
    {"messages": called(fn("{}")) + [{"role": "tool", "tool_call_id": "c1", "name": "f", "content": "r"}]},
    {"messages": called(fn("{}")) + [{"role": "tool", "tool_call_id": "c1"}]},
    {"messages": [USER], "tools": [tool()]},
    {"messages": [USER], "tools": []},
    {"messages": [USER], "tools": None},
    {"messages": [USER], "tools": [{"function": {"parameters": {"type": "object"}, "name": "a", "zzz": 1, "strict": True, "description": None}, "type": "function", "more": 2}]},
    {"messages": [USER], "tools": [tool(strict=False, description="d"), tool(strict=None)]},
    {"messages": [USER], "tools": [{"type": "function", "function": {"name": "bare"}}]},
    {"messages": [USER], "tools": [{"function": {"name": "untyped"}}]},
    {"messages": [USER], "tools": [dict(tool(), defer_loading=True)]},
    {"messages": [USER], "tools": [tool(defer_loading=False)]},
    {"messages": [USER], "tools": [tool(parameters={"type": "dict", "properties": {"a": {"type": "varchar"}, "b": {"type": ["int", "NULL", "str", "text"]}, "c": {"anyOf": [{"type": "float8"}, {"type": "odd"}], "items": [{"type": "List"}]}}})]},
    {"messages": [USER], "tools": [tool()], "tool_choice": "none"},
    {"messages": [USER], "tools": [tool()], "tool_choice": "auto"},
    {"messages": [USER], "tools": [tool()], "tool_choice": "required"},
    {"messages": [USER], "tools": [tool()], "tool_choice": None},
    {"messages": [USER], "tools": [tool(), {"type": "function", "function": {"name": "g"}}], "tool_choice": {"type": "function", "function": {"name": "g"}}},
    {"messages": [USER], "tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "nope"}}},
    {"messages": [USER], "tool_choice": "auto"},
    {"messages": [USER], "tool_choice": "none"},
    {"messages": [USER], "documents": [{"title": "t", "text": "x"}]},
    {"messages": [USER], "documents": [{"title": "t", "n": 1}]},
    {"messages": [USER], "documents": []},
    {"messages": [USER], "reasoning_effort": "low"},
    {"messages": [USER], "reasoning_effort": "none"},
    {"messages": [USER], "reasoning_effort": "extreme"},
    {"messages": [USER], "reasoning_effort": 0.5},
    {"messages": [USER], "reasoning_effort": None},
    {"messages": [USER], "reasoning": {"effort": "high"}},
    {"messages": [USER], "reasoning": {"enabled": True}},
    {"messages": [USER], "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [USER], "chat_template_kwargs": {"x": [1, 2.0, None, True], "y": 2}},
    {"messages": [USER], "chat_template_kwargs": {"reasoning_effort": "mine"}},
    {"messages": [USER], "chat_template_kwargs": {"reasoning_effort": "mine"}, "reasoning_effort": "low"},
    {"messages": [USER], "chat_template_kwargs": {"add_generation_prompt": False}},
    {"messages": [USER], "chat_template_kwargs": {"documents": [{"a": "b"}]}},
    {"messages": [USER], "chat_template_kwargs": {"documents": [{"a": "b"}]}, "documents": [{"title": "t", "text": "x"}]},
    {"messages": [USER], "chat_template_kwargs": {"tools": [{"a": 1}]}},
    {"messages": [USER], "chat_template_kwargs": {"chat_template": "x"}},
    {"messages": [USER], "chat_template_kwargs": None},
    {"messages": [USER], "chat_template_kwargs": {"x": None, "thinking": "auto"}},
    {"messages": [USER], "chat_template_kwargs": {"x": False, "messages": []}},
    {"messages": [USER], "chat_template_kwargs": {"bos_token": "B", "x": 1.0}},
    {"messages": [USER], "reasoning": {"effort": "nonsense"}},
    {"messages": [USER], "reasoning": {"effort": 0.25, "enabled": "yes"}},
    {"messages": [{"role": "tool", "content": None, "tool_call_id": "x"}, USER]},
    {"messages": [{"role": "system", "content": None}, USER]},
    {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, T("x")]}, USER]},
    {"messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "r"}, T("x")]}, USER]},
    {"messages": [{"role": "assistant", "content": "x", "prefix": True, "phase": "final_answer"}, USER]},
    {"messages": [{"role": "user", "content": "x", "task": "t"}, {"role": "assistant", "content": "y", "name": "n", "refusal": None, "audio": None}, USER]},
    {"messages": [{"role": "user", "content": "x", "reasoning": "r", "reasoning_content": "q"}]},
    {"messages": [USER], "model": "m", "temperature": 0.5, "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}, "stop": ["x"], "n": 1, "seed": 1, "user": "u", "logprobs": False},
    {"messages": [USER, {"role": "assistant", "content": "yo"}], "add_generation_prompt": False, "chat_template_kwargs": {"continue_final_message": True}},
    {"messages": [USER], "chat_template": "T{{ messages[0].content }}"},
]


def vllm():
    from transformers import AutoTokenizer
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.renderers import hf
    from vllm.renderers.chat_utils import parse_chat_messages

    tok = AutoTokenizer.from_pretrained(TOKENIZER)
    config = types.SimpleNamespace(multimodal_config=None, enable_prompt_embeds=False)

    def render(request, template):
        # the steps of OnlineRenderer.render_chat and HfRenderer.render_messages that touch text
        tools = None if request.tools is None else [t.model_dump() for t in request.tools]
        params = request.build_chat_params(None, "auto").with_defaults(dict(tools=tools, tokenize=False))
        template = params.chat_template or template
        conversation, _, _ = parse_chat_messages(request.messages, config, content_format=hf._detect_content_format(template, default="string"))
        kwargs = params.get_apply_chat_template_kwargs()
        kwargs["chat_template"] = template
        return hf.safe_apply_chat_template(config, tok, conversation, **kwargs)

    def run(body, template):
        return render(ChatCompletionRequest.model_validate(body), template)

    run.render, run.config, run.tokenizer = render, config, tok
    return run


def sglang():
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
    from sglang.srt.function_call.utils import normalize_json_schema_types
    from sglang.srt.parser import jinja_template_utils as utils
    from transformers import AutoTokenizer

    tok = AutoTokenizer.from_pretrained(TOKENIZER)

    def render(request, template):
        if not request.messages:
            raise ValueError("Messages cannot be empty.")
        for t in (request.tools or []):
            if t.function.parameters is not None:
                normalize_json_schema_types(t.function.parameters)  # as _validate_request does
        s = object.__new__(OpenAIServingChat)
        s.default_chat_template_kwargs = None
        s.is_minimax_m3 = s.is_gpt_oss = s.is_gemma4 = False
        s.reasoning_parser = s.tool_call_parser = s.chat_encoding_spec = None
        s._encoding_adapter = s._reasoning_detector = None
        s._prompt_text_round_trip_is_lossy = False
        s._tokenizer_auto_adds_specials = True
        tok.chat_template = template
        s.tokenizer_manager = types.SimpleNamespace(tokenizer=tok, served_model_name="x")
        s.template_manager = types.SimpleNamespace(
            chat_template_name=None, reasoning_config=None, python_chat_template=None, force_reasoning=False,
            jinja_template_content_format=utils.detect_jinja_template_content_format(template),
            jinja_template_may_reorder_tool_results=utils.jinja_template_may_reorder_tool_results(template))
        got = {}

        def render(messages, *, tools, template_kwargs, encode_kwargs, use_cache, add_generation_prompt=True):
            got["text"] = tok.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt,
                                                  tools=tools, return_dict=False, **template_kwargs)
            return [], None

        s._render_and_encode_chat_template = render
        s._append_assistant_prefix_to_prompt_ids = lambda ids, prefix: got.__setitem__("prefix", prefix) or ids
        s._encode_messages = lambda *args, **kwargs: None
        s._process_messages(request, False)
        return got["text"] + got.get("prefix", "")

    def run(body, template):
        return render(ChatCompletionRequest.model_validate(body), template)

    run.render = render
    return run


def main():
    logging.disable(logging.CRITICAL)
    real, sys.stdout = sys.stdout, sys.stderr
    run = {"vllm": vllm, "sglang": sglang}[sys.argv[1]]()
    results = []
    for body in BODIES:
        entry = {"body": json.dumps(body, ensure_ascii=False), "results": {}}
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
