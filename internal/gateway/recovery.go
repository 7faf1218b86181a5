package gateway

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/tokens"
)

const (
	// maxRecovered bounds the memory for the ids of one stream: a longer answer is not recovered. 256 Ki ids are longer
	// than the answers of today's models.
	maxRecovered = 256 << 10
	// maxEvent bounds the memory for one event that arrives in parts, and for the answer to a question about ids. The
	// first event has the ids of the prompt.
	maxEvent = 8 << 20
	// maxText bounds the memory for the text of one stream, and the deltas of a parsed stream that are looked at: an
	// engine may send text without ids. maxRecovered ids have about 1 MiB of text.
	maxText = 8 << 20
	// maxStepsBack is how many chunks a continuation goes back at most. Almost always 0 to 3 are enough; a stop string
	// of some hundred characters needs some tens.
	maxStepsBack = 64
	// detokenizeTime bounds the question for the text of ids. A healthy engine answers in some milliseconds.
	detokenizeTime = 5 * time.Second
	// repeatTime bounds a continuation that repeats the whole text. The client gets nothing meanwhile.
	repeatTime = 30 * time.Second
)

// recovery lets a stream survive its worker. It is the writer of the proxy's attempts for one request: it remembers the
// token ids that the worker reports, hides them from the client, and holds back an error event. If the worker dies, the
// exchange continues the stream at another worker from the ids, and recovery turns the other worker's events into
// events of the first stream (docs/design/0043).
//
// A recovery belongs to the request's goroutine, except movable and heard.
type recovery struct {
	x       *exchange
	chat    bool
	engine  fleet.Engine // of the first worker
	version string       // of the first worker's engine
	root    string       // from where the worker that made the ids loaded the model; "" is unknown
	remove  bool         // the engine leaves out lists of ids that were not asked for; otherwise it sends null
	movable atomic.Bool  // the stream can continue at another worker now
	heard   atomic.Int64 // when the worker's last piece came, in Unix nanoseconds; 0 while the piece is passed on
	broken  string       // why the stream cannot be recovered any more; "": it can
	fatal   error        // why the recovery itself ends the stream; nil: it does not
	raw     bool         // the answer is no event stream: it is passed on as it is
	begun   bool         // the client got a part of the answer
	failed  []byte       // the error event, which the client gets if the stream cannot be recovered
	pending []byte       // the beginning of an event
	out     []byte       // scratch: what is written to the client
	first   time.Time    // when the first token came
	base    int          // number of tokens that came from earlier workers
	tries   int          // number of continuations
	header  http.Header  // the header of a continuation, which the client does not get
	piece   api.Piece    // scratch
	like    api.Piece    // an event with text of the first worker
	sample  []byte       // the memory of like
	head    []byte       // the first event
	id, at  []byte       // the id and the time of creation of the stream, as JSON
	prompt  []uint32     // the ids of the prompt
	ids     []uint32     // the generated ids
	ends    []int        // for each chunk: the number of ids up to its end
	text    []byte       // the text that the client has
	skip    []byte       // text of the client that the continuation still repeats
	until   time.Time    // when continuations that repeat the whole text must have done so; zero: none is under way
	again   continuation // how the continuation under way is asked for
	asked   int64        // when it was sent, in Unix nanoseconds; like again, it changes only while the exchange is in no roster
	unable  string       // why the worker that was asked last could not continue the stream
	lost    string       // the worker that was lost last
	cause   string       // how it was lost
	parsing parsing
	worker  *fleet.Worker // the worker that continues a parsed stream

	finished, usage, done bool // the client has a finish_reason, the usage, [DONE]
}

// arm prepares for the recovery of the stream that d's worker is about to send. The attempt is complete otherwise.
func (x *exchange) arm(d *warmpath.Decision) {
	x.recovery = nil
	if x.unrecoverable(d.Worker) != "" {
		return
	}
	version := d.Worker.Facts.Version
	r := &recovery{x: x, chat: x.dialect == api.OpenAIChat, engine: d.Worker.Facts.Engine, version: version}
	r.root = r.rootAt(d.Worker)
	r.remove = r.engine != fleet.EngineVLLM || !tokens.SendsNulls(version)
	r.parsing.on = r.chat && usesParser(&x.prepared.read)
	x.recovery = r
	a := &x.attempt
	a.Writer = r
	a.Body = api.AppendEdited(nil, a.Body, api.Edit{Name: "return_token_ids", Value: []byte("true")})
}

// send sends the attempt. The attempt continues a stream, or its stream may be continued later.
func (x *exchange) send(ctx context.Context, d *warmpath.Decision) proxy.Result {
	if r := x.recovery; r == nil || r.again == none {
		x.arm(d)
	} else if why := x.prepareRecovery(ctx, d.Worker); why != "" {
		r.unable = why
		return proxy.Result{Class: proxy.Abandoned, Err: api.WorkerBroke(errors.New(d.Worker.URL + " cannot continue the stream: " + why))}
	} else {
		r.asked = time.Now().UnixNano()
	}
	return x.ask(ctx, x.g.roster(d.Worker.ID))
}

// prepareRecovery fills in the continuation at w, and records the time that this takes. why is "" if w can continue the
// stream.
func (x *exchange) prepareRecovery(ctx context.Context, w *fleet.Worker) (why string) {
	r := x.recovery
	span := x.span.Part("recover")
	defer span.End()
	why = r.prepare(ctx, w)
	span.Text("warmpath.lost", r.lost)
	span.Text("warmpath.cause", r.cause)
	span.Text("warmpath.worker", w.URL)
	span.Int("warmpath.tokens", r.base)
	if why != "" {
		span.Fail(why, "")
	}
	return why
}

