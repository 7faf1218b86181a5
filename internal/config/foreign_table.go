package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/discovery"
)

// The routers whose flags are in the table.
const (
	others = "SMG, sglang-router and vllm-router"
	sglang = "SMG and sglang-router"
	smg    = "SMG"
	vllm   = "vllm-router"
	stack  = "vLLM's production stack"
	dynamo = "Dynamo"
)

// sources says where workers may come from.
const sources = "name a headless service (workers_dns), or a file that is read again when it changes (workers_file), in the file (docs/configure.md)"

// noHistory is the advice for flags of a store of conversations.
const noHistory = "run tools and keep histories in the application: the router passes bodies on unchanged"

// noEncoders is the advice for flags about workers that only encode images.
const noEncoders = "the router knows no workers that only encode images: leave the flag out, and let the prefill workers encode"

// queueIsOff is the advice for the flags of a queue while queue.order is off.
const queueIsOff = "it has no effect while the queue is off: write queue: {order: fcfs} into the file, and requests wait in the router while " +
	"all workers are saturated (docs/operate.md)"

// ForeignFlags returns the table of flags of other routers: SMG 1.13 (smg/router_args.py), sglang-router 0.3.2
// (sglang_router/router_args.py), vllm-router 0.1.17 (vllm_router/router_args.py), vLLM's production stack
// (src/vllm_router/parsers/parser.py) and Dynamo (components/src/dynamo/frontend).
func ForeignFlags() []ForeignFlag {
	return slices.Concat(mappedFlags(), policyFlags(), dynamoFlags(), unlikeFlags(), refusedFlags())
}

// SharedFlags are flags that serve has under the same name, but whose values other routers may write differently.
func SharedFlags() []ForeignFlag {
	return []ForeignFlag{
		{Name: "policy", Of: others, apply: (*foreign).policyName},
		{Name: "log-level", Of: others, apply: (*foreign).logLevel},
		{Name: "prefill-policy", Of: others, apply: legPolicy("disaggregation.prefill_policy", func(d *Disaggregation) *string { return &d.PrefillPolicy })},
		{Name: "decode-policy", Of: others, apply: legPolicy("disaggregation.decode_policy", func(d *Disaggregation) *string { return &d.DecodePolicy })},
	}
}

