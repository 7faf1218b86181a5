package migrate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/policy"
)

// gatewayFlags are the keys of a gateway's file that have the meaning of a flag. A section is a part of the key.
var gatewayFlags = map[string]string{
	"host": "host", "port": "port", "log_level": "log-level", "api_key": "api-key", "mode.worker_urls": "worker-urls", "worker_urls": "worker-urls",
	"metrics.host": "prometheus-host", "metrics.port": "prometheus-port", "request_timeout_secs": "request-timeout-secs",
	"max_payload_size": "max-payload-size", "max_concurrent_requests": "max-concurrent-requests", "queue_size": "queue-size",
	"queue_timeout_secs": "queue-timeout-secs", "rate_limit_tokens_per_second": "rate-limit-tokens-per-second",
	"worker_startup_timeout_secs": "worker-startup-timeout-secs", "worker_startup_check_interval_secs": "worker-startup-check-interval",
	"intra_node_data_parallel_size": "intra-node-data-parallel-size",
	"request_id_headers":            "request-id-headers", "cors_allowed_origins": "cors-allowed-origins", "log_dir": "log-dir",
	"tokenizer_path": "tokenizer-path", "shutdown_grace_period_secs": "shutdown-grace-period-secs",
	"retry.max_retries": "retry-max-retries", "retry.initial_backoff_ms": "retry-initial-backoff-ms", "retry.max_backoff_ms": "retry-max-backoff-ms",
	"retry.backoff_multiplier": "retry-backoff-multiplier", "retry.jitter_factor": "retry-jitter-factor",
	"circuit_breaker.failure_threshold": "cb-failure-threshold", "circuit_breaker.success_threshold": "cb-success-threshold",
	"circuit_breaker.timeout_duration_secs": "cb-timeout-duration-secs", "circuit_breaker.window_duration_secs": "cb-window-duration-secs",
	"health_check.failure_threshold": "health-failure-threshold", "health_check.success_threshold": "health-success-threshold",
	"health_check.timeout_secs": "health-check-timeout-secs", "health_check.check_interval_secs": "health-check-interval-secs",
	"health_check.endpoint": "health-check-endpoint", "service_discovery.enabled": "service-discovery",
}

// gatewaySwitches are flags without a value: a key with the value true gives them.
var gatewaySwitches = map[string]string{
	"disable_retries": "disable-retries", "disable_circuit_breaker": "disable-circuit-breaker", "dp_aware": "dp-aware", "enable_igw": "enable-igw",
}

// gatewayAdvice says what to do about keys without a counterpart, by key or by section.
var gatewayAdvice = map[string]string{
	"mode.encode_urls": "the router knows no workers that only encode images: let the prefill workers encode", "mode.kv_events.topic_filter": "the router asks the engines for their topic",
	"mode.kv_events.default_port": "the router asks the engines for their event endpoints; name others as events: of a worker", "admin_api_key": "set admin.key_file, or the variable " + config.EnvAdminKey,
	"model_rules":            "model_aliases gives models further names (docs/configure.md)",
	"expose_routing_headers": "gateway.headers says whether answers have the router's headers", "decision_log": "telemetry.decision_log writes decisions to a file, and GET /admin/decisions has the last ones (docs/observe.md)",
	"trace_config": "set telemetry.traces (docs/observe.md)", "semantic_cache": "cache answers in the application or in a proxy",
	"prompt_cache": "cache answers in the application or in a proxy", "pre_routing_hooks": "check requests in a proxy in front of the router",
	"semantic_cluster": "give related requests the same session header", "shared_prefix_routing": "each router reads the engines' events",
	"service_discovery": "name a headless service of the engines' pods in workers_dns, or the workers under workers (docs/configure.md)",
}

// gateway reads a file of the family of SMG and vllm-router: the router's settings, with worker_urls and a policy.
func (c *converter) gateway(root *config.Node) { c.section("", root) }

