package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/internal/tokens/inprocess"
)

// modelFlags are the flags that choose a tokenizer, a chat template, and the engine whose behaviour is reproduced.
type modelFlags struct {
	path, kind string
	allowHub   bool
}

func (f *modelFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.path, "model-path", "", "`DIR` with the model's tokenizer and chat template, or hub:ORG/NAME with --allow-hub")
	c.Flags().BoolVar(&f.allowHub, "allow-hub", false, "download the files of a hub:ORG/NAME model; uses "+config.EnvHubToken+" and "+config.EnvHubEndpoint)
	c.Flags().StringVar(&f.kind, "kind", "vllm", "`ENGINE` whose request handling is reproduced: vllm or sglang")
}

func (f *modelFlags) open(c *cobra.Command) (*inprocess.Model, tokens.Kind, error) {
	if f.path == "" {
		return nil, 0, usageError{fmt.Errorf("--model-path is missing: name the folder with tokenizer.json")}
	}
	kinds := map[string]tokens.Kind{"vllm": tokens.VLLM, "sglang": tokens.SGLang}
	kind, ok := kinds[f.kind]
	if !ok {
		return nil, 0, usageError{fmt.Errorf("kind %q is neither vllm nor sglang", f.kind)}
	}
	path := inprocess.Path{Path: f.path}
	if err := path.Check(f.allowHub); err != nil {
		return nil, 0, usageError{fmt.Errorf("--model-path %s: %w", f.path, err)}
	}
	log := slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
	found, err := inprocess.NewHub(config.Hub(inprocess.HubConfig{Allow: f.allowHub}), log).Folders(c.Context(), []inprocess.Path{path})
	if err != nil {
		return nil, 0, err
	}
	m, err := inprocess.OpenOne(found[0].Path)
	return m, kind, err
}

