"""Writes sglang_route.json: answers of SGLang's own bootstrap server. Run it with SGLang's Python:

    venv/bin/python internal/mockengine/testdata/sglang_route.py > internal/mockengine/testdata/sglang_route.json
"""
import json, socket, time, urllib.error, urllib.request

from sglang.srt.disaggregation.common.conn import CommonKVBootstrapServer

with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
CommonKVBootstrapServer("127.0.0.1", port)


def ask(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request) as r:
            status, answer = r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        status, answer = e.code, e.read().decode()
    return {"method": method, "path": path, "body": body, "status": status, "answer": answer}


for _ in range(100):
    try:
        ask("GET", "/health")
        break
    except OSError:
        time.sleep(0.1)
whole = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
for rank in range(2):
    ask("PUT", "/route", {
        "attn_tp_size": 1, "attn_tp_rank": 0, "attn_cp_size": 1, "attn_cp_rank": 0, "attn_dp_size": 2, "attn_dp_rank": rank,
        "pp_size": 1, "pp_rank": 0, "system_dp_size": 1, "system_dp_rank": 0, "rank_ip": "127.0.0.1", "rank_port": 4000 + rank,
        "page_size": 32, "kv_cache_dtype": "auto", "load_balance_method": "follow_bootstrap_room", "prefill_http_port": 30000,
    })
print(json.dumps([
    ask("GET", "/health"),
    ask("GET", whole),
    ask("GET", "/route?prefill_dp_rank=1&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0"),
    ask("GET", "/route?prefill_dp_rank=7&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0"),
    ask("GET", "/route"),
    ask("POST", "/query_dp_ranks", {"bootstrap_rooms": [11, "12"]}),
    ask("POST", "/register_dp_rank", {"bootstrap_room": 11, "dp_rank": 1}),
    ask("POST", "/query_dp_ranks", {"bootstrap_rooms": [11, 12]}),
], indent=1))
