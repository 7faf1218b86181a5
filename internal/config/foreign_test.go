package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/discovery"
)

// honoured has a value for each flag that has a counterpart, and the setting that the flag must become.
var honoured = map[string]struct{ value, setting string }{
	"worker-urls":                          {"http://c:1 http://d:2/v1", "workers: http://c:1, http://d:2"},
	"static-backends":                      {"http://c:1,http://d:2", "workers: http://c:1, http://d:2"},
	"prefill":                              {"http://p:1 8998 http://q:2/v1 none http://r:3", "workers with the role prefill: http://p:1, http://q:2, http://r:3"},
	"decode":                               {"http://d:1 http://d:2", "workers with the role decode: http://d:1, http://d:2"},
	"kv-connector":                         {"mooncake", "connector of all workers: mooncake"},
	"intra-node-data-parallel-size":        {"4", "ranks of all workers: 4"},
	"kv-event-source":                      {"http://a:1=tcp://a:5557,tcp://a:5558", "events of the workers: http://a:1=tcp://a:5557,tcp://a:5558"},
	"kv-event-replay-source":               {"http://a:1=tcp://a:5657", "replay of the workers: http://a:1=tcp://a:5657"},
	"kv-event-model":                       {"m", "model of all workers: m"},
	"api-key":                              {"secret", "api_key of all workers, and of the tenant default: clients need it, as with SMG and sglang-router"},
	"host":                                 {"127.0.0.1", "listen: 127.0.0.1:8080"},
	"port":                                 {"30000", "listen: :30000"},
	"http-host":                            {"::1", "listen: [::1]:8080"},
	"http-port":                            {"8000", "listen: :8000"},
	"prometheus-host":                      {"::1", "admin.listen: [::1]:9090"},
	"prometheus-port":                      {"29000", "admin.listen: 127.0.0.1:29000"},
	"request-timeout-secs":                 {"90", "gateway.request_timeout: 1m30s"},
	"shutdown-grace-period-secs":           {"60", "gateway.drain_timeout: 1m0s"},
	"header-read-timeout-secs":             {"3", "gateway.read_header_timeout: 3s"},
	"idle-connection-timeout-secs":         {"3", "gateway.idle_timeout: 3s"},
	"upstream-pool-idle-timeout-secs":      {"3", "proxy.idle_timeout: 3s"},
	"stream-body-stall-timeout-secs":       {"3", "proxy.stream_idle_timeout: 3s"},
	"max-payload-size":                     {"1024", "body.max_bytes: 1024"},
	"queue-size":                           {"100", "queue.max_requests (it counts if queue.order is not off): 100"},
	"queue-timeout-secs":                   {"60", "queue.max_wait (it counts if queue.order is not off): 1m0s"},
	"retry-max-retries":                    {"5", "gateway.attempts: 5"}, // they count the first attempt, too
	"disable-retries":                      {"", "gateway.attempts: 1"},
	"cb-failure-threshold":                 {"10", "breaker.failures: 10"},
	"cb-timeout-duration-secs":             {"60", "breaker.delay: 1m0s"},
	"health-failure-threshold":             {"4", "health.misses: 4"},
	"health-check-timeout-secs":            {"7", "health.timeout: 7s"},
	"health-check-interval-secs":           {"60", "health.interval: 1m0s"},
	"health-check-endpoint":                {"/health", "GET /health, as always"},
	"tls-cert-path":                        {"/cert.pem", "tls.cert_file: /cert.pem"},
	"tls-key-path":                         {"/key.pem", "tls.key_file: /key.pem"},
	"log-json":                             {"", "telemetry.log_format: json"},
	"ca-cert-paths":                        {"/ca.pem", "worker_defaults.tls.ca_file: /ca.pem"},
	"client-cert-path":                     {"/cert.pem", "worker_defaults.tls.cert_file: /cert.pem"},
	"client-key-path":                      {"/key.pem", "worker_defaults.tls.key_file: /key.pem"},
	"enable-trace":                         {"", `telemetry.traces: {endpoint: "http://localhost:4317", protocol: grpc}`},
	"otlp-traces-endpoint":                 {"otel:4317", `telemetry.traces: {endpoint: "http://otel:4317", protocol: grpc}`},
	"trust-tenant-header":                  {"", "gateway.tenant_header: x-smg-tenant-id"},
	"tenant-header-name":                   {"x-tenant", "none, as in SMG: the header counts with --trust-tenant-header"},
	"routing-key-headers":                  {"x-a x-b", "gateway.session_headers: x-a, x-b"},
	"session-key":                          {"x-user", "gateway.session_headers: x-user"},
	"routing-logic":                        {"prefixaware", "policy: cache_aware"},
	"cache-threshold":                      {"0.4", "policy cache_aware, parameter cache_threshold: 0.4"},
	"cache-match-threshold":                {"0.4", "policy cache_aware, parameter cache_threshold: 0.4"},
	"balance-abs-threshold":                {"7", "policy cache_aware, parameter balance_abs_threshold: 7"},
	"spill-abs-threshold":                  {"7", "policy cache_aware, parameter balance_abs_threshold: 7"},
	"balance-rel-threshold":                {"1.3", "policy cache_aware, parameter balance_rel_threshold: 1.3"},
	"spill-rel-threshold":                  {"1.3", "policy cache_aware, parameter balance_rel_threshold: 1.3"},
	"balance-token-usage-threshold":        {"0.3", "policy cache_aware, parameter balance_token_usage_threshold: 0.3"},
	"overload-token-usage-threshold":       {"0.3", "policy cache_aware, parameter overload_token_usage_threshold: 0.3"},
	"eviction-interval-secs":               {"9", "policy cache_aware, parameter eviction_interval_secs: 9"},
	"max-tree-size":                        {"900", "policy cache_aware, parameter max_tree_size: 900"},
	"prefix-token-count":                   {"9", "policy prefix_hash, parameter prefix_token_count: 9"},
	"prefix-hash-load-factor":              {"1.5", "policy prefix_hash, parameter load_factor: 1.5"},
	"least-load-default-throughput":        {"9", "policy smg_least_load, parameter throughput: 9"},
	"bucket-adjust-interval-secs":          {"9", "policy bucket, parameter bucket_adjust_interval_secs: 9"},
	"max-idle-secs":                        {"9", "policy manual, parameter max_idle_secs: 9"},
	"sticky-key-idle-secs":                 {"9", "policy manual, parameter max_idle_secs: 9"},
	"assignment-mode":                      {"min_load", "policy manual, parameter assignment_mode: min_load"},
	"router-mode":                          {"kv", "policy: kv"},
	"kv-overlap-score-weight":              {"2", "policy kv, parameter overlap_score_weight: 2"},
	"router-kv-overlap-score-weight":       {"2", "policy kv, parameter overlap_score_weight: 2"},
	"router-kv-overlap-score-credit":       {"2", "policy kv, parameter overlap_score_credit: 2"},
	"router-kv-overlap-score-credit-decay": {"2", "policy kv, parameter overlap_score_credit_decay: 2"},
	"router-prefill-load-scale":            {"2", "policy kv, parameter prefill_load_scale: 2"},
	"router-host-cache-hit-weight":         {"0.5", "policy kv, parameter host_cache_hit_weight: 0.5"},
	"router-disk-cache-hit-weight":         {"0.1", "policy kv, parameter disk_cache_hit_weight: 0.1"},
	"router-decode-active-request-weight":  {"2", "policy kv, parameter decode_active_request_weight: 2"},
	"router-temperature":                   {"0.5", "policy kv, parameter router_temperature: 0.5"},
	"kv-events":                            {"", "policy kv, parameter use_kv_events: true"},
	"no-kv-events":                         {"", "policy kv, parameter use_kv_events: false"},
	"router-kv-events":                     {"", "policy kv, parameter use_kv_events: true"},
	"no-router-kv-events":                  {"", "policy kv, parameter use_kv_events: false"},
	"router-ttl-secs":                      {"30", "policy kv, parameter router_ttl: 30s"},
	"router-track-active-blocks":           {"", "policy kv, parameter track_active_blocks: true"},
	"no-router-track-active-blocks":        {"", "policy kv, parameter track_active_blocks: false"},
	"router-track-output-blocks":           {"", "policy kv, parameter track_output_blocks: true"},
	"no-router-track-output-blocks":        {"", "policy kv, parameter track_output_blocks: false"},
	"router-track-prefill-tokens":          {"", "policy kv, parameter track_prefill_tokens: true"},
	"no-router-track-prefill-tokens":       {"", "policy kv, parameter track_prefill_tokens: false"},
	"kv-cache-block-size":                  {"32", "routing.block_size: 32"},
}

