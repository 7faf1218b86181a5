package config

import (
	"strings"
	"testing"
)

func TestSettingsOfTheIndexWithoutAnEffectAreErrors(t *testing.T) {
	for _, c := range []struct {
		text string
		want string // the beginning of the only error; "": the file is valid
	}{
		{"index: {key: 0123456789}", "index.key: it has no effect without an index service: set index.url"},
		{"index: {key_file: /nowhere}", "index.key_file: it has no effect"},
		{"index: {max_wait: 1s}", "index.max_wait: it has no effect"},
		{"index: {register: false}", "index.register: it has no effect"},
		{"index: {register: false, url: 'http://i:1'}", ""},
		{"index: {max_wait: 50ms, register: true}", ""},
		{"index: {tls: {server_name: x}}", "index.tls: it has no effect without an https address"},
		{"index: {tls: {server_name: x}, peers: ['http://r:9090']}", "index.tls: it has no effect"},
		{"index: {tls: {server_name: x}, peers: ['http://r:9090', 'https://s:9090']}", ""},
		{"index: {tls: {server_name: x}, url: 'HTTPS://i:1'}", ""},
		{"index: {snapshot_interval: 5s}", "index.snapshot_interval: it has no effect without a file"},
		{"index: {snapshot_interval: 5s, snapshot_file: /tmp/x}", ""},
		{"{index: {peer_timeout: 1s}, sync: {nats: 'nats://n:4222', key: 0123456789abcdef}}", ""}, // its routers are peers
		{"{index: {peer_timeout: 1s}, sync: {nats: 'nats://n:4222'}}", "index.peer_timeout: it has no effect without peers"},
		{"index: {peer_timeout: 1s}", "index.peer_timeout: it has no effect without peers"},
		{"index: {peer_timeout: 1s, peers: ['http://r:9090']}", ""},
		{"index: {bytes: 2MiB}", ""},
		{"index: {bytes: 2MiB, url: 'http://i:1'}", "index.bytes: it has no effect with index.url"},
		{"index: {max_waiting: 7, url: 'http://i:1'}", "index.max_waiting: it has no effect with index.url"},
		{"index: {max_speculative: 7, url: 'http://i:1'}", ""},
		{"index: {bytes: 2MiB, backend: valkey, valkey: {url: 'valkey://h'}}", ""}, // the writer's file may be the routers'
		{"index: {max_wait: 1s, backend: valkey, valkey: {url: 'valkey://h'}}", "index.max_wait: it has no effect"},
		{"index_service: {key: 0123456789}", "index_service.key: it has no effect, because nothing listens: set index_service.listen"},
		{"index_service: {key_file: /nowhere}", "index_service.key_file: it has no effect"},
		{"index_service: {grpc_listen: '127.0.0.1:1'}", "index_service.listen: "},
		{"index_service: {listen: '127.0.0.1:1', key: 0123456789}", ""},
		{"{index_service: {key: 0123456789}, index: {url: 'http://i:1'}}", ""}, // the service's file may be the routers'
	} {
		err := Check("f", []byte(c.text))
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		case err != nil && strings.Contains(err.Error(), "\n"):
			t.Errorf("%s: more than one mistake is found:\n%v", c.text, err)
		}
	}
}

func TestFilesForTLSOfAnIndexServiceNeedAnAddress(t *testing.T) {
	err := Check("f", []byte("index_service: {tls: {cert_file: /c, key_file: /k}}")) // the files are missing, too
	if err == nil || !strings.Contains(err.Error(), "index_service.tls: it has no effect, because nothing listens") {
		t.Error(err)
	}
}

func TestAnErrorAboutValkeyShowsNoPassword(t *testing.T) {
	const secret = "corv1d-canary"
	err := Check("f", []byte("index: {valkey: {password: "+secret+"}}"))
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Error(err)
	}
}