func newTokenize() *cobra.Command {
	var f modelFlags
	var lines, special bool
	var blockSize int
	var blockKeys string
	c := &cobra.Command{
		Use:   "tokenize",
		Short: "Print the token ids, pieces and block keys of a request",
		Long: `Read a request body (chat or completions) from standard input. Print its token ids, their
pieces, and the keys of its full blocks, as the router computes them.

With --json-lines each line of the input is a JSON string, and each line of the output is the JSON
array of its ids. No template is applied, and special tokens only with --add-special-tokens.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			h, err := hasher(blockKeys, blockSize)
			if err != nil {
				return err
			}
			m, kind, err := f.open(c)
			if err != nil {
				return err
			}
			if lines {
				return tokenizeLines(c.InOrStdin(), c.OutOrStdout(), m, special)
			}
			body, err := io.ReadAll(c.InOrStdin())
			if err != nil {
				return fmt.Errorf("read the request: %w", err)
			}
			return tokenizeBody(c.OutOrStdout(), m, kind, body, h)
		},
	}
	f.add(c)
	c.Flags().BoolVar(&lines, "json-lines", false, "read a JSON string from each line, and write a JSON array of ids for each")
	c.Flags().BoolVar(&special, "add-special-tokens", false, "with --json-lines: put the model's special tokens around each text")
	c.Flags().IntVar(&blockSize, "block-size", 16, "`TOKENS` in a block")
	c.Flags().StringVar(&blockKeys, "block-keys", block.XXH3.String(), "`ALGORITHM` of the keys, as in routing.block_keys: xxh3 or fnv1a")
	return c
}

// hasher returns the hasher that the flags of block keys name.
func hasher(keys string, size int) (*block.Hasher, error) {
	algorithm, err := block.ParseAlgorithm(keys)
	if err != nil {
		return nil, usageError{fmt.Errorf("--block-keys: %w", err)}
	}
	h, err := block.NewHasher(algorithm, size)
	if err != nil {
		return nil, usageError{fmt.Errorf("--block-size: %w", err)}
	}
	return h, nil
}

// maxLine bounds a line of --json-lines, in bytes.
const maxLine = 256 << 20

func tokenizeLines(in io.Reader, out io.Writer, m *inprocess.Model, special bool) error {
	w := bufio.NewWriter(out)
	scan := bufio.NewScanner(flushing{in, w})
	scan.Buffer(make([]byte, 64<<10), maxLine)
	var ids []block.Token
	var line []byte
	for n := 1; scan.Scan(); n++ {
		var text string
		if err := json.Unmarshal(scan.Bytes(), &text); err != nil {
			return errors.Join(w.Flush(), fmt.Errorf("line %d is not a JSON string: %w", n, err))
		}
		var err error
		if ids, err = m.AppendIDs(ids[:0], text, special); err != nil {
			return errors.Join(w.Flush(), fmt.Errorf("line %d: %w", n, err))
		}
		line = append(line[:0], '[')
		for i, id := range ids {
			if i > 0 {
				line = append(line, ',')
			}
			line = strconv.AppendUint(line, uint64(id), 10)
		}
		line = append(line, ']', '\n')
		if _, err := w.Write(line); err != nil {
			return fmt.Errorf("write ids: %w", err)
		}
	}
	if err := scan.Err(); err != nil {
		return fmt.Errorf("read the texts: %w", err)
	}
	return w.Flush()
}

// flushing is a reader that writes all pending answers before it reads more. So a program can write a line and wait for
// the line's ids.
type flushing struct {
	in  io.Reader
	out *bufio.Writer
}

func (f flushing) Read(b []byte) (int, error) {
	if err := f.out.Flush(); err != nil {
		return 0, err
	}
	return f.in.Read(b)
}

func tokenizeBody(out io.Writer, m *inprocess.Model, kind tokens.Kind, body []byte, h *block.Hasher) error {
	read, err := readBody(body)
	if err != nil {
		return err
	}
	ids, outcome := tokens.InBody(read, kind)
	switch outcome {
	case tokens.Given:
	case tokens.Batch:
		return errors.New("the body has several prompts, and the router matches no prompt of such a request: give a single prompt")
	default:
		if ids, err = m.Tokens(nil, read, kind); err != nil {
			return err
		}
	}
	keys := h.Append(nil, h.Root(block.Scope{Model: read.Model, Salt: read.CacheSalt, Extra: read.ExtraKey}), 0, ids, nil)
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "%d tokens, %d full blocks of %d\n", len(ids), len(keys), h.Size())
	for i, id := range ids {
		if i%h.Size() == 0 && i/h.Size() < len(keys) {
			fmt.Fprintf(w, "block %d  %016x\n", i/h.Size(), uint64(keys[i/h.Size()]))
		}
		fmt.Fprintf(w, "%8d  %q\n", id, m.Decode(ids[i:i+1]))
	}
	return w.Flush()
}

// readBody reads a body with a prompt as a completion, and any other body as a chat.
func readBody(body []byte) (*api.Request, error) {
	var read api.Request
	if err := api.Read(api.OpenAICompletions, body, &read); err == nil && read.Raw(api.FieldPrompt) != nil {
		return &read, nil
	}
	if err := api.Read(api.OpenAIChat, body, &read); err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	return &read, nil
}

func newTemplate() *cobra.Command {
	var f modelFlags
	c := &cobra.Command{
		Use:   "template",
		Short: "Print the text that a chat request is rendered to",
		Long:  "Read a chat request from standard input and print the prompt's text as the engine renders it, and nothing else.",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			m, kind, err := f.open(c)
			if err != nil {
				return err
			}
			body, err := io.ReadAll(c.InOrStdin())
			if err != nil {
				return fmt.Errorf("read the request: %w", err)
			}
			text, err := m.Text(body, kind)
			if err != nil {
				return err
			}
			_, err = io.WriteString(c.OutOrStdout(), text)
			return err
		},
	}
	f.add(c)
	return c
}