func withWorkers() Config {
	c := Default()
	c.Workers = []discovery.Target{{URL: "http://a:1"}, {URL: "http://b:1"}}
	return c
}

// TestEachForeignFlagIsHonouredOrExplained goes through the table. A flag with a counterpart changes the configuration,
// which stays valid. A flag without one changes nothing, and says what to do.
func TestEachForeignFlagIsHonouredOrExplained(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range ForeignFlags() {
		if seen[row.Name] {
			t.Errorf("--%s is in the table twice", row.Name)
		}
		seen[row.Name] = true
		want, has := honoured[row.Name]
		if has != (row.apply != nil) || row.apply == nil && row.Advice == "" || row.Of == "" {
			t.Errorf("--%s: applied %v, in the test %v, advice %q", row.Name, row.apply != nil, has, row.Advice)
			continue
		}
		values := strings.Fields(want.value)
		if row.Form == OneValue && !has {
			values = []string{"1"}
		}
		c, before := withWorkers(), withWorkers()
		mapped, err := ApplyForeign(&c, []GivenFlag{{row.Name, values}})
		switch {
		case row.Refused:
			if err == nil || !strings.Contains(err.Error(), "--"+row.Name) || !strings.Contains(err.Error(), row.Advice) {
				t.Errorf("--%s: error %v", row.Name, err)
			}
			continue
		case err != nil || len(mapped) != 1 || mapped[0].Of != row.Of || !strings.HasPrefix(mapped[0].Flag, "--"+row.Name):
			t.Errorf("--%s %q: %+v, %v", row.Name, values, mapped, err)
			continue
		}
		if mapped[0].Setting != want.setting || mapped[0].Advice != row.Advice {
			t.Errorf("--%s %q became %q (%s), want %q (%s)", row.Name, values, mapped[0].Setting, mapped[0].Advice, want.setting, row.Advice)
		}
		if changed := !reflect.DeepEqual(c, before); changed != has && row.Name != "health-check-endpoint" && row.Name != "tenant-header-name" {
			t.Errorf("--%s %q: the configuration changed: %v", row.Name, values, changed)
		}
		if row.Name == "prometheus-host" { // an address that others reach needs a key
			c.Admin.Key = "long enough"
		}
		c.TLS, c.WorkerDefaults.TLS = before.TLS, before.WorkerDefaults.TLS // one file alone is not valid
		var found problems
		c.validate(&found)
		if len(found) > 0 {
			t.Errorf("--%s %q: the configuration is not valid: %v", row.Name, values, found)
		}
		for _, bad := range []string{"", "x y", "-1", "1e99", "http://no-such:1=tcp://a:1", "\x00"} {
			c := withWorkers()
			_, _ = ApplyForeign(&c, []GivenFlag{{row.Name, []string{bad}}}) // must not panic
		}
	}
	for name := range honoured {
		if !seen[name] {
			t.Errorf("--%s is not in the table", name)
		}
	}
}

