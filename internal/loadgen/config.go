package loadgen

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/report"
)

// Prompt says in which form prompts are sent.
type Prompt string

// The forms.
const (
	Auto   Prompt = ""       // as the trace has it: chats as chats, text as text, everything else as token ids
	Chat   Prompt = "chat"   // POST /v1/chat/completions; content without text becomes words, about one token each
	Text   Prompt = "text"   // POST /v1/completions with text
	Tokens Prompt = "tokens" // POST /v1/completions with token ids: what is measured is exactly what the workload says
)

// Prompts are all forms that can be asked for.
var Prompts = []Prompt{Chat, Text, Tokens}

// Target is an address to play against.
type Target struct {
	Name string // for reports; "" for the only one
	URL  string // scheme and host; requests go to /v1/… below it
}

// Config says how a workload is played. Start from [DefaultConfig].
type Config struct {
	// Targets is mostly one. Several get every request, one after the other and each as often first as last, so that
	// they are compared under the same conditions.
	Targets []Target
	Model   string // "": the first that /v1/models names
	Prompt  Prompt
	APIKey  string // "": none

	// Concurrency sends the next request as soon as fewer than this many are open, whatever the workload's clock says; 0:
	// by the clock.
	Concurrency int
	// MaxOpen bounds the requests that are open by the clock. One that would exceed it is dropped and counted as failed:
	// to hold it back would be to wait for the server.
	MaxOpen int

	HTTP2   bool          // cleartext HTTP/2 with prior knowledge (over TLS: by negotiation)
	Whole   bool          // answers in one piece instead of streams; no time to first token then
	Timeout time.Duration // of one request
	// Plain sends only what OpenAI's own API knows. Without it answers have the workload's exact length (ignore_eos,
	// min_tokens) and tell their token ids (return_token_ids), so that later turns can repeat them.
	Plain      bool
	Vocabulary int // made-up token ids stay below it; 0: below 17,384, which suits all common models

	Network  network.Network // where targets are dialled; nil: the machine's
	SLOs     []report.SLO    // nil: report.DefaultSLOs
	Setup    report.Setup    // copied into the report: rate, seed
	Rows     io.Writer       // takes one JSON line for each answered request, as [ReadMeasured] reads them; nil: none
	Progress func(Progress)
}

// DefaultConfig plays a stream against nothing yet. 4,096 open requests are more than any published ladder has at its knee, and
// four times what file limits allow by default is not reached.
func DefaultConfig() Config {
	return Config{MaxOpen: 4096, Timeout: 10 * time.Minute}
}

// Progress is how far a run is.
type Progress struct {
	Elapsed                       time.Duration
	Sent, Answered, Failed, Total int // over all targets
	Open                          int
	HitRate                       float64
}

// Validate reports all that is wrong.
func (c *Config) Validate() error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if len(c.Targets) == 0 {
		bad("there is no address to play against")
	}
	names := map[string]bool{}
	for _, t := range c.Targets {
		u, err := url.Parse(t.URL)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			bad("address %q: want http://HOST:PORT", t.URL)
		}
		if names[t.Name] {
			bad("two addresses are named %q", t.Name)
		}
		names[t.Name] = true
	}
	if c.Prompt != Auto && !slices.Contains(Prompts, c.Prompt) {
		bad("prompt form %q: want chat, text or tokens", c.Prompt)
	}
	if c.Concurrency < 0 || c.MaxOpen < 1 {
		bad("concurrency %d and at most %d open requests: want 0 or more, and at least 1", c.Concurrency, c.MaxOpen)
	}
	if c.Timeout <= 0 {
		bad("timeout %s: want a positive time", c.Timeout)
	}
	if c.Vocabulary != 0 && c.Vocabulary < 16 {
		bad("vocabulary of %d: want at least 16 ids", c.Vocabulary)
	}
	return errors.Join(problems...)
}

// ParseTargets reads name=URL,name=URL, or one URL.
func ParseTargets(s string) ([]Target, error) {
	var out []Target
	for _, part := range strings.Split(s, ",") {
		name, address, ok := strings.Cut(part, "=")
		if !ok {
			name, address = "", part
		}
		out = append(out, Target{Name: name, URL: strings.TrimSuffix(address, "/")})
	}
	c := DefaultConfig()
	c.Targets = out
	return out, c.Validate()
}
