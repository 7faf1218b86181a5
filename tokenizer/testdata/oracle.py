"""Encodes texts with the Python tokenizers of an engine's environment. Reads a request from stdin, and writes a list of
ids for each text to stdout."""
import base64, json, sys

request = json.load(sys.stdin)
kind, file, texts = request["kind"], request["file"], request["texts"]
if kind == "tokenizers":
    from tokenizers import Tokenizer
    t = Tokenizer.from_file(file)
    ids = [t.encode(s, add_special_tokens=False).ids for s in texts]
elif kind == "transformers":
    from transformers import AutoTokenizer
    t = AutoTokenizer.from_pretrained(file)
    ids = [t(s)["input_ids"] for s in texts]
elif kind == "tekken":
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    t = Tekkenizer.from_file(file)
    ids = [t.encode(s, bos=True, eos=False) for s in texts]
else:  # tiktoken, with the given pattern and the ranks of a file
    import tiktoken
    ranks = {}
    for line in open(file, "rb"):
        text, rank = line.split()
        ranks[base64.b64decode(text)] = int(rank)
    t = tiktoken.Encoding("test", pat_str=request["pattern"], mergeable_ranks=ranks, special_tokens={})
    ids = [t.encode_ordinary(s) for s in texts]
json.dump(ids, sys.stdout)
