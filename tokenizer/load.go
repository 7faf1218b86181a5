package tokenizer

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// ErrNoTokenizer says that a folder has no tokenizer in a known format.
var ErrNoTokenizer = errors.New("no tokenizer.json, tekken.json or .tiktoken file")

// maxFile bounds a tokenizer file in bytes. The bound is about 15 times the size of the largest published file.
const maxFile = 512 << 20

// Load reads the tokenizer in a model's folder. It takes the first of these files: tokenizer.json, Mistral's
// tekken.json, a .tiktoken file. With tokenizer.json and with a .tiktoken file it also uses tokenizer_config.json.
func Load(fsys fs.FS) (*Tokenizer, error) {
	cfg, err := readOptional(fsys, "tokenizer_config.json")
	if err != nil {
		return nil, err
	}
	data, err := readOptional(fsys, "tokenizer.json")
	if err != nil {
		return nil, err
	}
	if data != nil {
		return Parse(data, cfg)
	}
	if data, err = readOptional(fsys, "tekken.json"); err != nil {
		return nil, err
	}
	if data != nil {
		return ParseTekken(data)
	}
	names, err := fs.Glob(fsys, "*.tiktoken")
	if err != nil || len(names) == 0 {
		return nil, ErrNoTokenizer
	}
	if len(names) > 1 {
		return nil, fmt.Errorf("several .tiktoken files: %s: leave the model's file only", strings.Join(names, ", "))
	}
	if data, err = readOptional(fsys, names[0]); err != nil {
		return nil, err
	}
	return ParseTiktoken(data, cfg, names[0])
}

// readOptional returns a file's contents, or nil if the file does not exist.
func readOptional(fsys fs.FS, name string) ([]byte, error) {
	info, err := fs.Stat(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("read %s: %d bytes are over the limit of %d", name, info.Size(), maxFile)
	}
	data, err := fs.ReadFile(fsys, name)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}
