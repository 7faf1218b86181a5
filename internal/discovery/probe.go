package discovery

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// questionTimeout bounds one question of a probe. An engine answers each question from memory. An API process that was
// tokenizing long prompts took one second in a measurement.
const questionTimeout = 5 * time.Second

// Report is the result of a probe.
type Report struct {
	Facts fleet.Facts
	// Seed is a random number that the worker's process drew at its start; 0 if it is not reported.
	Seed int64
	// Guessed means that the worker did not report the endpoint of its events: the engine's default port is assumed.
	Guessed bool
	// CachingOff means that the worker reported that its prefix cache is off.
	CachingOff bool
	// EventsProblem says why the endpoint of the events cannot be used, and what to write; "" if it can.
	EventsProblem string
	// Transfers are the faults of the worker's role and connector. Notes has them, too.
	Transfers []TransferFault
	// Notes say which facts are unknown or assumed, and which questions were tried.
	Notes []string
}

func (r *Report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// Probe asks a worker for its facts. It changes nothing at the worker; its heaviest question tokenizes one word. The
// error says why the worker cannot be used: its URL is not valid, it does not answer, refuses the key, serves no model,
// or is a Warmpath gateway. The report's Notes name other facts that are unknown.
func Probe(ctx context.Context, client *http.Client, t Target) (*Report, error) {
	t, err := t.normalize()
	if err != nil {
		return nil, fmt.Errorf("probe worker: %w", err)
	}
	p := &probe{asker: asker{client: client, target: t, timeout: questionTimeout}, Report: &Report{}}
	if err := p.run(ctx); err != nil {
		return nil, fmt.Errorf("probe %s: %w", t.URL, err)
	}
	return p.Report, nil
}

// probe is the state of one call of Probe: the worker that is asked, and the report that the answers fill.
type probe struct {
	asker
	*Report
	reported reportedTransfer
}

func (p *probe) run(ctx context.Context) error {
	p.Facts.DeclaredRanks = p.target.Ranks
	owner, err := p.models(ctx)
	if err != nil {
		return err
	}
	if owner == "warmpath" {
		// The worker may be this router itself: its requests would come back to it without end.
		return errors.New("this is a Warmpath gateway and not an engine: list its workers instead")
	}
	// Every engine names itself as the owner of its models. If a proxy rewrites the list of models, the paths that the
	// worker answers show which engine it runs.
	version, versionErr := p.version(ctx)
	p.Facts.Version = version
	switch {
	case owner == "vllm":
		p.Facts.Engine = fleet.EngineVLLM
	case owner == "sglang":
		p.Facts.Engine = fleet.EngineSGLang
	case owner == "tensorrt_llm":
		p.Facts.Engine = fleet.EngineTRTLLM
	case versionErr == nil:
		p.Facts.Engine = fleet.EngineVLLM
	default:
		p.Facts.Engine = fleet.EngineOther
	}
	if p.Facts.Engine == fleet.EngineOther || p.Facts.Engine == fleet.EngineSGLang {
		info, err := p.serverInfo(ctx)
		if err == nil {
			p.Facts.Engine = fleet.EngineSGLang
			p.sglang(info)
		} else if p.Facts.Engine == fleet.EngineSGLang {
			p.note("block size, capacity and event endpoints are not known: %v", err)
		}
	}
	switch p.Facts.Engine {
	case fleet.EngineVLLM:
		if versionErr != nil {
			p.note("version is not known: %v", versionErr)
		}
		p.vllm(ctx)
	case fleet.EngineTRTLLM, fleet.EngineOther:
		if p.target.Events != "" {
			break // the operator has said where the events are, or that there are none
		}
		p.note("engine %s reports no block size and no event endpoint: give events=ENDPOINT if it publishes KV events", p.Facts.Engine)
	}
	p.boundRanks()
	p.Facts.Labels = p.target.Labels
	p.override()
	p.transfer(ctx)
	p.surface(ctx)
	return nil
}

// models reads /v1/models into the facts. It returns the owner of the last model: engines write their name there.
func (p *probe) models(ctx context.Context) (owner string, err error) {
	var list struct {
		Data []struct {
			ID          string `json:"id"`
			Root        string `json:"root"`
			Parent      string `json:"parent"`
			MaxModelLen int    `json:"max_model_len"`
			OwnedBy     string `json:"owned_by"`
		} `json:"data"`
	}
	if err := p.getJSON(ctx, "/v1/models", &list); err != nil {
		if statusOf(err) == http.StatusNotFound && p.target.Model == "" {
			return "", fmt.Errorf("%w; is the worker's URL right? It ends before /v1", err)
		}
		if p.target.Model == "" || statusOf(err) == 0 {
			return "", err
		}
		p.note("%v: taking the configured model %q", err, p.target.Model)
	}
	for _, m := range list.Data {
		if m.ID == "" {
			continue
		}
		owner = m.OwnedBy
		p.Facts.Models = append(p.Facts.Models, fleet.Model{ID: m.ID, Root: m.Root, Parent: m.Parent, MaxModelLen: max(m.MaxModelLen, 0)})
	}
	p.overrideModel()
	if len(p.Facts.Models) == 0 {
		return "", errors.New("GET /v1/models lists no model")
	}
	return owner, nil
}

// overrideModel makes the configured name the only base model of the worker. Its adapters become adapters of that name.
func (p *probe) overrideModel() {
	name := p.target.Model
	if name == "" {
		return
	}
	base := fleet.Model{ID: name}
	listed := false
	var adapters []fleet.Model
	for _, m := range p.Facts.Models {
		switch {
		case m.Parent != "":
			m.Parent = name
			adapters = append(adapters, m)
		case m.ID == name:
			base, listed = m, true
		case !listed && base.Root == "":
			base.Root, base.MaxModelLen = m.Root, m.MaxModelLen
		}
	}
	if !listed && len(p.Facts.Models) > 0 {
		p.note("the configured model %q is not in the worker's list, which begins with %q: requests will name the configured one, so the engine must accept it", name, p.Facts.Models[0].ID)
	}
	p.Facts.Models = append([]fleet.Model{base}, adapters...)
}

// blockSize returns the block size that an engine reported. It returns 0 if no block can have that size; in that case
// the router learns the size from events.
func blockSize(tokens int) int {
	if tokens < 0 || tokens > block.MaxSize {
		return 0
	}
	return tokens
}

func (p *probe) version(ctx context.Context) (string, error) {
	var v struct {
		Version string `json:"version"`
	}
	err := p.getJSON(ctx, "/version", &v)
	if err == nil && v.Version == "" {
		err = errors.New("GET /version names no version")
	}
	return v.Version, err
}

// override replaces the reported endpoints of events by the configured ones.
func (p *probe) override() {
	t := p.target
	if t.Events == None {
		p.Facts.Events, p.Guessed = nil, false
		return
	}
	if t.Events != "" {
		p.Guessed = false
		old := p.Facts.Events
		p.Facts.Events = nil
		p.addRanks(t.Events, "", "")
		for i := range p.Facts.Events {
			if i < len(old) {
				p.Facts.Events[i].Replay, p.Facts.Events[i].Topic = old[i].Replay, old[i].Topic
			}
		}
	}
	for i := range p.Facts.Events {
		s := &p.Facts.Events[i]
		if t.Topic != "" {
			s.Topic = t.Topic
		}
		if t.Replay == None {
			s.Replay = ""
		} else if t.Replay != "" {
			s.Replay = p.resolve("replay", t.Replay, s.Rank-p.Facts.FirstRank)
		}
	}
}

// boundRanks removes the event sources of ranks that get no requests, and adds a note about it.
func (p *probe) boundRanks() {
	f := &p.Facts
	f.Ranks = max(f.Ranks, 1)
	used := f.UsedRanks()
	if f.Ranks == used {
		return
	}
	p.note("the worker numbers %d data-parallel ranks: the first %d get requests; its setting ranks says how many, at most %d",
		f.Ranks, used, fleet.MaxRanks)
	f.Events = slices.DeleteFunc(f.Events, func(e fleet.EventSource) bool { return e.Rank >= f.FirstRank+used })
}

// addRanks adds one event source for each used rank. A rank's ports are the ports of the base endpoints plus the rank.
func (p *probe) addRanks(events, replay, topic string) {
	for i := range p.Facts.UsedRanks() {
		s := fleet.EventSource{Rank: p.Facts.FirstRank + i, Topic: topic}
		if s.Endpoint = p.resolve("events", events, i); s.Endpoint == "" {
			return
		}
		if replay != "" {
			s.Replay = p.resolve("replay", replay, i)
		}
		p.Facts.Events = append(p.Facts.Events, s)
	}
}

// resolve returns the endpoint to dial. If raw is not valid, it adds a note and returns "".
func (p *probe) resolve(what, raw string, offset int) string {
	e, err := parseEndpoint(raw)
	if err == nil {
		e, err = endpointAt(e, p.target.host(), offset)
	}
	if err != nil {
		p.note("%s endpoint is not usable: %v", what, err)
		if what == "events" {
			p.EventsProblem = err.Error()
		}
		return ""
	}
	return e.String()
}

// surface tests which of the router's questions for token ids the worker answers.
func (p *probe) surface(ctx context.Context) {
	model := p.Facts.Models[0].ID
	var tokens struct {
		Count int `json:"count"`
	}
	err := p.postJSON(ctx, "/tokenize", map[string]any{"model": model, "prompt": "a"}, &tokens)
	p.Facts.CanTokenize = err == nil && tokens.Count > 0
	if !p.Facts.CanTokenize {
		if err == nil {
			err = errors.New("POST /tokenize counted no tokens")
		}
		p.note("this worker gives no token ids: its KV events count for texts and chats only if another worker of the model gives them, "+
			"or the router has the model's files (--model-path DIR): %v", err)
	}
	if p.Facts.Engine != fleet.EngineVLLM {
		return
	}
	// vLLM answers 403 without --enable-scale-out, and 404 before 0.15. A model without a chat template refuses
	// messages (400), but still renders completions.
	var rendered any
	err = p.postJSON(ctx, "/v1/chat/completions/render", map[string]any{
		"model": model, "messages": []map[string]string{{"role": "user", "content": "a"}},
	}, &rendered)
	status := statusOf(err)
	p.Facts.CanRender = err == nil || status == http.StatusBadRequest || status == http.StatusUnprocessableEntity
}
