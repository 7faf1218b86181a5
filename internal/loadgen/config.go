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
	Auto   Prompt = ""       // as in the trace: a chat as a chat, a text as a text, and other prompts as token ids
	Chat   Prompt = "chat"   // POST /v1/chat/completions; made-up tokens become words
	Text   Prompt = "text"   // POST /v1/completions with text
	Tokens Prompt = "tokens" // POST /v1/completions with token ids, so prompts have exactly the workload's tokens
)

// Prompts are the forms that a user can choose.
var Prompts = []Prompt{Chat, Text, Tokens}

// Target is an address to play against.
type Target struct {
	Name string // name in reports; may be "" if there is only one target
	URL  string // scheme and host, without the path /v1/…
}

// Config says how a workload is played. Start from [DefaultConfig].
type Config struct {
	// Targets has one target in most runs. With several targets, each request is sent to all targets, one after the other.
	// The order rotates from request to request, so that each target is first equally often.
	Targets []Target
	Model   string // name of the model; "": the first model of /v1/models
	Prompt  Prompt
	APIKey  string // API key that is sent with each request; "": none

	// Concurrency is the number of requests to keep under way. When fewer requests are under way, the next request is
	// sent, and arrival times are ignored. 0: requests are sent at their arrival times.
	Concurrency int
	// MaxOpen bounds the number of requests under way if Concurrency is 0. A further request is not sent and counts as
	// failed. It does not wait, because then a slow server would reduce the load.
	MaxOpen int

	HTTP2   bool          // use HTTP/2: in clear text with prior knowledge, over TLS by negotiation
	Whole   bool          // ask for answers in one piece instead of streams; their first token counts at their end
	Timeout time.Duration // time limit of one request
	// OpenAIOnly sends only fields of OpenAI's API. Without OpenAIOnly, requests also have the fields ignore_eos and
	// min_tokens, so that answers have exactly the workload's length, and return_token_ids, so that later turns can
	// repeat the ids of an answer.
	OpenAIOnly bool
	// Vocabulary is an upper bound (exclusive) of the token ids of prompts. Larger ids, also recorded ids, are
	// replaced. 0: no id is replaced; made-up ids are below 17,384, and all common models have these ids.
	Vocabulary int

	Network network.Network // network in which targets are dialled; nil: the machine's
	SLOs    []report.SLO    // nil: report.DefaultSLOs
	Setup   report.Setup    // settings that are copied into the report, such as rate and seed
	// Rows gets one JSON line for each complete answer with a token, in the form that [ReadMeasured] reads. nil: no
	// lines are written.
	Rows     io.Writer
	Progress func(Progress)
}

// DefaultConfig returns the defaults, without a target. MaxOpen is 4,096, because no published load test had more
// requests under way when the server became saturated.
func DefaultConfig() Config {
	return Config{MaxOpen: 4096, Timeout: 10 * time.Minute}
}

// Progress is the state of a run.
type Progress struct {
	Elapsed                       time.Duration
	Sent, Answered, Failed, Total int // numbers of requests, summed over all targets
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

// ParseTargets reads a list "name=URL,name=URL", or one URL.
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
