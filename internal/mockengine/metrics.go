package mockengine

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/warmpath/warmpath/internal/engine"
)

// metric is a metric of GET /metrics. The answer has one line of each metric for each rank.
type metric struct {
	name, kind string
	value      func(*engine.Stats) float64
}

var vllmMetrics = []metric{
	{"vllm:num_requests_running", "gauge", func(s *engine.Stats) float64 { return float64(s.Running) }},
	{"vllm:num_requests_waiting", "gauge", func(s *engine.Stats) float64 { return float64(s.Waiting) }},
	{"vllm:kv_cache_usage_perc", "gauge", usage},
	{"vllm:prefix_cache_queries_total", "counter", func(s *engine.Stats) float64 { return float64(s.Queries) }},
	{"vllm:prefix_cache_hits_total", "counter", func(s *engine.Stats) float64 { return float64(s.Hits) }},
	{"vllm:external_prefix_cache_queries_total", "counter",
		func(s *engine.Stats) float64 { return float64(s.CPUQueries) }},
	{"vllm:external_prefix_cache_hits_total", "counter", func(s *engine.Stats) float64 { return float64(s.CPUHits) }},
	{"vllm:prompt_tokens_total", "counter", func(s *engine.Stats) float64 { return float64(s.PromptTokens) }},
	{"vllm:generation_tokens_total", "counter", func(s *engine.Stats) float64 { return float64(s.Outputs) }},
	{"vllm:num_preemptions_total", "counter", func(s *engine.Stats) float64 { return float64(s.Preemptions) }},
}

var sglangMetrics = []metric{
	{"sglang:num_running_reqs", "gauge", func(s *engine.Stats) float64 { return float64(s.Running) }},
	{"sglang:num_queue_reqs", "gauge", func(s *engine.Stats) float64 { return float64(s.Waiting) }},
	{"sglang:token_usage", "gauge", usage},
	{"sglang:cache_hit_rate", "gauge", func(s *engine.Stats) float64 { return hitRate(s.Hits, s.Queries) }},
	{"sglang:cached_tokens_total", "counter", func(s *engine.Stats) float64 { return float64(s.Hits + s.CPUHits) }},
	{"sglang:prompt_tokens_total", "counter", func(s *engine.Stats) float64 { return float64(s.PromptTokens) }},
	{"sglang:generation_tokens_total", "counter", func(s *engine.Stats) float64 { return float64(s.Outputs) }},
}

func usage(s *engine.Stats) float64 { return float64(s.UsedBlocks) / float64(s.Blocks) }

func (l *life) metrics(w http.ResponseWriter, _ *http.Request) {
	var b strings.Builder
	stats := make([]engine.Stats, len(l.ranks))
	for i, r := range l.ranks {
		stats[i] = r.stats()
	}
	table, label := vllmMetrics, "engine"
	if l.cfg.Kind == SGLang {
		table, label = sglangMetrics, "dp_rank"
	}
	for _, m := range table {
		fmt.Fprintf(&b, "# TYPE %s %s\n", m.name, m.kind)
		for i := range stats {
			fmt.Fprintf(&b, "%s{%s=\"%d\",model_name=%q} %g\n", m.name, label, i, l.cfg.Model, m.value(&stats[i]))
		}
	}
	if l.cfg.Kind == SGLang {
		l.sglangInfo(&b, stats)
		l.transferMetrics(&b, stats)
	} else {
		l.vllmInfo(&b, stats)
		l.nixlMetrics(&b, stats)
	}
	fmt.Fprintf(&b, "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %.2f\n",
		float64(l.began.UnixMilli())/1000)
	writeBytes(w, http.StatusOK, "text/plain; version=0.0.4; charset=utf-8", []byte(b.String()))
}