// section reads the keys of a mapping. path is its own key.
func (c *converter) section(path string, n *config.Node) {
	for _, p := range n.Pairs {
		key := strings.TrimPrefix(path+"."+p.Key, ".")
		switch {
		case key == "mode" && p.Value.Pairs != nil, key == "mode.kv_events":
			c.section(key, p.Value)
		case key == "mode.type":
			c.mode(key, p.Value)
		case key == "mode.prefill_urls":
			c.prefill(key, p.Value)
		case key == "mode.decode_urls":
			if urls := texts(p.Value); len(urls) > 0 {
				c.flag(key, "decode", urls...)
			}
		case key == "mode.kv_connector" && text(p.Value) != "":
			c.flag(key, "kv-connector", text(p.Value))
		case key == "mode.prefill_policy" && p.Value.Pairs != nil:
			c.legPolicy(key, p.Value, &c.Disaggregation.PrefillPolicy)
		case key == "mode.decode_policy" && p.Value.Pairs != nil:
			c.legPolicy(key, p.Value, &c.Disaggregation.DecodePolicy)
		case strings.HasSuffix(key, "pd_uncached_token_threshold"):
			c.threshold(key, p.Value)
		case key == "policy" && p.Value.Pairs != nil, key == "mode.policy":
			c.usePolicy(key, p.Value)
		case key == "policy":
			c.flag(key, "policy", texts(p.Value)...)
		case key == "routing" && p.Value.Pairs != nil:
			c.routing(p.Value)
		case key == "model_path":
			c.modelPath(p.Value)
		case key == "metrics.host" && text(p.Value) != "127.0.0.1" && text(p.Value) != "localhost":
			c.note(key, p.Value, "admin.listen stays on 127.0.0.1: an address that other machines reach needs admin.key_file")
		case key == "api_keys":
			c.tenants(p.Value)
		case key == "engine_wait_timeout_secs":
			c.hold(key, p.Value)
		case gatewaySwitches[key] != "":
			if text(p.Value) == "true" {
				c.flag(key, gatewaySwitches[key], "true")
			}
		case gatewayFlags[key] != "":
			if values := texts(p.Value); len(values) > 0 {
				c.flag(key, gatewayFlags[key], values...)
			}
		case path == "" && slices.Contains([]string{"metrics", "retry", "circuit_breaker", "health_check"}, key) && p.Value.Pairs != nil:
			c.section(key, p.Value)
		case key == "mode.encode_urls" && len(p.Value.Entries()) == 0:
		default:
			advice := gatewayAdvice[key]
			if section, _, nested := strings.Cut(key, "."); advice == "" && nested {
				advice = gatewayAdvice[section]
			}
			c.note(key, unlessSecret(p), advice)
		}
	}
}

// mode reads how the router uses its workers.
func (c *converter) mode(key string, n *config.Node) {
	switch text(n) {
	case "regular":
	case "prefill_decode", "vllm_prefill_decode":
		c.notes = append(c.notes, key+": a request is divided if that is predicted to cost less than one worker; disaggregation: {mode: always} divides each one, as there")
	default:
		c.note(key, n, "name the workers with their roles (docs/prefill-decode.md)")
	}
}

// prefill reads prefill workers: each is a URL, or a list of a URL and the port of its bootstrap server or null.
func (c *converter) prefill(key string, n *config.Node) {
	var values []string
	for _, entry := range n.Entries() {
		if entry.List == nil {
			values = append(values, text(entry), "none")
			continue
		}
		pair := texts(entry)
		if len(pair) == 0 {
			continue
		}
		values = append(values, pair[0], "none")
		if len(pair) > 1 {
			values[len(values)-1] = pair[1]
		}
	}
	if len(values) > 0 {
		c.flag(key, "prefill", values...)
	}
}

// threshold reads the number of uncached tokens from which on a request is divided.
func (c *converter) threshold(key string, n *config.Node) {
	tokens, err := strconv.Atoi(text(n))
	if err != nil || tokens < 0 || tokens > 1<<30 {
		c.note(key, n, "disaggregation.pd_uncached_token_threshold has the same meaning")
		return
	}
	c.Disaggregation.UncachedTokenThreshold = tokens
}

// legPolicy reads the policy for prefill or decode workers. Its parameters become a part of its name.
func (c *converter) legPolicy(key string, n *config.Node, at *string) {
	if threshold := n.Get("pd_uncached_token_threshold"); threshold != nil {
		c.threshold(key+".pd_uncached_token_threshold", threshold)
	}
	name := text(n.Get("type"))
	var renamed config.Config
	if _, err := config.ApplyForeign(&renamed, []config.GivenFlag{{Name: "decode-policy", Values: []string{name}}}); err != nil || name == "" {
		c.note(key, nil, "name a policy under disaggregation")
		return
	}
	kind, ok := warmpath.PolicyKinds().Find(renamed.Disaggregation.DecodePolicy)
	if !ok {
		c.note(key+".type", n.Get("type"), "there is no such policy; the policy of the request decides. docs/policies.md lists the others")
		c.policyNotes(key, n)
		return
	}
	known, standard := policy.ParameterKeys(kind.Defaults()), kind.Defaults()
	*at = kind.Name
	sign := ":"
	for _, p := range n.Pairs {
		switch value := text(p.Value); {
		case p.Key == "type", p.Key == "pd_uncached_token_threshold":
		case !slices.Contains(known, p.Key):
			c.note(key+"."+p.Key, unlessSecret(p), "the policy has no such parameter here (docs/policies/"+kind.Name+".md)")
		case p.Value.Pairs != nil || p.Value.List != nil || strings.ContainsAny(value, ",=") || kind.Set(standard, p.Key, value) != nil:
			c.note(key+"."+p.Key, unlessSecret(p), "describe the policy under policies, and name it under disaggregation (docs/policies.md)")
		default:
			*at += sign + p.Key + "=" + value
			sign = ","
		}
	}
}

