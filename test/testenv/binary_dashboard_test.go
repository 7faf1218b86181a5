package testenv_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// The files of deploy/ that Prometheus and Grafana load.
const (
	alertRules = "../../deploy/prometheus/warmpath-alerts.yaml"
	alertTests = "../../deploy/prometheus/warmpath-alerts.test.yaml"
	dashboard  = "../../deploy/grafana/warmpath.json"
)

// legitimatelyEmpty are the metrics that a healthy router without these features does not have, and that the test does
// not cause.
var legitimatelyEmpty = []string{
	"warmpath_queue_wait_seconds",      // there is no queue
	"warmpath_queue_requests",          // there is no queue
	"warmpath_hold_wait_seconds",       // some worker can always take requests
	"warmpath_retries_total",           // no attempt failed
	"warmpath_stream_recoveries_total", // no stream lost its worker
	"warmpath_bypassed_total",          // no workers exchange KV blocks
	"warmpath_sync_",                   // no sync: one router
	"warmpath_shared_index_",           // no shared index
	"warmpath_index_service_",          // no index service
	"warmpath_remote_index_",           // the router has an index of its own
}

// prometheusTool returns the path of a program of Prometheus that `make interop` installs.
func prometheusTool(t *testing.T, name string) string {
	return testenv.Installed(t, "prometheus/usr/bin/"+name, "make interop")
}

// TestAlertRulesInPrometheus: promtool checks the syntax of the rules,
// and that each alert fires under its condition, and none for a healthy router.
func TestAlertRulesInPrometheus(t *testing.T) {
	promtool := prometheusTool(t, "promtool")
	for _, args := range [][]string{{"check", "rules", alertRules}, {"test", "rules", alertTests}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	rules, tests := read(t, alertRules), read(t, alertTests)
	for _, m := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(rules, -1) {
		if !strings.Contains(tests, "alertname: "+m[1]+"\n        exp_alerts:") {
			t.Errorf("no test lets %s fire", m[1])
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// dashboardQueries returns the expressions of the dashboard's panels, with values for its variables.
func dashboardQueries(t *testing.T) map[string]string {
	t.Helper()
	var d struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ RefID, Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, dashboard)), &d); err != nil {
		t.Fatal(err)
	}
	queries, ids := map[string]string{}, map[int]string{}
	for _, p := range d.Panels {
		if other, taken := ids[p.ID]; taken {
			t.Errorf("two panels have the id %d: %q and %q", p.ID, other, p.Title)
		}
		ids[p.ID] = p.Title
		for _, target := range p.Targets {
			queries[p.Title+" "+target.RefID] = strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$instance", ".*").Replace(target.Expr)
		}
	}
	if len(queries) < 40 {
		t.Fatalf("%d queries: the test looks for them in the wrong way", len(queries))
	}
	return queries
}

// TestTheDashboardInPrometheus: a real Prometheus scrapes a router with mock engines. Each query of the dashboard has
// an answer, and the alert about a dead worker fires.
func TestTheDashboardInPrometheus(t *testing.T) {
	binary := prometheusTool(t, "prometheus")
	dir := t.TempDir()
	one, two := mock(t, func(c *mockengine.Config) { c.Speed = 100 }), mock(t, func(c *mockengine.Config) { c.Speed = 100 })
	file := filepath.Join(dir, "warmpath.yaml")
	text := fmt.Sprintf("tenants: \n%stelemetry: {access_log: {file: %s}, traces: {endpoint: \"http://127.0.0.1:9\"}}\n", ofTenant("acme", "key", ""), filepath.Join(dir, "access"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	g := testenv.Serve(t, "--config", file, "--worker", one.URL(), "--worker", two.URL())
	g.Ready(t)
	port := testenv.FreePort(t)
	config := filepath.Join(dir, "prometheus.yml")
	rules, _ := filepath.Abs(alertRules)
	short := filepath.Join(dir, "alerts.yaml") // the same rules, which wait less
	if err := os.WriteFile(short, []byte(regexp.MustCompile(`for: \d+[ms]`).ReplaceAllString(read(t, rules), "for: 1s")), 0o600); err != nil {
		t.Fatal(err)
	}
	text = fmt.Sprintf("global: {scrape_interval: 500ms, evaluation_interval: 500ms}\nrule_files: [%s]\nscrape_configs:\n  - {job_name: warmpath, static_configs: [{targets: [%q]}]}\n",
		short, strings.TrimPrefix(g.Admin, "http://"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	testenv.Start(t, "prometheus", binary, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	base := "http://" + address
	testenv.WaitFor(t, 30*time.Second, "prometheus to be ready", func() error { return testenv.Reachable(base + "/-/ready") })
	client := &http.Client{Timeout: 30 * time.Second}
	use := func() {
		for _, key := range []string{"key", "wrong"} {
			withKey(client, g.URL, key)
		}
		resp, err := streamWithUsage(client, g.URL)
		if err == nil {
			_ = resp.Body.Close()
		}
	}
	for name, query := range dashboardQueries(t) {
		testenv.WaitFor(t, time.Minute, name, func() error {
			use()
			n, err := askPrometheus(base, query)
			empty := slices.ContainsFunc(legitimatelyEmpty, func(metric string) bool { return strings.Contains(query, metric) })
			if err == nil && n == 0 && !empty {
				err = errors.New("no data: " + query)
			}
			return err
		})
	}
	for _, m := range regexp.MustCompile(`(?m)^        expr: (?:>-\n((?:          .*\n)+)|(.*))`).FindAllStringSubmatch(read(t, rules), -1) {
		if _, err := askPrometheus(base, strings.Join(strings.Fields(m[1]+m[2]), " ")); err != nil {
			t.Error(err)
		}
	}
	if err := two.Die(); err != nil {
		t.Fatal(err)
	}
	testenv.WaitFor(t, time.Minute, "the alert WarmpathWorkerDown", func() error {
		use()
		n, err := askPrometheus(base, `ALERTS{alertname="WarmpathWorkerDown", alertstate="firing", worker="`+two.URL()+`"}`)
		if err == nil && n == 0 {
			err = errors.New("it does not fire")
		}
		return err
	})
}

// streamWithUsage asks for a stream that ends with the usage.
func streamWithUsage(client *http.Client, url string) (*http.Response, error) {
	req, err := http.NewRequest(http.MethodPost, url+"/v1/chat/completions",
		strings.NewReader(`{"model":"mock","messages":[{"role":"user","content":"hello"}],"max_tokens":4,"stream":true,"stream_options":{"include_usage":true}}`))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer key")
	return client.Do(req)
}

// askPrometheus returns the number of series in the answer of Prometheus to a query.
func askPrometheus(base, query string) (int, error) {
	resp, err := http.Get(base + "/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	var answer struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%s: %s", query, answer.Error)
	}
	return len(answer.Data.Result), nil
}
