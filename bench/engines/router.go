package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// routerKind is one router with one policy.
type routerKind struct {
	name  string
	about string
	start func(b *bench, engines []*engine, port int) (command string, args []string, err error)
	path  string // path that answers 200 when the router serves requests
	ours  bool
	extra bool // true: play it only if the user names it
}

// routers has all routers, in the order of the first round. Later rounds rotate the order.
var routers = []routerKind{
	{name: "nginx", about: "nginx, round robin", path: "/health", start: startNginx},
	{name: "smg", about: "SMG cache_aware", path: "/readiness", start: startSMG},
	{name: "vllm-router", about: "vllm-router cache_aware", path: "/health", start: startVLLMRouter("cache_aware")},
	{name: "vllm-router-kv", about: "vllm-router kv_aware", path: "/health", start: startVLLMRouter("kv_aware")},
	{name: ours, about: "Warmpath, URLs alone", path: "/readiness", ours: true, start: startWarmpath},
	{name: asking, about: "Warmpath that may not read the model's files", path: "/readiness", ours: true, extra: true, start: startAsking},
}

// ours and asking are the names of Warmpath's two rows. The goals compare the row ours with the other routers. In the
// row asking, Warmpath may not read the model's files, so it has to ask engines for token ids.
const ours, asking = "warmpath", "warmpath-asking"

// usual returns the routers that are played by default.
func usual() []routerKind {
	return slices.DeleteFunc(slices.Clone(routers), func(r routerKind) bool { return r.extra })
}

// peer reports whether the router is not Warmpath.
func peer(name string) bool {
	return !slices.ContainsFunc(routers, func(r routerKind) bool { return r.ours && r.name == name })
}

// routerNamed returns the router with the given name. The name "warmpath FLAGS" is Warmpath with additional flags, to
// compare settings.
func routerNamed(name string) (routerKind, error) {
	for _, r := range routers {
		if r.name == name {
			return r, nil
		}
	}
	if flags, ok := strings.CutPrefix(name, ours+" "); ok {
		start := func(b *bench, engines []*engine, port int) (string, []string, error) {
			command, args, err := startWarmpath(b, engines, port)
			return command, append(args, strings.Fields(flags)...), err
		}
		return routerKind{name: name, about: "Warmpath, " + flags, path: "/readiness", ours: true, start: start}, nil
	}
	return routerKind{}, fmt.Errorf("no router is called %q; `engines list` shows them", name)
}

func urls(engines []*engine) []string {
	var out []string
	for _, e := range engines {
		out = append(out, e.url)
	}
	return out
}

func startSMG(b *bench, engines []*engine, port int) (string, []string, error) {
	args := append([]string{"launch", "--host", "127.0.0.1", "--port", fmt.Sprint(port), "--policy", "cache_aware",
		"--prometheus-port", fmt.Sprint(port + 1), "--worker-urls"}, urls(engines)...)
	if engines[0].ranks > 1 {
		args = append(args, "--dp-aware")
	}
	return filepath.Join(b.routers, "smg/bin/smg"), args, nil
}

func startVLLMRouter(policy string) func(*bench, []*engine, int) (string, []string, error) {
	return func(b *bench, engines []*engine, port int) (string, []string, error) {
		args := append([]string{"--host", "127.0.0.1", "--port", fmt.Sprint(port), "--policy", policy,
			"--prometheus-port", fmt.Sprint(port + 1), "--worker-urls"}, urls(engines)...)
		// Without an API key vllm-router refuses an engine with several ranks. The engines ignore the key.
		if ranks := engines[0].ranks; ranks > 1 {
			args = append(args, "--intra-node-data-parallel-size", fmt.Sprint(ranks), "--api-key", "none")
		}
		// vllm-router 0.1.17 reads an engine's facts from /get_server_info, which vLLM 0.32 does not serve. So pass the facts
		// as flags.
		if policy == "kv_aware" {
			args = append(args, "--kv-event-block-size", fmt.Sprint(blockSize), "--kv-event-model", model)
			for _, e := range engines {
				publish, replay := e.endpoints()
				args = append(args, "--kv-event-source", e.url+"="+publish, "--kv-event-replay-source", e.url+"="+replay)
			}
		}
		return filepath.Join(b.routers, "vllm-router/bin/vllm-router"), args, nil
	}
}

func startWarmpath(b *bench, engines []*engine, port int) (string, []string, error) {
	args := []string{"serve", "--listen", fmt.Sprintf("127.0.0.1:%d", port), "--admin-listen", fmt.Sprintf("127.0.0.1:%d", port+1)}
	for _, u := range urls(engines) {
		args = append(args, "--worker", u)
	}
	return b.warmpath, args, nil
}

func startAsking(b *bench, engines []*engine, port int) (string, []string, error) {
	config := filepath.Join(b.dir, "asking.yaml")
	if err := os.WriteFile(config, []byte("tokens:\n  discover: false\n"), 0o644); err != nil {
		return "", nil, err
	}
	command, args, err := startWarmpath(b, engines, port)
	return command, append(args, "--config", config), err
}

func startNginx(b *bench, engines []*engine, port int) (string, []string, error) {
	return b.balancer(urls(engines), port)
}