// mappedFlags are the flags that mean a setting outside of the policy.
func mappedFlags() []ForeignFlag {
	one := func(name, of string, apply func(*foreign, []string) (string, error)) ForeignFlag {
		return ForeignFlag{Name: name, Of: of, apply: apply}
	}
	many := func(name, of string, apply func(*foreign, []string) (string, error)) ForeignFlag {
		return ForeignFlag{Name: name, Of: of, Form: ManyValues, apply: apply}
	}
	alone := func(name, of string, apply func(*foreign, []string) (string, error)) ForeignFlag {
		return ForeignFlag{Name: name, Of: of, Form: NoValue, apply: apply}
	}
	return []ForeignFlag{
		many("worker-urls", others, (*foreign).workers),
		one("static-backends", stack, (*foreign).workers),
		many("prefill", others, (*foreign).prefillWorkers),
		many("decode", others, (*foreign).decodeWorkers),
		one("kv-connector", vllm, (*foreign).connector),
		one("intra-node-data-parallel-size", vllm, func(f *foreign, values []string) (string, error) {
			n, err := wholeNumber(values)
			if err != nil {
				return "", err
			}
			return f.each(fmt.Sprintf("ranks of all workers: %d", n), func(t *discovery.Target) { t.Ranks = n })
		}),
		many("kv-event-source", vllm, eventSource("events", func(t *discovery.Target) *string { return &t.Events })),
		many("kv-event-replay-source", vllm, eventSource("replay", func(t *discovery.Target) *string { return &t.Replay })),
		one("kv-event-model", vllm, func(f *foreign, values []string) (string, error) {
			return f.each("model of all workers: "+strings.Join(values, ""), func(t *discovery.Target) { t.Model = strings.Join(values, "") })
		}),
		{Name: "api-key", Of: others, Advice: "others on this machine can see command lines: write the key into the file (workers: [{url: …, api_key: …}]), and its SHA-256 " +
			"into tenants, if clients need it", apply: (*foreign).apiKey},
		one("host", others, addressPart("listen", false, func(c *Config) *string { return &c.Listen })),
		one("port", others, addressPart("listen", true, func(c *Config) *string { return &c.Listen })),
		one("http-host", dynamo, addressPart("listen", false, func(c *Config) *string { return &c.Listen })),
		one("http-port", dynamo, addressPart("listen", true, func(c *Config) *string { return &c.Listen })),
		one("prometheus-host", others, addressPart("admin.listen", false, func(c *Config) *string { return &c.Admin.Listen })),
		one("prometheus-port", others, addressPart("admin.listen", true, func(c *Config) *string { return &c.Admin.Listen })),
		one("request-timeout-secs", others, seconds("gateway.request_timeout", func(c *Config) *time.Duration { return &c.Gateway.RequestTimeout })),
		one("shutdown-grace-period-secs", sglang, seconds("gateway.drain_timeout", func(c *Config) *time.Duration { return &c.Gateway.DrainTimeout })),
		one("header-read-timeout-secs", smg, seconds("gateway.read_header_timeout", func(c *Config) *time.Duration { return &c.Gateway.ReadHeaderTimeout })),
		one("idle-connection-timeout-secs", smg, seconds("gateway.idle_timeout", func(c *Config) *time.Duration { return &c.Gateway.IdleTimeout })),
		one("upstream-pool-idle-timeout-secs", smg, seconds("proxy.idle_timeout", func(c *Config) *time.Duration { return &c.Proxy.IdleTimeout })),
		one("stream-body-stall-timeout-secs", smg, seconds("proxy.stream_idle_timeout", func(c *Config) *time.Duration { return &c.Proxy.StreamIdleTimeout })),
		one("max-payload-size", others, wholeTo("body.max_bytes", func(c *Config) *int64 { return &c.Body.MaxBytes })),
		{Name: "queue-size", Of: others, Advice: queueIsOff, apply: queueFlag((*foreign).queueSize)},
		{Name: "queue-timeout-secs", Of: others, Advice: queueIsOff, apply: queueFlag((*foreign).queueTimeout)},
		one("retry-max-retries", others, (*foreign).attempts),
		alone("disable-retries", others, constant("gateway.attempts: 1", func(c *Config) { c.Gateway.Attempts = 1 })),
		one("cb-failure-threshold", others, wholeTo("breaker.failures", func(c *Config) *int { return &c.Breaker.Failures })),
		one("cb-timeout-duration-secs", others, func(f *foreign, values []string) (string, error) {
			setting, err := seconds("breaker.delay", func(c *Config) *time.Duration { return &c.Breaker.Delay })(f, values)
			f.Breaker.MaxDelay = max(f.Breaker.MaxDelay, f.Breaker.Delay)
			return setting, err
		}),
		one("health-failure-threshold", others, wholeTo("health.misses", func(c *Config) *int { return &c.Health.Misses })),
		one("health-check-timeout-secs", others, seconds("health.timeout", func(c *Config) *time.Duration { return &c.Health.Timeout })),
		one("health-check-interval-secs", others, seconds("health.interval", func(c *Config) *time.Duration { return &c.Health.Interval })),
		one("health-check-endpoint", others, func(_ *foreign, values []string) (string, error) {
			if strings.Join(values, "") != "/health" {
				return "", fmt.Errorf("the router always asks /health: put a proxy that answers /health in front of the engine")
			}
			return "GET /health, as always", nil
		}),
		one("tls-cert-path", sglang, filePath("tls.cert_file", func(c *Config) *string { return &c.TLS.CertFile })),
		one("tls-key-path", sglang, filePath("tls.key_file", func(c *Config) *string { return &c.TLS.KeyFile })),
		alone("log-json", smg, constant("telemetry.log_format: json", func(c *Config) { c.Telemetry.LogFormat = "json" })),
		many("ca-cert-paths", sglang, (*foreign).authorities),
		one("client-cert-path", sglang, filePath("worker_defaults.tls.cert_file", func(c *Config) *string { return &c.WorkerDefaults.TLS.CertFile })),
		one("client-key-path", sglang, filePath("worker_defaults.tls.key_file", func(c *Config) *string { return &c.WorkerDefaults.TLS.KeyFile })),
		alone("enable-trace", sglang, func(f *foreign, _ []string) (string, error) {
			return f.traces("localhost:4317") // the default of both routers
		}),
		one("otlp-traces-endpoint", sglang, func(f *foreign, values []string) (string, error) { return f.traces(strings.Join(values, "")) }),
		alone("trust-tenant-header", smg, func(f *foreign, _ []string) (string, error) {
			f.trusts = true
			return f.tenantHeader([]string{"x-smg-tenant-id"}) // SMG's default
		}),
		one("tenant-header-name", smg, (*foreign).tenantHeader),
		many("routing-key-headers", smg, sessionHeaders),
		one("session-key", stack, sessionHeaders),
	}
}

