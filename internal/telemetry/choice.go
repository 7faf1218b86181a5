package telemetry

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Decided is one line of the decision log: the record as in /admin/decisions, and what the policy saw. The names of the
// fields do not change.
type Decided struct {
	Record
	Choice *Choice `json:"choice"`
}

// Choice is what a policy saw when it chose the worker of the last attempt, and the scores that it gave. It has no
// text of the prompt, no token ids and no key of a client.
type Choice struct {
	// At is the time of the decision, and Arrived that of the request's head, in Unix nanoseconds. Random is the random
	// number of the decision.
	At      int64  `json:"at"`
	Arrived int64  `json:"arrived"`
	Random  uint64 `json:"random"`

	Base string `json:"base"` // the base model
	LoRA string `json:"lora,omitempty"`
	// Session is a hash of the session's name.
	Session string   `json:"session,omitempty"`
	Class   uint64   `json:"class,omitempty"`  // requests with the same first tokens have the same class
	Levels  []string `json:"levels,omitempty"` // service levels, such as 5s/100ms
	// Prompt is the length of the prompt in tokens; an estimate unless Known.
	Prompt int  `json:"prompt"`
	Known  bool `json:"known,omitempty"`
	// Keys are the router's own hashes of the prompt's blocks of BlockSize tokens, 8 bytes each, little-endian, in
	// base64. The key of a block also covers all blocks before it.
	BlockSize int    `json:"block_size,omitempty"`
	Keys      string `json:"keys,omitempty"`

	// The request asked for this worker or rank, or workers were tried before.
	Target      string   `json:"target,omitempty"`
	Rank        *int     `json:"rank,omitempty"`
	Tried       []string `json:"tried,omitempty"`
	MaxRequests int      `json:"max_requests,omitempty"`

	Terms      []string    `json:"terms"`  // names of the values in Candidate.Terms
	Chosen     int         `json:"chosen"` // index of the chosen candidate
	Candidates []Candidate `json:"candidates"`

	// Prefill is the choice of the worker that computes the prompt, if the request is divided. The fields above are then
	// about the worker that generates the answer.
	Prefill *LegChoice `json:"prefill,omitempty"`
}

// LegChoice is the choice of the worker of a prefill leg, for the same prompt at the same time.
type LegChoice struct {
	Policy     string      `json:"policy"`
	Terms      []string    `json:"terms"`
	Chosen     int         `json:"chosen"`
	Candidates []Candidate `json:"candidates"`
}

// Candidate is a holder that a policy could choose. Zero values are absent.
type Candidate struct {
	Worker    string         `json:"worker"`
	Rank      int            `json:"rank,omitempty"`
	Holder    uint32         `json:"holder"` // the router's number of the holder, in whose order the policy saw the candidates
	Hash      uint64         `json:"hash"`   // of the worker's URL and the rank, by which some policies choose
	Trust     string         `json:"trust,omitempty"`
	Bar       fleet.Bar      `json:"bar,omitempty"`      // why the holder should get no request, as a number of fleet.Bar
	Down      bool           `json:"down,omitempty"`     // the holder cannot take a request
	Withheld  float64        `json:"withheld,omitempty"` // the share of requests that slow start keeps away
	BlockSize int            `json:"block_size,omitempty"`
	Match     int            `json:"match,omitempty"`
	Tiers     map[string]int `json:"tiers,omitempty"`
	Predicted int            `json:"predicted,omitempty"` // AtRisk tokens are included
	Active    int            `json:"active,omitempty"`
	AtRisk    int            `json:"at_risk,omitempty"`
	Full      int            `json:"full,omitempty"`
	Load      Load           `json:"load"`
	Score     float64        `json:"score,omitempty"`
	Terms     []float64      `json:"terms,omitempty"`
	LeftOut   string         `json:"left_out,omitempty"` // the filter's reason

	// Fetched tokens would come from the worker Source, which takes TransferMS. Unpaired says why no tokens can come from
	// the worker of the prefill leg.
	Fetched    int     `json:"fetched,omitempty"`
	Source     string  `json:"source,omitempty"`
	TransferMS float64 `json:"transfer_ms,omitempty"`
	Unpaired   string  `json:"unpaired,omitempty"`
}

// Load is a holder's load at the time of a decision, with the names of /admin/explain. Times are in milliseconds.
type Load struct {
	Requests      int64         `json:"requests,omitempty"`
	Waiting       int64         `json:"waiting,omitempty"`
	PrefillTokens int64         `json:"prefill_tokens,omitempty"`
	PendingTokens int64         `json:"pending_tokens,omitempty"`
	BacklogMS     float64       `json:"backlog_ms,omitempty"`
	ContextBlocks int64         `json:"context_blocks,omitempty"`
	ContextTokens int64         `json:"context_tokens,omitempty"`
	OutputTokens  int64         `json:"output_tokens,omitempty"`
	Processed     uint64        `json:"processed,omitempty"`
	Turns         uint64        `json:"turns,omitempty"`
	Room          float64       `json:"room,omitempty"`
	Filled        float64       `json:"filled,omitempty"`
	RoomKnown     bool          `json:"room_known,omitempty"`
	Timing        *fleet.Timing `json:"timing,omitempty"`
	Others        *fleet.Others `json:"others,omitempty"`
	Report        *Report       `json:"report,omitempty"`
}

