"""Writes conversations.json: the conversations with which every collected template is rendered. The data are our own.

    python3 testdata/conversations.py > testdata/conversations.json
"""
import json

SYSTEM = {"role": "system", "content": "You are a helpful assistant.  Answer briefly.\n"}
USER = {"role": "user", "content": "What is the weather in Paris?"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city, \"now\" or <later> & more — in °C.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "City's name"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "integer", "minimum": 0, "maximum": 7},
                "where": {
                    "type": "object",
                    "properties": {"lat": {"type": "number"}, "lon": {"type": ["number", "null"]}},
                    "required": ["lat", "lon"],
                },
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
PLAIN = {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}
BARE = {"type": "function", "function": {"name": "ping"}}
ODD = {
    "type": "function",
    "function": {
        "name": "odd_one",
        "description": "Line one\nline two\t'quoted' \u4f60\u597d \U0001f600",
        "parameters": {
            "type": "object",
            "properties": {
                "value": {"anyOf": [{"type": "integer"}, {"type": "string"}], "default": None},
                "items": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number", "default": 0.5}}}},
                "flag": {"type": "boolean", "default": True},
                "ref": {"$ref": "#/$defs/Thing"},
                "map": {"type": "object", "additionalProperties": {"type": "integer"}},
            },
            "required": ["value", "flag"],
            "$defs": {"Thing": {"type": "string", "enum": ["a", "b"]}},
        },
        "return": {"type": "string", "description": "something"},
    },
}


def call(name, args, id="call_1"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": args}}


CALLED = [
    SYSTEM,
    USER,
    {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {"city": "Paris", "days": 2})]},
    {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "{\"temp\": 21.5}"},
]
ANSWERED = CALLED + [{"role": "assistant", "content": "It is 21.5 °C."}, {"role": "user", "content": "Thanks! And tomorrow?"}]

cases = []


def case(name, messages, **more):
    entry = {"name": name, "messages": messages, "add_generation_prompt": True}
    entry.update(more)
    cases.append(entry)


