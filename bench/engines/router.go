package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// routerKind is one router with one policy.
type routerKind struct {
	name  string
	about string
	start func(b *bench, urls []string, port int, ranks int) (env []string, command string, args []string, err error)
	path  string // answers 200 when requests are served
	ours  bool
}

// routers in the order of the first round; later rounds rotate it.
var routers = []routerKind{
	{name: "nginx", about: "nginx, round robin", path: "/health", start: startNginx},
	{name: "smg", about: "SMG cache_aware", path: "/readiness", start: func(b *bench, urls []string, port, ranks int) ([]string, string, []string, error) {
		args := append([]string{"launch", "--host", "127.0.0.1", "--port", fmt.Sprint(port), "--policy", "cache_aware",
			"--prometheus-port", fmt.Sprint(port + 1), "--worker-urls"}, urls...)
		if ranks > 1 {
			args = append(args, "--dp-aware")
		}
		return nil, filepath.Join(b.routers, "smg/bin/smg"), args, nil
	}},
	{name: "vllm-router", about: "vllm-router cache_aware", path: "/health", start: startVLLMRouter("cache_aware")},
	{name: "vllm-router-kv", about: "vllm-router kv_aware", path: "/health", start: startVLLMRouter("kv_aware")},
	{name: "warmpath", about: "Warmpath, URLs alone", path: "/readiness", ours: true, start: startWarmpath},
}

func routerNamed(name string) (routerKind, error) {
	for _, r := range routers {
		if r.name == name {
			return r, nil
		}
	}
	return routerKind{}, fmt.Errorf("no router is called %q; `engines list` shows them", name)
}

func startVLLMRouter(policy string) func(*bench, []string, int, int) ([]string, string, []string, error) {
	return func(b *bench, urls []string, port, ranks int) ([]string, string, []string, error) {
		args := append([]string{"--host", "127.0.0.1", "--port", fmt.Sprint(port), "--policy", policy,
			"--prometheus-port", fmt.Sprint(port + 1), "--worker-urls"}, urls...)
		if ranks > 1 { // it refuses more than one rank without a key; the engines ask for none
			args = append(args, "--intra-node-data-parallel-size", fmt.Sprint(ranks), "--api-key", "none")
		}
		return nil, filepath.Join(b.routers, "vllm-router/bin/vllm-router"), args, nil
	}
}

func startWarmpath(b *bench, urls []string, port, _ int) ([]string, string, []string, error) {
	args := []string{"serve", "--listen", fmt.Sprintf("127.0.0.1:%d", port), "--admin-listen", fmt.Sprintf("127.0.0.1:%d", port+1)}
	for _, u := range urls {
		args = append(args, "--worker", u)
	}
	return nil, b.warmpath, args, nil
}

// startNginx writes a configuration that passes requests on in turn.
func startNginx(b *bench, urls []string, port, _ int) ([]string, string, []string, error) {
	command, err := exec.LookPath("nginx")
	if err != nil {
		command = "/usr/sbin/nginx"
	}
	dir := filepath.Join(b.dir, fmt.Sprintf("nginx-%d", port))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, "", nil, err
	}
	var conf strings.Builder
	fmt.Fprintf(&conf, "worker_processes 1;\npid %s/pid;\nerror_log stderr;\ndaemon off;\nevents { worker_connections 1024; }\n", dir)
	if os.Geteuid() == 0 {
		conf.WriteString("user root;\n") // its temporary files lie in a folder of ours
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
		return nil, "", nil, err
	}
	return nil, command, []string{"-e", "stderr", "-c", path}, nil
}

// deployment is a router as its clients see it: one or several processes of it, behind a balancer if several.
type deployment struct {
	b        *bench
	kind     routerKind
	engines  []*engine
	replicas int
	url      string

	front    *process // the balancer, if any
	routers  []*process
	ports    []int
	counted  map[string]float64 // Warmpath's metrics of processes that have ended
	restarts int
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
	env, command, args, err := startNginx(b, urls, port, 0)
	if err == nil {
		d.front, err = launch(b.dir, "balancer", env, command, args...)
	}
	if err == nil {
		err = d.front.ready(ctx, d.url+d.kind.path, 30*time.Second)
	}
	return d, err
}

// start starts the router's processes and waits until each serves.
func (d *deployment) start(ctx context.Context) error {
	var urls []string
	ranks := 1
	for _, e := range d.engines {
		urls = append(urls, e.url)
		ranks = max(ranks, e.ranks)
	}
	d.routers = nil
	for i, port := range d.ports {
		env, command, args, err := d.kind.start(d.b, urls, port, ranks)
		if err != nil {
			return err
		}
		p, err := launch(d.b.dir, fmt.Sprintf("%s-%d", d.kind.name, i+1), env, command, args...)
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
	return sleep(ctx, 2*time.Second) // some serve before they know their workers, or what these have cached
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

// counts are Warmpath's metrics that a run keeps, by their labels but the worker.
var counts = []string{"warmpath_token_requests_total", "warmpath_predictions_total", "warmpath_token_calls_total",
	"warmpath_decisions_total", "warmpath_token_wait_seconds_sum", "warmpath_token_wait_seconds_count", "warmpath_tokens_total"}

// count adds what the router's processes have counted; they are about to end.
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

// countKey names a sample by what matters of its labels.
func countKey(s sample) string {
	key := s.name
	for _, l := range []string{"outcome", "missing", "branch", "kind"} {
		if v := s.label(l); v != "" {
			key += " " + l + "=" + v
		}
	}
	return key
}

// sleep waits, unless the context ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