// vllmInfo writes cache_config_info, with one line for each rank. As in vLLM 0.32, each line has the number of blocks
// of all ranks in num_gpu_blocks, but the cache size of one rank in kv_cache_size_tokens.
func (l *life) vllmInfo(b *strings.Builder, stats []engine.Stats) {
	b.WriteString("# TYPE vllm:cache_config_info gauge\n")
	caching := "True"
	if l.cfg.NoPrefixCaching {
		caching = "False"
	}
	for i := range stats {
		fmt.Fprintf(b, "vllm:cache_config_info{block_size=\"%d\",cache_dtype=\"auto\",enable_prefix_caching=%q,engine=\"%d\","+
			"gpu_memory_utilization=\"0.9\",kv_cache_size_tokens=\"%d\",num_cpu_blocks=\"None\",num_gpu_blocks=\"%d\",num_gpu_blocks_override=\"None\","+
			"prefix_caching_hash_algo=\"sha256\",prefix_match_unit=\"None\",sliding_window=\"None\"} 1\n",
			l.cfg.BlockSize, caching, i, (l.cfg.Blocks-1)*l.cfg.BlockSize, l.cfg.Blocks*len(stats))
	}
	if len(l.cfg.LoRA) > 0 || l.cfg.UpdateLoRA {
		fmt.Fprintf(b, "# TYPE vllm:lora_requests_info "+
			"gauge\nvllm:lora_requests_info{max_lora=\"%d\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} %d\n",
			l.cfg.MaxLoRAs, l.began.Unix())
	}
}

// nixlMetrics writes the metrics of vLLM's NixlConnector. Only an engine with this connector has them, and only one
// that may consume KV has num_requests_kv_fetch_by_stage (v1/metrics/loggers.py, vLLM 0.32). A router has no other way
// to see the role of a vLLM in production mode.
func (l *life) nixlMetrics(b *strings.Builder, stats []engine.Stats) {
	if l.exchange == nil {
		return
	}
	defer l.fetchMetrics(b, stats)
	if c := l.cfg.Transfer.Connector; c != NIXL && c != NIXLPush {
		return
	}
	s, _ := l.exchange.stats()
	labels := fmt.Sprintf("engine=\"0\",model_name=%q", l.cfg.Model)
	for _, h := range []struct {
		name string
		sum  float64
	}{{"xfer_time_seconds", s.seconds}, {"bytes_transferred", s.bytes}} {
		fmt.Fprintf(b, "# TYPE vllm:nixl_%s histogram\nvllm:nixl_%s_bucket{%s,le=\"+Inf\"} %d\n"+
			"vllm:nixl_%s_count{%s} %d\nvllm:nixl_%s_sum{%s} %g\n",
			h.name, h.name, labels, s.reads, h.name, labels, s.reads, h.name, labels, h.sum)
	}
	for _, c := range []struct {
		name  string
		value int
	}{
		{"failed_transfers", s.failed + s.failedNotices}, {"failed_notifications", s.failedNotices},
		{"kv_expired_reqs", s.expired}, {"notifications_after_expiry", s.lateNotices},
	} {
		fmt.Fprintf(b, "# TYPE vllm:nixl_num_%s counter\nvllm:nixl_num_%s_total{%s} %d\n", c.name, c.name, labels, c.value)
	}
}

// fetchMetrics writes the gauges of an engine that may consume KV.
func (l *life) fetchMetrics(b *strings.Builder, stats []engine.Stats) {
	if l.cfg.Transfer.Role == Prefill {
		return
	}
	b.WriteString("# TYPE vllm:num_requests_kv_fetch_by_stage gauge\n")
	for i := range stats {
		for _, stage := range []struct {
			name  string
			value int
		}{{"waiting_to_start", 0}, {"in_progress", stats[i].Awaiting}, {"completed_waiting", 0}} {
			fmt.Fprintf(b, "vllm:num_requests_kv_fetch_by_stage{engine=\"%d\",model_name=%q,stage=%q} %d\n",
				i, l.cfg.Model, stage.name, stage.value)
		}
	}
}

func (l *life) sglangInfo(b *strings.Builder, stats []engine.Stats) {
	for i := range stats {
		fmt.Fprintf(b, "sglang:max_total_num_tokens{dp_rank=\"%d\",model_name=%q} %d\n", i, l.cfg.Model,
			stats[i].Blocks*l.cfg.BlockSize)
		fmt.Fprintf(b, "sglang:page_size{dp_rank=\"%d\",model_name=%q} %d\n", i, l.cfg.Model, l.cfg.BlockSize)
		fmt.Fprintf(b, "sglang:num_pages{dp_rank=\"%d\",model_name=%q} %d\n", i, l.cfg.Model, stats[i].Blocks)
		fmt.Fprintf(b, "sglang:context_len{dp_rank=\"%d\",model_name=%q} %d\n", i, l.cfg.Model,
			l.ranks[i].engine.MaxModelLen())
	}
}
