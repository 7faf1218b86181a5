package discovery

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// ranks is the load that an engine reports. The key is the engine's global data-parallel rank, or noRank.
type ranks map[int]fleet.Reported

// loadOf asks a worker for its load. The answer may also contain signs by which the router recognizes the worker's
// process.
func (a asker) loadOf(ctx context.Context, engine fleet.Engine) (ranks, fleet.Signs, error) {
	if engine == fleet.EngineSGLang {
		return a.sglangLoad(ctx)
	}
	return a.metrics(ctx, "vllm:", "engine")
}

// errNoLoad means that an answer contains no load.
var errNoLoad = errors.New("the answer contains no load")

// sglangLoad reads /v1/loads (since SGLang 0.5.8), or else the older /get_load, or else /metrics, which SGLang serves
// with --enable-metrics.
func (a asker) sglangLoad(ctx context.Context) (ranks, fleet.Signs, error) {
	found, err := a.loads(ctx)
	if statusOf(err) == http.StatusNotFound {
		found, err = a.oldLoad(ctx)
	}
	if statusOf(err) == http.StatusNotFound {
		return a.metrics(ctx, "sglang:", "dp_rank")
	}
	return found, fleet.Signs{}, err
}

// loads reads /v1/loads.
func (a asker) loads(ctx context.Context) (ranks, error) {
	var answer struct {
		Loads []struct {
			Rank    int     `json:"dp_rank"`
			Running int64   `json:"num_running_reqs"`
			Waiting int64   `json:"num_waiting_reqs"`
			Queued  *int64  `json:"num_waiting_uncached_tokens"`
			Used    float64 `json:"token_usage"`
			// The next two fields count since the engine's start. SGLang has these fields since 0.5.23 [SGLang
			// srt/managers/load_snapshot.py].
			Computed int64 `json:"total_prefill_uncached_tokens"`
			Busy     int64 `json:"total_prefill_busy_us"`
		} `json:"loads"`
	}
	if err := a.getJSON(ctx, "/v1/loads", &answer); err != nil {
		return nil, err
	}
	found := ranks{}
	for _, l := range answer.Loads {
		r := fleet.Reported{Running: max(l.Running, 0), Waiting: max(l.Waiting, 0), KVUsed: share(l.Used), Computed: max(l.Computed, 0), Busy: busy(l.Busy)}
		if l.Queued != nil {
			r.QueuedTokens, r.QueueReported = max(*l.Queued, 0), true
		}
		found[l.Rank] = r
	}
	return found.orNone()
}

// oldLoad reads /get_load of SGLang before 0.5.8. The answer has no cache use, and one number for running and waiting
// requests together.
func (a asker) oldLoad(ctx context.Context) (ranks, error) {
	var answer []struct {
		Rank    int   `json:"dp_rank"`
		Both    int64 `json:"num_reqs"`
		Waiting int64 `json:"num_waiting_reqs"`
	}
	if err := a.getJSON(ctx, "/get_load", &answer); err != nil {
		return nil, err
	}
	found := ranks{}
	for _, l := range answer {
		waiting := max(l.Waiting, 0)
		found[l.Rank] = fleet.Reported{Running: max(l.Both-waiting, 0), Waiting: waiting}
	}
	return found.orNone()
}

// metrics reads the gauges of /metrics under the names of all versions (vLLM 0.9.2 renamed gpu_cache_usage_perc to
// kv_cache_usage_perc). Several lines may have the same rank but differ in other labels: they come from several
// schedulers behind one rank, and their requests are added. SGLang's tensor-parallel ranks repeat the numbers of one
// scheduler, so only the first of these ranks counts.
func (a asker) metrics(ctx context.Context, prefix, label string) (ranks, fleet.Signs, error) {
	found := ranks{}
	var signs fleet.Signs
	err := a.ask(ctx, http.MethodGet, "/metrics", nil, maxMetrics, func(r io.Reader) error {
		return metricLines(r, func(line []byte) {
			if rest, ours := bytes.CutPrefix(line, []byte(prefix)); ours {
				found.read(rest, label)
				if tokens, ok := bytes.CutPrefix(rest, []byte("prompt_tokens_total")); ok {
					if s, ok := parseSample(string(tokens)); ok {
						signs.Tokens += s.value
					}
				}
			} else if rest, ok := bytes.CutPrefix(line, []byte("process_start_time_seconds")); ok {
				if s, ok := parseSample(string(rest)); ok {
					signs.Started = max(signs.Started, s.value)
				}
			}
		})
	})
	if err != nil {
		return nil, signs, err
	}
	found, err = found.orNone()
	return found, signs, err
}

// read adds one line of /metrics, without its prefix. It ignores lines that are not about load.
func (f ranks) read(line []byte, label string) {
	end := bytes.IndexAny(line, "{ ")
	if end < 0 {
		return
	}
	switch string(line[:end]) { // compare without a copy, because a busy engine has thousands of other lines
	case "num_requests_running", "num_running_reqs", "num_requests_waiting", "num_queue_reqs", "kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage":
	default:
		return
	}
	s, ok := parseSample(string(line[end:]))
	if !ok || repeated(s.labels) {
		return
	}
	rank, err := strconv.Atoi(s.labels[label])
	if err != nil {
		rank = noRank
	}
	if _, known := f[rank]; !known && len(f) >= fleet.MaxRanks {
		return
	}
	l := f[rank]
	switch string(line[:end]) {
	case "num_requests_running", "num_running_reqs":
		l.Running += count(s.value)
	case "num_requests_waiting", "num_queue_reqs":
		l.Waiting += count(s.value)
	default:
		l.KVUsed = max(l.KVUsed, share(s.value))
	}
	f[rank] = l
}

// noRank is the rank of an engine that reports no rank.
const noRank = -1

// repeated reports whether the labels name a tensor- or pipeline-parallel rank that is not the first.
func repeated(labels map[string]string) bool {
	for _, name := range [...]string{"tp_rank", "pp_rank"} {
		if v := labels[name]; v != "" && v != "0" {
			return true
		}
	}
	return false
}

// busy returns a counter of microseconds as a duration. It returns 0 if the counter is negative or too large.
func busy(micros int64) time.Duration {
	if micros < 0 || micros > math.MaxInt64/int64(time.Microsecond) {
		return 0
	}
	return time.Duration(micros) * time.Microsecond
}

func count(v float64) int64 { return int64(min(v, 1<<40)) }

// share limits a ratio to 0..1. Engines call the ratio a percentage.
func share(v float64) float64 {
	if math.IsNaN(v) {
		return 0
	}
	return min(max(v, 0), 1)
}

func (f ranks) orNone() (ranks, error) {
	if len(f) == 0 {
		return nil, errNoLoad
	}
	return f, nil
}
