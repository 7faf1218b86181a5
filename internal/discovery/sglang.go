package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/warmpath/warmpath/fleet"
)

// serverInfo has the fields of SGLang's /server_info that the router uses. The answer has all server arguments, the
// scheduler's numbers and the publisher of events.
type serverInfo struct {
	Version      string `json:"version"`
	ModelPath    string `json:"model_path"`
	Tokenizer    string `json:"tokenizer_path"`
	PageSize     int    `json:"page_size"`
	DPSize       int    `json:"dp_size"`
	CacheReport  bool   `json:"enable_cache_report"`
	DisableRadix bool   `json:"disable_radix_cache"`
	MaxTokens    int    `json:"max_total_num_tokens"`
	MaxLoaded    int    `json:"max_loaded_loras"`    // LoRA adapters in the memory of the machine; null: not limited
	MaxAdapters  int    `json:"max_loras_per_batch"` // LoRA adapters of one pass
	// RandomSeed is drawn when the server starts, unless an argument gave it [SGLang srt/server_args.py].
	RandomSeed int64 `json:"random_seed"`
	// KVEvents is absent before 0.5.13, and null if events are off.
	KVEvents optional[sglangPublisher] `json:"kv_events"`
	sglangDisaggregation
}

type sglangPublisher struct {
	Publisher  string `json:"publisher"`
	Host       string `json:"endpoint_host"`
	Port       int    `json:"endpoint_port_base"`
	ReplayHost string `json:"replay_endpoint_host"`
	ReplayPort int    `json:"replay_endpoint_port_base"`
	Topic      string `json:"topic"`
	BlockSize  int    `json:"block_size"`
	DPSize     int    `json:"dp_size"`
}

// optional distinguishes a null value from an absent value.
type optional[T any] struct {
	value   *T
	present bool
}

// UnmarshalJSON implements json.Unmarshaler. encoding/json calls it only for a field that is present, also if its value
// is null.
func (o *optional[T]) UnmarshalJSON(data []byte) error {
	o.present = true
	return json.Unmarshal(data, &o.value)
}

// serverInfo asks SGLang for its settings. Versions before 0.5.6 serve the settings under an older path, which
// serverInfo also tries.
func (p *probe) serverInfo(ctx context.Context) (*serverInfo, error) {
	var info serverInfo
	err := p.getJSON(ctx, "/server_info", &info)
	if statusOf(err) == http.StatusNotFound {
		err = p.getJSON(ctx, "/get_server_info", &info)
	}
	if err != nil {
		return nil, err
	}
	if info.PageSize == 0 && info.ModelPath == "" {
		return nil, errors.New("GET /server_info names neither page_size nor model_path")
	}
	return &info, nil
}

func (p *probe) sglang(info *serverInfo) {
	f := &p.Facts
	if info.Version != "" {
		f.Version = info.Version
	}
	p.Seed = info.RandomSeed
	for _, origin := range [...]string{info.Tokenizer, info.ModelPath} {
		if origin != "" && !slices.Contains(f.Origins, origin) {
			f.Origins = append(f.Origins, origin)
		}
	}
	f.BlockSize = blockSize(info.PageSize)
	f.Ranks = min(info.DPSize, fleet.MaxRank+1)
	f.ReportsCachedTokens = info.CacheReport
	f.AdapterSlots = max(info.MaxLoaded, info.MaxAdapters, 0)
	p.sglangTransfer(&info.sglangDisaggregation)
	switch ev := info.KVEvents.value; {
	case ev != nil:
		if size := blockSize(ev.BlockSize); size > 0 {
			f.BlockSize = size // with decode context parallelism, this size is larger than a page
		}
		f.Ranks = max(f.Ranks, min(ev.DPSize, fleet.MaxRank+1))
		p.sglangEvents(ev)
	case info.KVEvents.present:
		p.note("the worker publishes no KV events: start it with --kv-events-config")
	case p.target.Events == "":
		p.note("the worker does not report the endpoint of its KV events (SGLang before 0.5.13): give events=ENDPOINT if it publishes them")
	}
	if f.BlockSize > 0 {
		f.BlocksPerRank = max(info.MaxTokens, 0) / f.BlockSize
	}
	p.CachingOff = info.DisableRadix
	if info.DisableRadix {
		p.note("the worker's prefix cache is off (disable_radix_cache)")
	}
}

func (p *probe) sglangEvents(ev *sglangPublisher) {
	if ev.Publisher != "" && ev.Publisher != "zmq" {
		p.note("the worker publishes no KV events (publisher %q)", ev.Publisher)
		return
	}
	host, replay := ev.Host, ""
	if host == "" {
		host = "*"
	}
	if ev.ReplayPort > 0 {
		replayHost := ev.ReplayHost
		if replayHost == "" {
			replayHost = host
		}
		replay = tcpEndpoint(replayHost, ev.ReplayPort)
	}
	p.addRanks(tcpEndpoint(host, ev.Port), replay, ev.Topic)
}

// tcpEndpoint returns an endpoint for parseEndpoint, which accepts an IPv6 address without brackets.
func tcpEndpoint(host string, port int) string { return "tcp://" + host + ":" + strconv.Itoa(port) }
