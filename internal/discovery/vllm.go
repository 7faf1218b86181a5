package discovery

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
)

// vllmDefaultPort is the endpoint at which vLLM publishes rank 0's events if its options name none.
const vllmDefaultPort = "tcp://*:5557"

func (p *probe) vllm(ctx context.Context) {
	sources, known := p.vllmSources(ctx)
	caching, nixl := p.vllmMetrics(ctx)
	p.CachingOff = caching == "False"
	p.vllmTransfer(ctx, nixl)
	switch {
	case known:
		p.vllmEvents(sources)
	case p.CachingOff:
		p.note("prefix caching is off, so there are no KV events")
	case p.target.Events == "":
		p.Guessed = true
		p.addRanks(vllmDefaultPort, "", "")
		p.note("trying port 5557 + rank for KV events, vLLM's default: give events=ENDPOINT or events=none if that is wrong")
	}
}

// vllmSource is one rank's publisher in the answer of /kv_event_sources (since about vLLM 0.31).
type vllmSource struct {
	rank      int
	Enabled   *bool  `json:"enable_kv_cache_events"`
	Publisher string `json:"publisher"`
	Endpoint  string `json:"endpoint"`
	Replay    string `json:"replay_endpoint"`
	Topic     string `json:"topic"`
}

// vllmSources asks for the publishers, ordered by rank. known is false if this version of vLLM does not report them.
func (p *probe) vllmSources(ctx context.Context) (sources []vllmSource, known bool) {
	var byRank map[string]*vllmSource
	if err := p.getJSON(ctx, "/kv_event_sources", &byRank); err != nil {
		p.note("the worker does not report the endpoint of its KV events: %v", err)
		return nil, false
	}
	for key, s := range byRank {
		rank, err := strconv.Atoi(key)
		if err != nil || rank < 0 || rank > fleet.MaxRank || s == nil {
			p.note("GET /kv_event_sources: entry %q is not a data-parallel rank with its publisher", key)
			continue
		}
		s.rank = rank
		sources = append(sources, *s)
	}
	slices.SortFunc(sources, func(a, b vllmSource) int { return a.rank - b.rank })
	return sources, true
}

// vllmEvents turns the publishers' own settings into endpoints to dial.
func (p *probe) vllmEvents(sources []vllmSource) {
	if len(sources) == 0 {
		p.note("the worker publishes no KV events: start it with --kv-events-config")
		return
	}
	p.Facts.FirstRank = sources[0].rank
	p.Facts.Ranks = max(p.Facts.Ranks, sources[len(sources)-1].rank-p.Facts.FirstRank+1)
	for i, s := range sources {
		if s.Enabled != nil && !*s.Enabled || s.Publisher != "" && s.Publisher != "zmq" {
			p.note("rank %d publishes no KV events (publisher %q)", s.rank, s.Publisher)
			continue
		}
		if p.dials(s.Endpoint) {
			p.note("rank %d connects to %s for KV events instead of listening: write tcp://*:PORT in the engine's settings, or set events.listen", s.rank, s.Endpoint)
			continue
		}
		// Each rank's own settings contain its port. Some versions repeat rank 0's settings for every rank: for these,
		// the ports count up from the first rank's port.
		offset := 0
		if i > 0 && s.Endpoint == sources[0].Endpoint {
			offset = s.rank - p.Facts.FirstRank
		}
		source := fleet.EventSource{Rank: s.rank, Topic: s.Topic, Endpoint: p.resolve("events", s.Endpoint, offset)}
		if source.Endpoint == "" {
			continue
		}
		if s.Replay != "" {
			source.Replay = p.resolve("replay", s.Replay, offset)
		}
		p.Facts.Events = append(p.Facts.Events, source)
	}
}

// dials reports whether vLLM connects to the endpoint instead of binding it: vLLM binds only the wildcard hosts * and
// ::, not 0.0.0.0. For the worker's own host, dials returns false, because publishers other than vLLM's also bind such
// a host.
func (p *probe) dials(raw string) bool {
	e, err := parseEndpoint(raw)
	if err != nil || e.Path != "" || e.Wildcard() && e.Host != "0.0.0.0" {
		return false
	}
	own := p.target.host()
	return e.Host != own && !(network.LoopbackHost(e.Host) && (network.LoopbackHost(own) || p.target.overUnix()))
}

// vllmMetrics reads /metrics. The labels of vllm:cache_config_info are vLLM's cache settings as Python texts, one line
// for each data-parallel rank. caching is the setting enable_prefix_caching, or "" if the setting is not known. nixl
// says what the families of metrics show about NIXL.
func (p *probe) vllmMetrics(ctx context.Context) (caching string, nixl nixlFamilies) {
	var lines, adapters []map[string]string
	err := p.ask(ctx, http.MethodGet, "/metrics", nil, maxMetrics, func(r io.Reader) error {
		found, err := metricLabels(r, "vllm:cache_config_info{", "vllm:lora_requests_info{", nixlPrefix, fetchFamily)
		lines, adapters = found[0], found[1]
		nixl = nixlFamilies{present: len(found[2]) > 0, fetches: len(found[3]) > 0}
		return err
	})
	p.vllmCache(lines, adapters, err)
	if len(lines) > 0 {
		caching = lines[0]["enable_prefix_caching"]
	}
	return caching, nixl
}

// vllmCache sets what the lines of /metrics say about the cache and the adapters. err is the error of the question.
func (p *probe) vllmCache(lines, adapters []map[string]string, err error) {
	if len(adapters) > 0 { // vLLM writes this line once it has computed a request
		p.Facts.AdapterSlots = atoi(adapters[0]["max_lora"])
	}
	if err != nil {
		p.note("block size and capacity are unknown until events show them: %v", err)
		return
	}
	if len(lines) == 0 {
		p.note("block size and capacity are unknown until events show them: GET /metrics has no vllm:cache_config_info")
		return
	}
	engines := map[string]bool{}
	for _, labels := range lines {
		engines[labels["engine"]] = true
	}
	p.Facts.Ranks = max(p.Facts.Ranks, len(engines))
	first := lines[0]
	if rank, err := strconv.Atoi(first["engine"]); err == nil && rank > 0 && rank <= fleet.MaxRank {
		p.Facts.FirstRank = rank
		for engine := range engines {
			if other, err := strconv.Atoi(engine); err == nil && other >= 0 {
				p.Facts.FirstRank = min(p.Facts.FirstRank, other)
			}
		}
	}
	p.Facts.BlockSize = blockSize(atoi(first["block_size"]))
	tokens, blocks := atoi(first["kv_cache_size_tokens"]), atoi(first["num_gpu_blocks"])
	switch {
	case tokens > 0 && p.Facts.BlockSize > 0:
		p.Facts.BlocksPerRank = tokens / p.Facts.BlockSize
	default:
		// Every line shows the sum over all ranks (as vLLM 0.32 with two ranks did).
		p.Facts.BlocksPerRank = blocks / len(engines)
	}
}

// atoi reads a positive number. It returns 0, which means not known, for Python's "None" and any other text.
func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0
	}
	return n
}