// The parameters of a policy go to the policy that the command line names, or to the policy that has them.
func TestForeignParametersGoToThePolicyInForce(t *testing.T) {
	one := func(name string, values ...string) GivenFlag { return GivenFlag{name, values} }
	for _, test := range []struct {
		given  []GivenFlag
		policy string
		advice string // part of an advice
	}{
		{[]GivenFlag{one("cache-threshold", "0.4")}, "cache_aware:cache_threshold=0.4", ""},
		{[]GivenFlag{one("policy", "cache_aware"), one("balance-abs-threshold", "5"), one("cache-threshold", "0.4")},
			"cache_aware:cache_threshold=0.4,balance_abs_threshold=5", ""},
		{[]GivenFlag{one("policy", "round_robin"), one("cache-threshold", "0.4")}, "round_robin", "no effect with policy round_robin"},
		{[]GivenFlag{one("router-mode", "kv"), one("no-kv-events"), one("router-temperature", "0.1")}, "kv:router_temperature=0.1,use_kv_events=false", ""},
		{[]GivenFlag{one("router-mode", "round-robin"), one("router-temperature", "0.1")}, "round_robin", "no effect"},
		{[]GivenFlag{one("policy", "consistent_hashing")}, "consistent_hash", ""},
		{[]GivenFlag{one("policy", "cache_aware_zmq")}, "kv_aware", ""},
		{[]GivenFlag{one("policy", "marginal")}, "marginal", ""},
		{[]GivenFlag{one("policy", "cache_aware:cache_threshold=0.2"), one("balance-abs-threshold", "5")}, "cache_aware:cache_threshold=0.2,balance_abs_threshold=5", ""},
	} {
		c := withWorkers()
		mapped, err := ApplyForeign(&c, test.given)
		if err != nil || c.Policy != test.policy {
			t.Errorf("%v: policy %s, %v; want %s", test.given, c.Policy, err, test.policy)
		}
		advised := slices.ContainsFunc(mapped, func(m MappedFlag) bool { return test.advice != "" && strings.Contains(m.Advice, test.advice) })
		if advised != (test.advice != "") {
			t.Errorf("%v: %+v", test.given, mapped)
		}
		var found problems
		c.validate(&found)
		if len(found) > 0 {
			t.Errorf("%v: %v", test.given, found)
		}
	}
}