// Report is the engine's last report of its load.
type Report struct {
	At           int64   `json:"at"` // Unix nanoseconds
	Running      int64   `json:"running,omitempty"`
	Waiting      int64   `json:"waiting,omitempty"`
	QueuedTokens int64   `json:"queued_tokens,omitempty"`
	QueueKnown   bool    `json:"queue_known,omitempty"`
	Computed     int64   `json:"computed,omitempty"`
	BusyMS       float64 `json:"busy_ms,omitempty"`
	KVUsed       float64 `json:"kv_used,omitempty"`
}

// LoadOf returns l in the form of the decision log.
func LoadOf(l *fleet.Load) Load {
	out := Load{
		Requests: l.Requests, Waiting: l.Waiting, PrefillTokens: l.PrefillTokens, PendingTokens: l.PendingTokens,
		BacklogMS: milliseconds(l.Backlog), ContextBlocks: l.ContextBlocks, ContextTokens: l.ContextTokens, OutputTokens: l.OutputTokens,
		Processed: l.Processed, Turns: l.Turns, Room: Finite(l.Room), Filled: Finite(l.Filled), RoomKnown: l.RoomKnown,
	}
	if l.Timing != (fleet.Timing{}) {
		timing := l.Timing
		out.Timing = &timing
	}
	if l.Others != (fleet.Others{}) {
		others := l.Others
		out.Others = &others
	}
	if r := &l.Reported; r.At != 0 {
		out.Report = &Report{At: r.At, Running: r.Running, Waiting: r.Waiting, QueuedTokens: r.QueuedTokens, QueueKnown: r.QueueReported,
			Computed: r.Computed, BusyMS: milliseconds(r.Busy), KVUsed: Finite(r.KVUsed)}
	}
	return out
}

// Fleet returns l as policies see it.
func (l *Load) Fleet() fleet.Load {
	out := fleet.Load{
		Requests: l.Requests, Waiting: l.Waiting, PrefillTokens: l.PrefillTokens, PendingTokens: l.PendingTokens,
		Backlog: duration(l.BacklogMS), ContextBlocks: l.ContextBlocks, ContextTokens: l.ContextTokens, OutputTokens: l.OutputTokens,
		Processed: l.Processed, Turns: l.Turns, Room: l.Room, Filled: l.Filled, RoomKnown: l.RoomKnown,
	}
	if l.Timing != nil {
		out.Timing = *l.Timing
	}
	if l.Others != nil {
		out.Others = *l.Others
	}
	if r := l.Report; r != nil {
		out.Reported = fleet.Reported{At: r.At, Running: r.Running, Waiting: r.Waiting, QueuedTokens: r.QueuedTokens, QueueReported: r.QueueKnown,
			Computed: r.Computed, Busy: duration(r.BusyMS), KVUsed: r.KVUsed}
	}
	return out
}

func milliseconds(d time.Duration) float64 { return float64(d) / 1e6 }

func duration(ms float64) time.Duration {
	return time.Duration(math.Round(min(max(ms, -maxMS), maxMS) * 1e6))
}

// maxMS keeps a duration that a line has within the range of time.Duration.
const maxMS = 1e12

// Finite returns v, or a number near it that JSON can express: 0 for NaN, and the largest numbers for the infinities.
func Finite(v float64) float64 {
	switch {
	case math.IsNaN(v):
		return 0
	case math.IsInf(v, 0):
		return math.Copysign(math.MaxFloat64, v)
	}
	return v
}

// EncodeKeys returns keys in the form of [Choice.Keys].
func EncodeKeys(keys []block.Key) string {
	if len(keys) == 0 {
		return ""
	}
	raw := make([]byte, 0, 8*len(keys))
	for _, k := range keys {
		raw = binary.LittleEndian.AppendUint64(raw, uint64(k))
	}
	return base64.StdEncoding.EncodeToString(raw)
}

// AppendKeys appends the keys that text contains to dst.
func AppendKeys(dst []block.Key, text string) ([]block.Key, error) {
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(raw)%8 != 0 {
		return dst, fmt.Errorf("keys are not 8 bytes each in base64")
	}
	for ; len(raw) > 0; raw = raw[8:] {
		dst = append(dst, block.Key(binary.LittleEndian.Uint64(raw)))
	}
	return dst, nil
}