// abandon records why a stream that lost its worker does not continue.
func (x *exchange) abandon(why string) {
	x.rec.Unrecovered = why
	x.g.Telemetry.Recovered("refused", why)
}

// recover decides what becomes of a stream after an attempt. w is the attempt's worker. more: another worker is asked.
// ended: the request ends with last, and the client's stream has its end. Otherwise the stream is not a recovered one.
func (x *exchange) recover(ctx context.Context, w *fleet.Worker, last *proxy.Result) (more, ended bool) {
	r := x.recovery
	if r == nil || r.raw || !r.begun {
		if r == nil && last.FirstByte && lostStream(last) && x.prepared.read.Stream {
			x.abandon(x.unrecoverable(w))
		}
		return false, false
	}
	last.FirstByte = true
	if !r.first.IsZero() {
		last.FirstTokenAt = r.first
	}
	if r.again != none && last.Usage.Seen {
		last.Usage.Prompt -= r.base
		last.Usage.Completion += r.base
	}
	if last.Class == proxy.Success && len(r.failed) == 0 {
		if !r.done && r.finished && r.broken == "" {
			r.complete() // the worker ended the answer cleanly without [DONE]
		}
		if r.again != none {
			x.g.Telemetry.Recovered("recovered", r.cause)
			x.g.Log.Info("stream continued at another worker", "id", x.rec.ID, "lost", r.lost, "cause", r.cause, "worker", w.URL, "tokens", r.base)
		}
		return false, r.again != none
	}
	if r.parsing.stuck && ctx.Err() == nil {
		r.parsing.stuck = false
		last.Class, last.Err = proxy.Truncated, api.WorkerBroke(errStuck)
	}
	why := r.mayContinue(ctx, last)
	if why == "" {
		r.lost, r.cause = w.URL, last.Class.String()
		x.rec.Failed = append(x.rec.Failed, w.URL+": "+redacted(describe(last, w.URL), x.r))
		x.rec.Recovered = append(x.rec.Recovered, w.URL+": "+last.Class.String()+" after "+strconv.Itoa(len(r.ids))+" tokens")
		r.aim(w)
		x.g.askIndex(ctx, &x.prepared)
		return true, false
	}
	x.endBroken(last, why)
	return false, true
}

// silentSince reports whether no byte of the stream came since a time, in Unix nanoseconds. The exchange is in a
// roster.
func (r *recovery) silentSince(at int64) bool {
	heard := r.heard.Load()
	switch {
	case heard == 0:
		return false
	case r.again != none && heard < r.asked: // nothing of the continuation came
		return r.asked <= at
	}
	return r.movable.Load() && heard <= at
}

// lostStream reports whether an attempt ended because its worker failed.
func lostStream(last *proxy.Result) bool {
	return last.Class.WorkerFault() || last.Class == proxy.Abandoned || last.Class == proxy.Useless || last.Class == proxy.Rejected || last.Class == proxy.Limited
}

// mayContinue returns why the stream cannot continue after an attempt, "" if it can.
func (r *recovery) mayContinue(ctx context.Context, last *proxy.Result) string {
	switch {
	case r.fatal != nil:
		return r.broken
	case ctx.Err() != nil || last.Class == proxy.ClientGone || last.Class == proxy.Cut:
		return clientLeft
	case r.broken != "":
		return r.broken
	case r.finished:
		return streamEnded
	case (len(r.ids) > 0 || len(r.text) > 0) && (len(r.prompt) == 0 || len(r.sample) == 0):
		return reasonIDs
	case r.tries >= r.x.g.cfg.Attempts:
		return reasonAttempts
	case !lostStream(last):
		return reasonWorker
	}
	return ""
}

// endBroken ends a stream that cannot continue, in a way that the client sees.
func (x *exchange) endBroken(last *proxy.Result, why string) {
	r := x.recovery
	if r.unable != "" && (why == reasonNoWorker || why == reasonAttempts) {
		why = r.unable
	}
	last.FirstByte, last.Answer = true, nil
	switch {
	case why == clientLeft && last.Class != proxy.Cut:
		last.Abort = true
		return
	case why == streamEnded:
		r.complete()
		last.Class, last.Err, last.Abort = proxy.Success, nil, false
		x.g.Telemetry.Recovered("recovered", streamEnded)
		return
	case why != clientLeft:
		x.abandon(why)
	}
	event := r.failed
	if len(event) == 0 {
		err := last.Err
		if err == nil {
			err = api.WorkerBroke(errors.New("no other worker could continue the stream"))
		}
		event = x.dialect.AppendErrorEvent(nil, api.AsError(err))
	}
	if r.fatal != nil {
		last.Class, last.Err = proxy.Truncated, api.WorkerBroke(r.fatal)
	}
	last.Abort = r.write(event) != nil
}

// complete sends what a finished stream lacks: the usage, if the client asked for it, and [DONE].
func (r *recovery) complete() {
	var out []byte
	if r.x.prepared.read.IncludeUsage && !r.usage && len(r.head) > 0 {
		n, k := len(r.prompt), len(r.ids)
		usage := `{"prompt_tokens":` + strconv.Itoa(n) + `,"total_tokens":` + strconv.Itoa(n+k) + `,"completion_tokens":` + strconv.Itoa(k) + `}`
		out = append(out, "data: "...)
		out = api.AppendEdited(out, r.head, api.Edit{Name: "choices", Value: []byte("[]")}, api.Edit{Name: "usage", Value: []byte(usage)})
		out = append(out, "\n\n"...)
	}
	_ = r.write(append(out, "data: [DONE]\n\n"...)) // an error means that the client is gone
}

func (r *recovery) write(b []byte) error {
	limitRead(r.x.w, r.x.r, 0)
	if _, err := r.x.w.Write(b); err != nil {
		return err
	}
	return http.NewResponseController(r.x.w).Flush()
}