// filePath sets the name of a file.
func filePath(setting string, at func(*Config) *string) func(*foreign, []string) (string, error) {
	return func(f *foreign, values []string) (string, error) {
		*at(f.Config) = strings.Join(values, "")
		return setting + ": " + *at(f.Config), nil
	}
}

func sessionHeaders(f *foreign, values []string) (string, error) {
	f.Gateway.SessionHeaders = slices.Clone(values)
	return "gateway.session_headers: " + strings.Join(values, ", "), nil
}

// policyFlags are the flags that are a parameter of a policy with the same formula.
func policyFlags() []ForeignFlag {
	p := func(name, of, kind, key string) ForeignFlag {
		return ForeignFlag{Name: name, Of: of, apply: parameter(kind, key, "", nil)}
	}
	return []ForeignFlag{
		{Name: "routing-logic", Of: stack, apply: (*foreign).routerMode},
		p("cache-threshold", others, "cache_aware", "cache_threshold"),
		p("cache-match-threshold", smg, "cache_aware", "cache_threshold"),
		p("balance-abs-threshold", others, "cache_aware", "balance_abs_threshold"),
		p("spill-abs-threshold", smg, "cache_aware", "balance_abs_threshold"),
		p("balance-rel-threshold", others, "cache_aware", "balance_rel_threshold"),
		p("spill-rel-threshold", smg, "cache_aware", "balance_rel_threshold"),
		p("balance-token-usage-threshold", smg, "cache_aware", "balance_token_usage_threshold"),
		p("overload-token-usage-threshold", smg, "cache_aware", "overload_token_usage_threshold"),
		p("eviction-interval-secs", others, "cache_aware", "eviction_interval_secs"),
		p("max-tree-size", others, "cache_aware", "max_tree_size"),
		p("prefix-token-count", smg, "prefix_hash", "prefix_token_count"),
		p("prefix-hash-load-factor", smg, "prefix_hash", "load_factor"),
		p("least-load-default-throughput", smg, "smg_least_load", "throughput"),
		p("bucket-adjust-interval-secs", sglang, "bucket", "bucket_adjust_interval_secs"),
		p("max-idle-secs", sglang, "manual", "max_idle_secs"),
		p("sticky-key-idle-secs", smg, "manual", "max_idle_secs"),
		p("assignment-mode", sglang, "manual", "assignment_mode"),
	}
}

// dynamoFlags are the flags of Dynamo's frontend. The names without router- are those of older versions.
func dynamoFlags() []ForeignFlag {
	p := func(name, key string) ForeignFlag {
		return ForeignFlag{Name: name, Of: dynamo, apply: parameter("kv", key, "", nil)}
	}
	onOff := func(name, key, value string) ForeignFlag {
		return ForeignFlag{Name: name, Of: dynamo, Form: NoValue, apply: parameter("kv", key, value, nil)}
	}
	return []ForeignFlag{
		{Name: "router-mode", Of: dynamo, apply: (*foreign).routerMode},
		p("kv-overlap-score-weight", "overlap_score_weight"),
		p("router-kv-overlap-score-weight", "overlap_score_weight"),
		p("router-kv-overlap-score-credit", "overlap_score_credit"),
		p("router-kv-overlap-score-credit-decay", "overlap_score_credit_decay"),
		p("router-prefill-load-scale", "prefill_load_scale"),
		p("router-host-cache-hit-weight", "host_cache_hit_weight"),
		p("router-disk-cache-hit-weight", "disk_cache_hit_weight"),
		p("router-decode-active-request-weight", "decode_active_request_weight"),
		p("router-temperature", "router_temperature"),
		onOff("kv-events", "use_kv_events", "true"), onOff("no-kv-events", "use_kv_events", "false"),
		onOff("router-kv-events", "use_kv_events", "true"), onOff("no-router-kv-events", "use_kv_events", "false"),
		{Name: "router-ttl-secs", Of: dynamo, apply: parameter("kv", "router_ttl", "", secondsText)},
		onOff("router-track-active-blocks", "track_active_blocks", "true"), onOff("no-router-track-active-blocks", "track_active_blocks", "false"),
		onOff("router-track-output-blocks", "track_output_blocks", "true"), onOff("no-router-track-output-blocks", "track_output_blocks", "false"),
		onOff("router-track-prefill-tokens", "track_prefill_tokens", "true"), onOff("no-router-track-prefill-tokens", "track_prefill_tokens", "false"),
		{Name: "kv-cache-block-size", Of: dynamo, apply: wholeTo("routing.block_size", func(c *Config) *int { return &c.Routing.BlockSize })},
	}
}

