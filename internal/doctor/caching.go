package doctor

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// hitCounters are the engines' counters of prompt tokens that were found in the prefix cache (vLLM
// vllm/v1/metrics/loggers.py; SGLang srt/metrics/collector.py).
var hitCounters = []string{"vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"}

// counters returns the sum of the engine's counters of cached tokens. known is false if there are no such counters.
func (e *exam) counters(ctx context.Context) (hits float64, known bool) {
	lines := 0
	err := e.ask(ctx, 10*time.Second, http.MethodGet, "/metrics", nil, func(r io.Reader) error {
		scanner := bufio.NewScanner(r)
		scanner.Buffer(nil, 256<<10)
		for scanner.Scan() {
			lines++
			name, value, _ := strings.Cut(scanner.Text(), " ")
			bare, _, _ := strings.Cut(name, "{")
			if i := strings.LastIndexByte(scanner.Text(), '}'); i >= 0 {
				value = strings.TrimSpace(scanner.Text()[i+1:])
			}
			for _, counter := range hitCounters {
				if n, err := strconv.ParseFloat(value, 64); bare == counter && err == nil {
					hits, known = hits+n, true
				}
			}
		}
		return scanner.Err()
	})
	if e.Prompts != nil {
		return hits, known // the second time the findings are already known
	}
	fix := "let /metrics pass through the proxy in front of the engine; the router reads the load of vLLM and the size of its cache there"
	if e.report.Facts.Engine == fleet.EngineSGLang {
		fix = "start SGLang with --enable-metrics"
	}
	switch {
	case err != nil:
		e.find("metrics", Warning, err.Error(), "GET /metrics answers with the engine's metrics", fix)
	case lines == 0:
		e.find("metrics", Warning, "GET /metrics is empty", "the engine's metrics", fix)
	}
	return hits, known
}

func cachingFix(engine fleet.Engine) string {
	switch engine {
	case fleet.EngineVLLM:
		return "start vLLM without --no-enable-prefix-caching (or with --enable-prefix-caching)"
	case fleet.EngineSGLang:
		return "start SGLang without --disable-radix-cache"
	}
	return "turn the engine's prefix cache (KV cache reuse) on"
}

// judgeCaching decides from the answers and the engine's counters whether the engine used its cache for the second
// prompt. hits is the growth of the counters during the prompts; counted says whether there are counters.
func (e *exam) judgeCaching(p *plan, hits float64, counted bool) {
	second, third := e.Prompts[1], e.Prompts[2]
	engine := e.report.Facts.Engine
	common := fmt.Sprintf("about %d cached tokens for a prompt with the same beginning", p.common)
	if p.common < max(e.BlockSize, 1) {
		return // the common beginning fills no block, so nothing can be cached
	}
	switch {
	case second.CachedTokens > 0 || e.report.CachingOff:
	case counted && hits > 0:
		if engine == fleet.EngineSGLang {
			return // surface has a finding, or the engine leaves out zero
		}
		e.find("cached_tokens", Warning, "answers do not say how many prompt tokens were cached, although the engine's counters grew",
			"usage.prompt_tokens_details.cached_tokens in answers",
			"start vLLM with --enable-prompt-tokens-details; without it the router cannot compare its predictions with the engine")
	case second.CachedTokens < 0 && !counted:
		e.find("cached_tokens", Warning, "neither answers nor metrics say how many prompt tokens were cached", common,
			"start vLLM with --enable-prompt-tokens-details, SGLang with --enable-cache-report")
	default:
		e.find("prefix_cache", Error, fmt.Sprintf("no token of the second prompt (%d tokens) was cached", second.PromptTokens), common,
			cachingFix(engine)+"; if the worker has several ranks, it must obey the header X-Data-Parallel-Rank")
	}
	if third.CachedTokens >= max(e.BlockSize, 16) {
		e.find("prefix_cache", Warning, fmt.Sprintf("%d tokens of a prompt that was never sent before were reported as cached", third.CachedTokens),
			"0 cached tokens", "is there a proxy or another router between Warmpath and the engine? Name the engines themselves")
	}
}
