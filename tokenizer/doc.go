// Package tokenizer turns text into the token ids that an engine computes for it, exactly, and back.
//
// Routing on real KV blocks is exact only when the router's tokens are the engine's. The package reads the files that models are published
// with — Hugging Face's tokenizer.json, tiktoken's ranks, Mistral's tekken.json — and gives the ids that the official Rust tokenizer gives,
// id for id, several times as fast:
//
//	t, err := tokenizer.Load(os.DirFS("/models/qwen3"))
//	ids, err := t.Append(nil, "Hello", tokenizer.Options{AddSpecial: true})
//
// It knows nothing of chat: a template renders messages to text first (package jinja). It guesses nothing: a file with a component
// that it does not know is refused with the component's name. It does no I/O but through the fs.FS it is given, and starts no goroutine.
//
// # How it is fast
//
// Patterns become deterministic machines over classes of characters (automaton.go): one table step a character, in one pass, whatever the
// text. Words go through a small cache without locks (wordcache.go). Words that miss it are merged by scanning for the lowest rank, or with
// a heap when long (merges.go). Models without a pre-tokenizer, whose word is the whole text, are cut wherever no merge can join two
// neighbouring characters (bpe.go). A Conversation keeps the ids of texts that grow at the end.
//
// # Unicode
//
// The reference answers questions about characters from tables of four Unicode versions. unicode.bin holds its answers, asked of its own
// crates by testdata/unicode/gen.sh; Go's tables are not used.
//
// # Limits
//
// Truncation and padding of tokenizer.json are left out. Transformers 5 rebuilds the pipeline of some classes (LlamaTokenizer,
// GemmaTokenizer, …) from Python code that may differ from the model's tokenizer.json; the file is followed, and the router's self-check
// against the engine's own tokens is there for such cases.
package tokenizer