case("user", [USER])
case("system_user", [SYSTEM, USER])
case("no_generation_prompt", [SYSTEM, USER, {"role": "assistant", "content": "Sunny."}], add_generation_prompt=False)
case("turns", [SYSTEM, USER, {"role": "assistant", "content": "Sunny.\n"}, {"role": "user", "content": "  Sure?  "}])
case("assistant_last_prompted", [USER, {"role": "assistant", "content": "Sunny."}])
case("tools", [SYSTEM, USER], tools=[WEATHER, PLAIN])
case("tools_no_system", [USER], tools=[WEATHER])
case("tools_odd", [USER], tools=[ODD, BARE])
case("tool_called", CALLED, tools=[WEATHER])
case("tool_answered", ANSWERED, tools=[WEATHER])
case("tool_answered_no_tools", ANSWERED)
case("tool_call_text_arguments", CALLED[:2] + [{"role": "assistant", "content": None, "tool_calls": [call("get_weather", "{\"city\": \"Paris\"}")]}] + CALLED[3:], tools=[WEATHER])
case("tool_call_without_content", CALLED[:2] + [{"role": "assistant", "tool_calls": [call("get_weather", {})]}] + CALLED[3:], tools=[WEATHER])
case(
    "tool_calls_parallel",
    [
        USER,
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [
                call("get_weather", {"city": "Paris", "where": {"lat": 48.85, "lon": None}, "tags": ["a", "b'c"]}, "abcdefghi"),
                call("get_weather", {"city": "Zürich", "days": 10000000000000000000000, "x": 1e22, "y": 1.0, "z": -0.0, "on": True}, "123456789"),
            ],
        },
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "sunny"},
        {"role": "tool", "tool_call_id": "123456789", "content": "rain <b>&</b>"},
    ],
    tools=[WEATHER, ODD],
)
case(
    "reasoning",
    [
        USER,
        {"role": "assistant", "reasoning_content": "The user asks.\nI call a tool.", "content": "Moment.", "tool_calls": [call("get_weather", {"city": "Paris"})]},
        {"role": "tool", "tool_call_id": "call_1", "content": "21"},
        {"role": "assistant", "reasoning_content": "Now answer.", "reasoning": "Now answer.", "content": "21 degrees."},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "reasoning_content": "Hm.", "content": "Same."},
    ],
    tools=[WEATHER],
    add_generation_prompt=False,
)
case("thinking_in_content", [USER, {"role": "assistant", "content": "<think>\nHm, Paris.\n</think>\n\nSunny."}, {"role": "user", "content": "Why?"}])
case("thinking_off", [SYSTEM, USER], kwargs={"enable_thinking": False, "thinking": False})
case("thinking_on", [SYSTEM, USER], kwargs={"enable_thinking": True, "thinking": True, "reasoning_effort": "high", "thinking_budget": 512})
case("text_parts", [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, {"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]}])
case("image_parts", [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}])
case("audio_video_parts", [{"role": "user", "content": [{"type": "video"}, {"type": "audio", "audio": "x"}, {"type": "text", "text": "Hear?"}]}])
case("tool_result_parts", CALLED[:3] + [{"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "21"}]}], tools=[WEATHER])
case("no_messages", [])
case("empty_content", [{"role": "system", "content": ""}, {"role": "user", "content": ""}])
case("null_content", [{"role": "user", "content": None}])
case("missing_content", [{"role": "user"}])
case("number_content", [{"role": "user", "content": 42}])
case("unicode", [{"role": "system", "content": "Ünïcödé ≤ 你好 ✓"}, {"role": "user", "content": "\u00a0नमस्ते 👩‍👩‍👧 é\u2028x\x85y\t\n"}, {"role": "assistant", "content": "İstanbul ΣΑΣ ß"}, {"role": "user", "content": "\ufeff end\u3000"}])
case("tags_in_content", [{"role": "user", "content": "{{ bos_token }} {% raw %} <|im_start|>user </s> [INST]"}])
case("developer", [{"role": "developer", "content": "Be terse."}, USER], tools=[WEATHER])
case("unknown_role", [{"role": "critic", "content": "Hm."}, USER])
case("two_users", [USER, {"role": "user", "content": "Hello?"}])
case("assistant_first", [{"role": "assistant", "content": "Hi."}, USER])
case("system_late", [USER, {"role": "system", "content": "New rule."}, {"role": "user", "content": "Ok?"}])
case("names", [{"role": "system", "name": "boss", "content": "Rule."}, {"role": "user", "name": "ann", "content": "Hi."}])
case("documents", [USER], documents=[{"title": "Weather", "text": "It is sunny."}, {"title": "Food", "text": "Bread\nand cheese.", "doc_id": 3}])
case("continue", [USER, {"role": "assistant", "content": "The weather is"}], add_generation_prompt=False, continue_final_message=True)
case("continue_spaces", [SYSTEM, USER, {"role": "assistant", "content": " It rains \n"}], add_generation_prompt=False, continue_final_message=True)
case("continue_parts", [USER, {"role": "assistant", "content": [{"type": "text", "text": "The"}, {"type": "text", "text": "sky"}]}], add_generation_prompt=False, continue_final_message=True)
case("continue_thinking", [USER, {"role": "assistant", "content": "<think>\na\n</think>\n\nIt"}], add_generation_prompt=False, continue_final_message=True)
case("continue_nothing", [USER, {"role": "assistant", "content": None}], add_generation_prompt=False, continue_final_message=True)
case("kwargs", [SYSTEM, USER], tools=[WEATHER], kwargs={"date_string": "26 Jul 2024", "tools_in_user_message": False, "custom_tools": None, "builtin_tools": ["web_search", "code_interpreter"], "model_identity": "You are X.", "strftime": 1, "preserve_thinking": True, "clear_thinking": False})
case("long", [m for i in range(12) for m in ({"role": "user", "content": "Question %d\n" % i}, {"role": "assistant", "content": "Answer %d." % i})] + [USER])

print(json.dumps(cases, ensure_ascii=False, indent=1))
