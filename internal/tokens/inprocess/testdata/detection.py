"""Prints, for each collected template, the content format that an installed engine detects and, for vLLM, the
template's variables. vLLM passes on only those chat_template_kwargs whose names are variables of the template.

    <vllm venv>/bin/python testdata/detection.py vllm > testdata/detected_vllm.txt
    <sglang venv>/bin/python testdata/detection.py sglang > testdata/detected_sglang.txt

Run tokenizer/jinja/testdata/gather.py first.
"""

import glob
import json
import logging
import os
import sys


def main():
    logging.disable(logging.CRITICAL)
    real, sys.stdout = sys.stdout, sys.stderr
    if sys.argv[1] == "vllm":
        from vllm.renderers import hf

        def detect(t):
            try:
                names = ",".join(sorted(hf._resolve_chat_template_kwargs(t)))
            except Exception:
                names = "!"
            return hf._detect_content_format(t, default="string"), names
    else:
        from sglang.srt.parser.jinja_template_utils import detect_jinja_template_content_format

        def detect(t):
            return detect_jinja_template_content_format(t), ""

    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for path in sorted(glob.glob(cache + "/warmpath/templates/golden/*.json")):
        g = json.load(open(path, encoding="utf-8"))
        real.write("%s %s %s\n" % ((g["sha256"][:16],) + detect(g["template"])))


main()