// The flags of a queue have an effect only if the file turns the queue on. If it does not, the router says so.
func TestForeignFlagsOfAQueueSayThatTheQueueIsOff(t *testing.T) {
	for _, test := range []struct {
		order, size string
		advised     []string // the flags that need advice
		want        string   // the order then
	}{
		{"off", "100", []string{"--queue-size 100", "--queue-timeout-secs 60"}, "off"},
		{"fair", "100", nil, "fair"},
		{"fcfs", "0", []string{"--queue-timeout-secs 60"}, "off"},
	} {
		c := withWorkers()
		c.Queue.Order = test.order
		mapped, err := ApplyForeign(&c, []GivenFlag{{"queue-size", []string{test.size}}, {"queue-timeout-secs", []string{"60"}}})
		if err != nil || len(mapped) != 2 || c.Queue.Order != test.want {
			t.Fatalf("%+v: %+v, %v, order %s", test, mapped, err, c.Queue.Order)
		}
		var advised []string
		for _, m := range mapped {
			if strings.Contains(m.Advice, "queue: {order: fcfs}") {
				advised = append(advised, m.Flag)
			}
		}
		if !slices.Equal(advised, test.advised) {
			t.Errorf("%+v: advice for %q", test, advised)
		}
		var found problems
		c.validate(&found)
		if len(found) > 0 {
			t.Errorf("%+v: %v", test, found)
		}
	}
}

// A queue in which nothing waits is no queue. The other routers refuse it, too.
func TestAForeignQueueNeedsATimeToWait(t *testing.T) {
	c := withWorkers()
	if _, err := ApplyForeign(&c, []GivenFlag{{"queue-timeout-secs", []string{"0"}}}); err == nil || !strings.Contains(err.Error(), "a queue size of 0") {
		t.Errorf("with a queue: %v", err)
	}
	mapped, err := ApplyForeign(&c, []GivenFlag{{"queue-timeout-secs", []string{"0"}}, {"queue-size", []string{"0"}}})
	if err != nil || len(mapped) != 2 || mapped[1].Advice != "" || c.Queue.Order != "off" || c.Queue.Validate() != nil {
		t.Errorf("without a queue: %+v, %+v, %v", mapped, c.Queue, err)
	}
}

// SMG and sglang-router refuse clients without the key of --api-key. A router that took the flag as the workers' key
// alone would be open to everybody.
func TestAForeignKeyClosesTheGateway(t *testing.T) {
	given := []GivenFlag{{"api-key", []string{"secret"}}}
	c := withWorkers()
	if _, err := ApplyForeign(&c, given); err != nil || len(c.Tenants) != 1 || c.Tenants[0].KeysSHA256[0] != "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b" {
		t.Errorf("tenants %+v, %v", c.Tenants, err)
	}
	c = withWorkers()
	c.TenantsFile = "tenants.jsonl"
	if _, err := ApplyForeign(&c, given); err != nil || c.Tenants != nil || c.Workers[1].APIKey != "secret" {
		t.Errorf("beside the tenants of a file: %+v, %v", c.Tenants, err)
	}
}

