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
	Name string // name in reports; "" is allowed if there is only one target
	URL  string // scheme and host; the paths /v1/… are added
}

// Config says how a workload is played. Start from [DefaultConfig].
type Config struct {
	// Targets has one target in most runs. If there are several, each of them gets every request, one target after the
	// other. The order of the targets rotates, so that each target is asked first equally often.
	Targets []Target
	Model   string // name of the model; "": the first model of /v1/models
	Prompt  Prompt
	APIKey  string // key that is sent with each request; "": none

	// Concurrency is the number of requests to keep open. When fewer are open, the next request is sent, and arrival
	// times are ignored. 0: requests are sent at their arrival times.
	Concurrency int
	// MaxOpen bounds the number of open requests when Concurrency is 0. A further request is dropped and counts as
	// failed: if it waited, a slow server would slow down the load.
	MaxOpen int

	HTTP2   bool          // cleartext HTTP/2 with prior knowledge (over TLS: by negotiation)
	Whole   bool          // asks for answers in one piece, which have no time to first token
	Timeout time.Duration // time limit of one request
	// Plain sends only fields of OpenAI's API. Without Plain, answers have the workload's exact length (ignore_eos,
	// min_tokens) and contain their token ids (return_token_ids), so that later turns can repeat these ids.
	Plain bool
	// made-up token ids are below this number; 0: below 17,384, because all common models have these ids.
	Vocabulary int

	Network network.Network // where targets are dialled; nil: the machine's network
	SLOs    []report.SLO    // nil: report.DefaultSLOs
	Setup   report.Setup    // settings that are copied into the report: rate and seed
	// Gets one JSON line for each answered request, in the form that [ReadMeasured] reads; nil: no lines are written.
	Rows     io.Writer
	Progress func(Progress)
}

// DefaultConfig returns the defaults, without a target. 4,096 open requests are more than any published load test had
// when its server became saturated.
func DefaultConfig() Config {
	return Config{MaxOpen: 4096, Timeout: 10 * time.Minute}
}

// Progress is the state of a run.
type Progress struct {
	Elapsed                       time.Duration
	Sent, Answered, Failed, Total int // numbers of requests over all targets
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
			bad("address %q: want http://HOST:PORT; with --compare NAME=http://HOST:PORT,…", t.URL)
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
