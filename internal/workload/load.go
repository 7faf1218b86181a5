package workload

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Options say how to read a trace. The zero value reads the whole trace, ready to be played. Limit, Seed and Bytes also
// apply to generators.
type Options struct {
	// Limit is the largest number of requests to read. 0: no limit.
	Limit int
	// Seed is the seed of the jitter that spreads binned timestamps, and of a generator whose spec names no seed.
	Seed uint64
	// Raw leaves out the jitter: requests keep the distances between their recorded timestamps, and requests with equal
	// timestamps keep their order in the file. Published hit rates were computed in this order.
	Raw bool
	// Bytes bounds the memory of the requests in bytes. 0: [DefaultBytes]. Reading a larger trace is an error.
	Bytes int64
}

// DefaultBytes is 2 GiB. It is enough for the largest published trace with block hashes (Claude Code sessions, 85
// million hashes), and less than the memory of a laptop.
const DefaultBytes = 2 << 30

// format is one file format.
type format struct {
	about string
	read  func(b *builder, lines *lines) error
}

// formats has the file formats by name: the spec NAME:FILE uses the format NAME.
var formats = map[string]format{
	"mooncake":  {"Mooncake JSONL: timestamp ms, input_length, output_length, hash_ids of 512 tokens", readMooncake},
	"qwen":      {"Qwen-Bailian JSONL: chat_id, parent_chat_id, timestamp s, lengths, hash_ids of 16 tokens", readQwen},
	"azure":     {"Azure 2023 and 2024 CSV: TIMESTAMP,ContextTokens,GeneratedTokens", readAzure},
	"burstgpt":  {"BurstGPT CSV: Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,…", readBurstGPT},
	"ragpulse":  {"RAGPulse JSONL: hash_ids by component; lengths from the files beside it", readRAGPulse},
	"agent":     {"agent sessions, closed loop: LMCache (text) or dynamo.request.trace.v1 JSONL", readAgent},
	"openai":    {"JSONL of OpenAI request bodies (chat or completions), plain or as a batch file", readOpenAI},
	"decisions": {"the decision log of `warmpath serve --decision-log`: times, lengths and block hashes", readDecisions},
	"tokens":    {"LLMServingSim JSONL: prompts as token ids, arrival_time_ns", readTokens},
	"warmpath":  {"our own JSONL; `warmpath workload list` describes it", readWarmpath},
}

// Formats returns the names of the file formats, each with a line about it.
func Formats() [][2]string {
	var out [][2]string
	for _, name := range slices.Sorted(maps.Keys(formats)) {
		out = append(out, [2]string{name, formats[name].about})
	}
	return out
}

// Load returns the workload that spec describes, ready to be played. spec is FORMAT:FILE, where the file may be packed
// with gzip, or gen:NAME,PARAMETER=VALUE,….
func Load(spec string, o Options) (*Workload, error) {
	kind, rest, ok := strings.Cut(spec, ":")
	if !ok || rest == "" {
		return nil, fmt.Errorf("workload %q: want FORMAT:FILE (%s) or gen:NAME,PARAMETER=VALUE", spec, formatNames())
	}
	if kind == "gen" {
		w, err := generate(rest, o)
		if err != nil {
			return nil, fmt.Errorf("workload %q: %w", spec, err)
		}
		w.Source = spec
		return w, nil
	}
	if _, known := formats[kind]; !known {
		return nil, fmt.Errorf("workload %q: there is no format %q; there are %s and gen", spec, kind, formatNames())
	}
	f, err := os.Open(rest)
	if err != nil {
		return nil, fmt.Errorf("open workload: %w", err)
	}
	defer func() { _ = f.Close() }() // the file was only read, so an error of Close does not matter
	w, err := read(f, kind, rest, o)
	if err != nil {
		return nil, fmt.Errorf("read %s workload %s: %w", kind, rest, err)
	}
	w.Source = spec
	return w, nil
}

func read(r io.Reader, kind, path string, o Options) (*Workload, error) {
	buffered := bufio.NewReaderSize(r, 1<<16)
	if magic, err := buffered.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, err
		}
		buffered = bufio.NewReaderSize(z, 1<<16)
	}
	b := newBuilder(o, path)
	l := &lines{r: buffered}
	if err := formats[kind].read(b, l); err != nil && !errors.Is(err, errEnough) {
		if l.number > 0 && !errors.Is(err, errWhole) {
			return nil, fmt.Errorf("line %d: %w", l.number, err)
		}
		return nil, err
	}
	w, err := b.finish()
	if err != nil {
		return nil, err
	}
	w.Name = strings.TrimSuffix(strings.TrimSuffix(filepath.Base(path), ".gz"), filepath.Ext(strings.TrimSuffix(path, ".gz")))
	if path == "" {
		w.Name = kind
	}
	return w, nil
}

func formatNames() string {
	return strings.Join(slices.Sorted(maps.Keys(formats)), ", ")
}

// errEnough ends reading when Options.Limit is reached. errWhole marks an error that concerns the whole file and not
// one line.
var (
	errEnough = errors.New("limit reached")
	errWhole  = errors.New("the file as a whole")
)

// lines reads a file line by line.
type lines struct {
	r      *bufio.Reader
	number int // number of the line that next returned last
	buf    []byte
}

// maxLine bounds the length of one line in bytes. A prompt of ten million tokens fits as text of four bytes a token.
const maxLine = 64 << 20

// next returns the next line that is not blank, without surrounding space. After the last line the error is io.EOF. The
// returned bytes are valid until the next call of next.
func (l *lines) next() ([]byte, error) {
	for {
		line, err := l.line()
		if err != nil {
			return nil, err
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line, nil
		}
	}
}

func (l *lines) line() ([]byte, error) {
	l.number++
	l.buf = l.buf[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		if err == nil && len(l.buf) == 0 {
			return part, nil
		}
		l.buf = append(l.buf, part...)
		switch {
		case len(l.buf) > maxLine:
			return nil, fmt.Errorf("longer than %d MiB", maxLine>>20)
		case err == nil, err == io.EOF && len(l.buf) > 0:
			return l.buf, nil
		case err == io.EOF:
			l.number--
			return nil, io.EOF
		case err != bufio.ErrBufferFull:
			return nil, err
		}
	}
}

// each calls f with every line that is not blank, until f returns an error.
func (l *lines) each(f func(line []byte) error) error {
	for {
		line, err := l.next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f(line); err != nil {
			return err
		}
	}
}