func TestForeignFlagsThatBelongTogether(t *testing.T) {
	c := withWorkers()
	_, err := ApplyForeign(&c, []GivenFlag{{"otlp-traces-endpoint", []string{"otel:4317"}}, {"enable-trace", nil},
		{"tenant-header-name", []string{"x-who"}}, {"trust-tenant-header", nil}, {"retry-max-retries", []string{"0"}}})
	if err != nil || c.Telemetry.Traces.Endpoint != "http://otel:4317" || c.Gateway.TenantHeader != "x-who" || c.Gateway.Attempts != 1 {
		t.Errorf("%+v, %q, %d attempts, %v", c.Telemetry.Traces, c.Gateway.TenantHeader, c.Gateway.Attempts, err)
	}
	if _, err := ApplyForeign(&c, []GivenFlag{{"ca-cert-paths", []string{"a.pem", "b.pem"}}}); err == nil {
		t.Error("two files became one setting")
	}
}

// The files have the flags of the routers' router_args.py.
func TestEveryFlagOfTheRoutersIsKnown(t *testing.T) {
	known := map[string]bool{"model-path": true} // a flag of serve
	for _, row := range slices.Concat(SharedFlags(), ForeignFlags()) {
		known[row.Name] = true
	}
	files, err := filepath.Glob("testdata/foreign/*.txt")
	if err != nil || len(files) != 3 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for name := range strings.FieldsSeq(string(text)) {
			if !known[name] {
				t.Errorf("%s: --%s is not in the table", file, name)
			}
		}
	}
}

// No line repeats a key.
func TestForeignKeysAreNotRepeated(t *testing.T) {
	for _, row := range ForeignFlags() {
		if !strings.Contains(row.Name, "key") || row.Form == NoValue || strings.HasPrefix(row.Name, "sticky") {
			continue
		}
		c := withWorkers()
		mapped, err := ApplyForeign(&c, []GivenFlag{{row.Name, []string{"sk-very-secret"}}})
		for _, m := range mapped {
			if strings.Contains(m.Flag+m.Setting, "sk-very-secret") && row.Name != "session-key" && row.Name != "routing-key-headers" && row.Name != "tls-key-path" && row.Name != "client-key-path" {
				t.Errorf("--%s: %+v", row.Name, m)
			}
		}
		if err != nil && strings.Contains(err.Error(), "sk-very-secret") {
			t.Errorf("--%s: %v", row.Name, err)
		}
	}
}

// foreignHead begins the table of flags in docs/migrate.md. -update writes the table.
const foreignHead = "| flag | of | here |\n|---|---|---|\n"

func TestForeignFlagsAreDocumented(t *testing.T) {
	const path = "../../docs/migrate.md"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	table := foreignHead
	for _, row := range ForeignFlags() {
		here := row.Advice
		if row.Refused {
			here = "refused: " + here
		} else if want, ok := honoured[row.Name]; ok {
			here, _, _ = strings.Cut(want.setting, ": ")
			here = "`" + strings.Replace(here, " (", "` (", 1)
			if !strings.HasSuffix(here, ")") {
				here += "`"
			}
			if row.Form == NoValue {
				here = "`" + want.setting + "`"
			}
		}
		table += "| `--" + row.Name + "` | " + row.Of + " | " + here + " |\n"
	}
	before, rest, ok := strings.Cut(string(data), foreignHead)
	if !ok {
		t.Fatalf("%s has no table that begins with %q", path, foreignHead)
	}
	end := 0
	for end < len(rest) && rest[end] == '|' {
		end += strings.IndexByte(rest[end:], '\n') + 1
	}
	if *update {
		if err := os.WriteFile(path, []byte(before+table+rest[end:]), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(data) != before+table+rest[end:] {
		t.Errorf("the table of flags in %s is not the table in the code; run go test ./internal/config -update", path)
	}
}