// tenants reads the keys of clients. The new file has their SHA-256 only.
func (c *converter) tenants(n *config.Node) {
	for i, entry := range n.Entries() {
		t := tenant.Config{Name: text(entry.Get("name")), Models: texts(entry.Get("allowed_models"))}
		if t.Name == "" {
			t.Name = fmt.Sprintf("client-%d", i+1)
		}
		if key := text(entry); key != "" { // a list of keys without settings
			t.KeysSHA256 = []string{tenant.KeySHA256(key)}
		}
		for _, p := range entry.Keys() {
			at := fmt.Sprintf("api_keys[%d].%s", i, p.Key)
			number, err := strconv.ParseFloat(text(p.Value), 64)
			switch p.Key {
			case "name", "allowed_models":
			case "key":
				t.KeysSHA256 = []string{tenant.KeySHA256(text(p.Value))}
			case "rate_limit_rps":
				t.RequestsPerSecond = number
			case "max_concurrent":
				t.MaxConcurrent = int(min(number, 1e9))
			default:
				err = nil
				c.note(at, unlessSecret(p), "")
			}
			if err != nil && (p.Key == "rate_limit_rps" || p.Key == "max_concurrent") {
				c.note(at, p.Value, "this is no number")
			}
		}
		c.Tenants = append(c.Tenants, t)
	}
}

// hold reads how long requests wait while there is no worker.
func (c *converter) hold(key string, n *config.Node) {
	seconds, err := strconv.ParseFloat(text(n), 64)
	if err != nil || !(seconds >= 0 && seconds < 1e6) {
		c.note(key, n, "gateway.hold.max_wait has the same meaning")
		return
	}
	c.Gateway.Hold.MaxWait = time.Duration(seconds * float64(time.Second))
}

// modelPath reads a folder, or a name on the hub.
func (c *converter) modelPath(n *config.Node) {
	if path := text(n); strings.HasPrefix(path, "/") || strings.HasPrefix(path, ".") {
		c.note("model_path", n, "models: [{path: …}] names the folder, if the router does not find it by itself")
	} else if path != "" {
		c.note("model_path", n, "the router looks for the model in the Hugging Face cache; models: [{path: hub:"+path+"}] and hub.allow: true download it")
	}
}

// routing reads the section of vllm_cache_aware's design: the name of a policy, and the policy's parameters under its
// name.
func (c *converter) routing(n *config.Node) {
	name := text(n.Get("policy"))
	if parameters := n.Get(name); name != "" && parameters != nil && parameters.Pairs != nil {
		c.usePolicy("routing."+name, &config.Node{Pairs: append([]config.Pair{{Key: "type", Value: &config.Node{Text: name}}}, parameters.Pairs...)})
	} else if name != "" {
		c.flag("routing.policy", "policy", name)
	}
	for _, p := range n.Pairs {
		if p.Key != "policy" && p.Key != name {
			c.note("routing."+p.Key, unlessSecret(p), "")
		}
	}
}

// usePolicy reads a policy with its parameters. A policy that exists here has the parameters that it has there.
func (c *converter) usePolicy(key string, n *config.Node) {
	name := text(n.Get("type"))
	renamed := config.Default()
	if _, err := config.ApplyForeign(&renamed, []config.GivenFlag{{Name: "policy", Values: []string{name}}}); err != nil || name == "" {
		c.note(key, nil, "name a policy under policy")
		return
	}
	kind, ok := warmpath.PolicyKinds().Find(renamed.Policy)
	if !ok {
		c.note(key+".type", n.Get("type"), "there is no such policy; the default policy marginal decides. docs/policies.md lists the others")
		c.policyNotes(key, n)
		return
	}
	known := policy.ParameterKeys(kind.Defaults())
	c.policy = []string{"policy:", "  type: " + kind.Name}
	for _, p := range n.Pairs {
		switch {
		case p.Key == "type":
		case slices.Contains(known, p.Key):
			c.policy = append(c.policy, "  "+p.Key+": "+flow(p.Value))
		default:
			c.note(key+"."+p.Key, unlessSecret(p), "the policy has no such parameter here (docs/policies/"+kind.Name+".md)")
		}
	}
}

func (c *converter) policyNotes(key string, n *config.Node) {
	for _, p := range n.Pairs {
		if p.Key != "type" {
			c.note(key+"."+p.Key, unlessSecret(p), "")
		}
	}
}