// advice is a row for flags without a counterpart.
type advice struct {
	names, of string // names are separated by spaces
	form      FlagForm
	text      string
}

// advised returns the flags of the rows.
func advised(refused bool, rows []advice) (all []ForeignFlag) {
	for _, row := range rows {
		for name := range strings.FieldsSeq(row.names) {
			all = append(all, ForeignFlag{Name: name, Of: row.of, Form: row.form, Advice: row.text, Refused: refused})
		}
	}
	return all
}

// unlikeFlags have no counterpart, and routing does not need their effect.
func unlikeFlags() []ForeignFlag {
	return advised(false, []advice{
		{"kv-event-block-size block-size", "vllm-router and SMG", OneValue, "leave it out: the router reads the block size from the engines (routing.block_sizes corrects it)"},
		{"pd-disaggregation vllm-pd-disaggregation", others, NoValue, "leave it out: workers with roles are enough (--prefill, --decode). A request is divided if that is predicted to cost less; " +
			"--disaggregation always divides each one, as there"},
		{"mini-lb", sglang, NoValue, "leave it out: it names a load balancer for tests"},
		{"pd-kv-events", vllm, NoValue, "leave it out: the router follows the events of all workers"},
		{"decode-fallback", dynamo, NoValue, "leave it out: a request for which no prefill worker can be used is served by a decode worker"},
		{"static-model-labels prefill-model-labels decode-model-labels", stack, OneValue, "give each worker its role: --worker URL,role=prefill"},
		{"dp-aware", sglang, NoValue, "leave it out: the router asks each worker for its ranks, and chooses the rank of each request"},
		{"enable-igw", others, NoValue, "leave it out: each request goes to the workers that serve its model"},
		{"max-concurrent-requests", others, OneValue, "routing.max_requests limits each worker, and queue.order lets further requests wait; tenants have limits of their own"},
		{"rate-limit-tokens-per-second", others, OneValue, "give limits to tenants, in the file"},
		{"retry-initial-backoff-ms retry-max-backoff-ms retry-backoff-multiplier retry-jitter-factor", others, OneValue,
			"leave it out: a retry goes to another worker, immediately"},
		{"cb-success-threshold cb-window-duration-secs", others, OneValue, "leave it out: one good trial closes the breaker; breaker.delay and breaker.max_delay say when it is tried"},
		{"disable-circuit-breaker", others, NoValue, "breaker.failures: 1000000 has nearly this effect; a request then also goes to a worker whose connections fail"},
		{"health-success-threshold", others, OneValue, "leave it out: a worker is healthy after one good answer, and gets its share of requests slowly"},
		{"disable-health-check", others, NoValue, "health.interval: 1h asks rarely; without checks a dead worker is found only by failed requests"},
		{"worker-startup-timeout-secs worker-startup-check-interval", others, OneValue, "leave it out: the router starts at once, and asks a worker until it answers (health.retry)"},
		{"log-dir", others, OneValue, "the log goes to standard error: let systemd or the container's runtime keep it"},
		{"request-id-headers", others, ManyValues, "leave it out: headers with request ids pass through"},
		{"prometheus-duration-buckets", sglang, ManyValues, "leave it out: the histograms have fixed buckets (docs/metrics.md)"},
		{"cors-allowed-origins", others, ManyValues, "answer CORS in a proxy in front of the router"},
		{"static-models", stack, OneValue, "leave it out: the router asks the workers for their models; or --worker URL,model=NAME"},
		{"kv-penalty-host kv-penalty-external kv-penalty-disk", vllm, OneValue, "set routing.tier_weights in the file: 1 minus the penalty"},
		{"kv-aware-session-affinity-ttl-secs", vllm, OneValue, "--policy session_affinity:ttl=TIME keeps sessions together; the cache-aware policies do so by the cache"},
		{"worker-overload-waiting-requests worker-overload-token-usage", smg, OneValue, "set queue.max_waiting or queue.max_kv_used in the file, with queue.order"},
		{"tokenizer-cache-l0-max-entries tokenizer-cache-l0-max-memory tokenizer-cache-l1-max-memory", sglang, OneValue, "tokens.cache_bytes bounds the remembered ids"},
		{"tokenizer-cache-enable-l0 tokenizer-cache-enable-l1 disable-tokenizer-autoload", sglang, NoValue, "leave it out: ids are remembered (tokens.cache_bytes)"},
		{"tokenizer-path", sglang, OneValue, "name the folder of the model's files: --model-path DIR"},
		{"reasoning-parser tool-call-parser chat-template backend", sglang, OneValue, "leave it out: the engine parses and renders; give these flags to the engine"},
		{"least-load-kv-pressure-weight least-load-max-waiting-requests least-load-mean-prefill-tokens power-of-two-load-metric prefix-hash-balance-abs-threshold " +
			"overlap-decay selection-temperature selection-accounting-ttl-ms cache-boundaries cache-index cache-ttl-secs kv-index worker-warmup-secs " +
			"worker-warmup-share worker-warmup-blocks worker-warmup-thin-ratio worker-warmup-divert-every", smg, OneValue,
			"leave it out: no policy here has this parameter (docs/policies.md)"},
		{"routing-key-override sticky-sessions", smg, NoValue, "--policy session_affinity keeps conversations together; the cache-aware policies do so by the cache"},
		{"worker-overload-protection disable-worker-overload-protection", smg, NoValue, "set queue.order, and queue.max_waiting or queue.max_kv_used, in the file"},
		{"worker-stall-secs worker-wedge-secs worker-stale-secs worker-startup-delay", smg, OneValue, "leave it out: health.interval, health.timeout and health.misses say when a worker counts as dead"},
		{"remove-unhealthy-workers worker-auto-recovery", smg, NoValue, "leave it out: an unhealthy worker gets no requests, and comes back when it answers"},
		{"disable-load-monitoring dp-minimum-tokens-scheduler", smg, NoValue, "leave it out: the router counts its own requests for each rank, and reads the engines' load reports (reports)"},
		{"load-monitor-interval", smg, OneValue, "set reports.interval in the file"},
		{"upstream-http2", smg, NoValue, "set worker_defaults.protocol: http2 in the file"},
		{"max-buffered-request-bytes multimodal-max-inflight-bytes", smg, OneValue, "set body.max_bytes in the file"},
		{"sse-keepalive-secs health-check-port jemalloc-prof-dir", smg, OneValue, "leave it out: /health and /readiness are at the address for clients, and the router sends no bytes of its own into streams"},
		{"model parser", smg, OneValue, "leave it out: the router asks the engines for their models, and the engine parses answers; --model-path DIR names a model's files"},
		{"multimodal-tensor-transport multimodal-shm-min-bytes mm-processing mm-pixel-cache-mb rdma-listen-ip rdma-slot-ttl-s", smg, OneValue,
			"leave it out: the engine loads media"},
		{"mm-pixel-rdma mm-allow-private-media-hosts log-mm-timing", smg, NoValue, "leave it out: the engine loads media"},
		{"job-queue-capacity job-queue-concurrency discovery-check-interval-secs rl-control-timeout-secs rl-fanout-concurrency " +
			"priority-scheduler-tenant-metric-top-n", smg, OneValue, "leave it out: the bound is fixed here"},
		{"router-replica-sync", dynamo, NoValue, "set sync in the file (docs/replicas.md)"},
		{"router-session-affinity-ttl-secs", dynamo, OneValue, "--policy session_affinity:ttl=TIME keeps sessions together"},
		{"router-queue-threshold router-queue-policy busy-threshold active-decode-blocks-threshold active-prefill-tokens-threshold", dynamo, OneValue,
			"set queue.order, and queue.max_backlog or queue.max_kv_used, in the file"},
		{"router-predicted-ttl-secs", dynamo, OneValue, "leave it out: routing.speculative_ttl says how long a sent prompt is expected in a cache"},
		{"router-event-threads router-min-initial-workers", dynamo, OneValue, "leave it out: events need no threads of their own, and the router starts without workers"},
		{"migration-limit migration-max-seq-len", dynamo, OneValue, "gateway.stream_recovery says which streams continue at another worker (docs/operate.md)"},
		{"router-assume-kv-reuse", dynamo, NoValue, "leave it out: requests under way that share a prefix are counted once"},
	})
}

