"""Picks the committed sample of the golden data: vLLM's own example templates (Apache-2.0), with the texts that
Python renders from them.

    python testdata/sample.py        after testdata/gather.py --download

Writes sample.json.gz: the entries that gather.py has written for the templates in the folder examples/ of vLLM 0.32.0's
source, in the order of their names. `make golden` collects some 1,000 more templates, whose licences do not let us
commit them.
"""

import glob
import gzip
import hashlib
import json
import os

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "warmpath", "templates")

entries = {}
for path in glob.glob(OUT + "/downloads/sdist/vllm==0.32.0/**/examples/*.jinja", recursive=True):
    digest = hashlib.sha256(open(path, encoding="utf-8", newline="").read().encode()).hexdigest()
    entry = json.load(open(os.path.join(OUT, "golden", digest[:32] + ".json"), encoding="utf-8"))
    entry["name"] = os.path.basename(path)
    for result in entry["results"].values():
        if "error" in result:  # the tests compare only that the render failed, because the message is Python's own
            result["error"] = result["error"].split(":")[0]
    entries[entry["name"]] = entry
data = json.dumps([entries[name] for name in sorted(entries)], ensure_ascii=False, indent=0).encode()
with open(os.path.join(HERE, "sample.json.gz"), "wb") as f:
    with gzip.GzipFile(filename="", fileobj=f, mode="wb", compresslevel=9, mtime=0) as z:
        z.write(data)
print(len(entries), "templates,", len(data), "bytes")
