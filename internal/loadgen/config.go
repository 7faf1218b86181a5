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

// Prompt is the form of the prompts that are sent.
type Prompt string

// The values of Prompt.
const (
	Auto   Prompt = ""       // as in the trace: a chat as a chat, text as text, everything else as token ids
	Chat   Prompt = "chat"   // POST /v1/chat/completions; segments become words of about one token each
	Text   Prompt = "text"   // POST /v1/completions with text
	Tokens Prompt = "tokens" // POST /v1/completions with token ids: prompts have exactly the workload's tokens
)

// Prompts are the forms that a user can choose.
var Prompts = []Prompt{Chat, Text, Tokens}

// Target is an address to play against.
type Target struct {
	Name string // in reports; "" is allowed for a single target
	URL  string // scheme and host; requests go to /v1/… of it
}

// Config says how a workload is played. Start from [DefaultConfig].
type Config struct {
	// Targets mostly has one target. Of several targets, each gets every request, one after the other. Their order
	// rotates, so that each is first equally often.
	Targets []Target
	Model   string // "": the first model of /v1/models
	Prompt  Prompt
	APIKey  string // "": none

	// Concurrency is the number of open requests to keep: when fewer are open the next one is sent, and arrival times
	// are ignored. 0: requests are sent at their arrival times.
	Concurrency int
	// MaxOpen bounds the open requests when Concurrency is 0. A request beyond it is dropped and counts as failed: if
	// it waited, a slow server would set the rate.
	MaxOpen int

	HTTP2   bool          // cleartext HTTP/2 with prior knowledge (over TLS: by negotiation)
	Whole   bool          // asks for answers in one piece, which have no time to first token
	Timeout time.Duration // of one request
	// Plain sends only fields of OpenAI's API. Without it answers have the workload's exact length (ignore_eos,
	// min_tokens) and their token ids (return_token_ids), so that later turns can repeat them.
	Plain      bool
	Vocabulary int // made-up token ids are below it; 0: below 17,384, which all common models have

	Network  network.Network // where targets are dialled; nil: the machine's network
	SLOs     []report.SLO    // nil: report.DefaultSLOs
	Setup    report.Setup    // copied into the report: rate, seed
	Rows     io.Writer       // takes one JSON line for each answered request, as [ReadMeasured] reads them; nil: none
	Progress func(Progress)
}

// DefaultConfig has no target. 4,096 open requests are more than any published ladder has at its knee.
func DefaultConfig() Config {
	return Config{MaxOpen: 4096, Timeout: 10 * time.Minute}
}

// Progress is the state of a run.
type Progress struct {
	Elapsed                       time.Duration
	Sent, Answered, Failed, Total int // over all targets
	Open                          int
	HitRate                       float64
}

// Validate returns all errors of the configuration, joined.
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