// balancer writes a configuration that makes nginx a round-robin balancer, and returns the command that runs nginx with
// it.
func (b *bench) balancer(urls []string, port int) (string, []string, error) {
	command, err := exec.LookPath("nginx")
	if err != nil {
		command = "/usr/sbin/nginx"
	}
	dir := filepath.Join(b.dir, fmt.Sprintf("nginx-%d", port))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, err
	}
	var conf strings.Builder
	fmt.Fprintf(&conf, "worker_processes 1;\npid %s/pid;\nerror_log stderr;\ndaemon off;\nevents { worker_connections 1024; }\n", dir)
	if os.Geteuid() == 0 {
		conf.WriteString("user root;\n") // else nginx changes its user, and cannot write temporary files
	}
	conf.WriteString("http {\naccess_log off;\nclient_max_body_size 64m;\nclient_body_buffer_size 256k;\n")
	for _, t := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&conf, "%s_temp_path %s/%s;\n", t, dir, t)
	}
	conf.WriteString("upstream workers {\n")
	for _, u := range urls {
		fmt.Fprintf(&conf, "server %s;\n", strings.TrimPrefix(u, "http://"))
	}
	fmt.Fprintf(&conf, `keepalive 64;
}
server {
listen 127.0.0.1:%d;
location / {
proxy_pass http://workers;
proxy_http_version 1.1;
proxy_set_header Connection "";
proxy_buffering off;
proxy_read_timeout 300s;
}
}
}
`, port)
	path := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(path, []byte(conf.String()), 0o644); err != nil {
		return "", nil, err
	}
	return command, []string{"-e", "stderr", "-c", path}, nil
}

// deployment is a running router: one process, or several processes (replicas) behind a balancer.
type deployment struct {
	b        *bench
	kind     routerKind
	engines  []*engine
	replicas int
	url      string

	front   *process // balancer; nil: there is none
	routers []*process
	ports   []int
	counted map[string]float64 // sums of Warmpath's metrics, read from each process before it ends
}

// deploy starts a router in front of the engines.
func (b *bench) deploy(ctx context.Context, kind routerKind, engines []*engine, replicas int) (*deployment, error) {
	d := &deployment{b: b, kind: kind, engines: engines, replicas: max(1, replicas), counted: map[string]float64{}}
	for i := range d.replicas {
		d.ports = append(d.ports, b.ports+20+3*i)
	}
	if err := d.start(ctx); err != nil {
		return d, err
	}
	d.url = fmt.Sprintf("http://127.0.0.1:%d", d.ports[0])
	if d.replicas == 1 {
		return d, nil
	}
	var urls []string
	for _, port := range d.ports {
		urls = append(urls, fmt.Sprintf("http://127.0.0.1:%d", port))
	}
	port := b.ports + 20 + 3*d.replicas
	d.url = fmt.Sprintf("http://127.0.0.1:%d", port)
	command, args, err := b.balancer(urls, port)
	if err == nil {
		d.front, err = launch(b.dir, "balancer", nil, command, args...)
	}
	if err == nil {
		err = d.front.ready(ctx, d.url+d.kind.path, 30*time.Second)
	}
	return d, err
}

// start starts the router's processes and waits until all of them serve.
func (d *deployment) start(ctx context.Context) error {
	d.routers = nil
	for i, port := range d.ports {
		command, args, err := d.kind.start(d.b, d.engines, port)
		if err != nil {
			return err
		}
		p, err := launch(d.b.dir, fmt.Sprintf("%s-%d", strings.NewReplacer(" ", "_", "/", "_").Replace(d.kind.name), i+1), nil, command, args...)
		if err != nil {
			return err
		}
		d.routers = append(d.routers, p)
	}
	for i, p := range d.routers {
		if err := p.ready(ctx, fmt.Sprintf("http://127.0.0.1:%d%s", d.ports[i], d.kind.path), time.Minute); err != nil {
			return err
		}
	}
	return sleep(ctx, 2*time.Second) // wait, because some routers serve before they know their workers or the workers' caches
}

// restart stops the router's processes and starts them again.
func (d *deployment) restart(ctx context.Context) error {
	if err := d.count(); err != nil {
		return err
	}
	for _, p := range d.routers {
		p.stop(10 * time.Second)
	}
	return d.start(ctx)
}

// stop ends all processes.
func (d *deployment) stop() {
	if d == nil {
		return
	}
	if d.front != nil {
		d.front.stop(2 * time.Second)
	}
	for _, p := range d.routers {
		p.stop(10 * time.Second)
	}
}

// groups returns the process groups of the router and its balancer.
func (d *deployment) groups() (out []int) {
	for _, p := range d.routers {
		out = append(out, p.pgid)
	}
	if d.front != nil {
		out = append(out, d.front.pgid)
	}
	return out
}

// counts has the names of Warmpath's metrics that a result contains, summed over workers.
var counts = []string{"warmpath_token_requests_total", "warmpath_predictions_total", "warmpath_token_calls_total",
	"warmpath_decisions_total", "warmpath_token_wait_seconds_sum", "warmpath_token_wait_seconds_count", "warmpath_token_wait_seconds_bucket",
	"warmpath_tokens_total"}

// count adds the metrics of the router's processes to counted. Call it before the processes end.
func (d *deployment) count() error {
	if !d.kind.ours {
		return nil
	}
	for _, port := range d.ports {
		samples, err := scrape(fmt.Sprintf("http://127.0.0.1:%d/metrics", port+1))
		if err != nil {
			return fmt.Errorf("warmpath's metrics: %w", err)
		}
		addCounts(d.counted, samples)
	}
	return nil
}

// addCounts adds the samples of counts to total.
func addCounts(total map[string]float64, samples []sample) {
	for _, s := range samples {
		for _, name := range counts {
			if s.name == name && s.value != 0 {
				total[countKey(s)] += s.value
			}
		}
	}
}

// countKey returns a sample's name with its labels, except the label worker.
func countKey(s sample) string {
	key := s.name
	for _, l := range []string{"outcome", "missing", "branch", "kind", "le"} {
		if v := s.label(l); v != "" {
			key += " " + l + "=" + v
		}
	}
	return key
}

// sleep waits for d. It returns earlier, with an error, if the context ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