// refusedFlags have no counterpart, and without their effect requests would go elsewhere, or be less protected.
func refusedFlags() []ForeignFlag {
	return advised(true, []advice{
		{"epd-disaggregation", smg, NoValue, noEncoders},
		{"encode encode-selector", smg, ManyValues, noEncoders},
		{"encode-policy", smg, OneValue, noEncoders},
		{"prefill-selector decode-selector", others, ManyValues, sources + "; each name has a role: workers_dns: {names: [{url: …, role: prefill}]}"},
		{"vllm-discovery-address", vllm, OneValue, "the router does not listen for engines that register: name them, --worker URL,role=prefill"},
		{"service-discovery", others, NoValue, sources},
		{"selector", others, ManyValues, sources},
		{"service-discovery-port service-discovery-namespace discovery-provider discovery-file", others, OneValue, sources},
		{"discovery-backend request-plane event-plane namespace namespace-prefix", dynamo, OneValue, "name the engines' own HTTP addresses: --worker URL"},
		{"use-remote-indexer", dynamo, NoValue, "--index URL asks an index service (docs/index-service.md)"},
		{"serve-indexer", dynamo, NoValue, "set index_service.listen in the file (docs/index-service.md)"},
		{"admission-control load-aware", dynamo, NoValue, "leave the flag out: each router has an index of its own"},
		{"router-policy-config router-prefill-policy router-decode-policy", dynamo, OneValue, "describe policies in the file (docs/policies.md)"},
		{"tenant-api-key tenant-rate-limit-config priority-scheduler-config", sglang, OneValue, "describe tenants in the file (docs/tenants.md)"},
		{"jwt-issuer jwt-audience jwt-jwks-uri", sglang, OneValue, "operators have one key: admin.key_file; the section jwt of the file is for clients (docs/tenants.md)"},
		{"control-plane-api-keys jwt-role-mapping", sglang, ManyValues, "set admin.key_file, or the variable " + EnvAdminKey},
		{"mcp-config-path history-backend", sglang, OneValue, noHistory},
		{"mm-allowed-media-domains", smg, OneValue, "let the engine restrict the addresses of media (vLLM: --allowed-media-domains)"},
		{"mm-per-request-image-limit max-background-responses", smg, OneValue, "set this limit at the engine"},
		{"tenant-rate-limit-enabled priority-scheduler-enabled", smg, NoValue, "describe tenants in the file (docs/tenants.md)"},
		{"priority-scheduler-default-max-class", smg, OneValue, "describe tenants in the file (docs/tenants.md)"},
		{"control-plane-audit-enabled", sglang, NoValue, "leave the flag out"},
		{"model-id-from kv-connector-annotation kv-engine-id-annotation", smg, OneValue, sources},
		{"router-selector mesh-peer-urls", smg, ManyValues, "set sync in the file (docs/replicas.md)"},
		{"mesh-server-name mesh-host mesh-advertise-host mesh-port mesh-tls-ca-cert mesh-tls-cert mesh-tls-key", smg, OneValue,
			"set sync in the file (docs/replicas.md)"},
		{"prefill-max-inflight-requests-per-worker prefill-queue-size prefill-queue-timeout-secs pd-admission-wait-secs", smg, OneValue,
			"set routing.max_requests and queue in the file: they hold for all workers, those with the role prefill included"},
		{"zmq-engine-count", smg, OneValue, "the router speaks HTTP with engines: name the address of their HTTP API, --worker URL"},
		{"oracle-wallet-path oracle-tns-alias oracle-connect-descriptor oracle-username oracle-password oracle-pool-min oracle-pool-max oracle-pool-timeout-secs " +
			"postgres-db-url postgres-pool-max redis-url redis-pool-max redis-retention-days", sglang, OneValue, noHistory},
		{"postgres-op-timeout-secs redis-op-timeout-secs schema-config storage-hook-wasm-path history-memory-max-responses history-memory-max-items " +
			"history-memory-retention-secs", smg, OneValue, noHistory},
		{"oracle-external-auth", smg, NoValue, noHistory},
		{"storage-context-headers", smg, ManyValues, noHistory},
		{"wasm-middleware-route wasm-middleware-sha256", vllm, OneValue, "leave the flag out, and change requests in a proxy in front"},
		{"enable-wasm enable-mesh enable-rl worker-overload-shed", smg, NoValue, "leave the flag out"},
		{"wasm-middleware program-scheduling-config-json", vllm, OneValue, "leave the flag out, and change requests in a proxy in front"},
		{"enable-program-scheduling", vllm, NoValue, "leave the flag out"},
		{"model-alias", smg, OneValue, "set model_aliases in the file (docs/configure.md)"},
		{"selection-policy", smg, OneValue, "set policies and model_policies in the file (docs/configure.md)"},
	})
}
