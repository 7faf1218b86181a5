package sharedindex

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/warmpath/warmpath/internal/network"
)

// Config says where the shared index is, and how it is used.
type Config struct {
	// URL is the address of the server: valkey://HOST:PORT or redis://HOST:PORT, valkeys:// or rediss:// for TLS, or
	// unix:///PATH. A cluster may have several hosts, separated by commas. The port is 6379 by default. A user and a
	// password in the URL count as username and password.
	URL string `yaml:"url"`
	// Username and Password are the credentials at the server. The password may be in a file (PasswordFile) or in an
	// environment variable (PasswordEnv) instead. By default there are none.
	Username     string `yaml:"username"`
	Password     string `yaml:"password"`
	PasswordFile string `yaml:"password_file"`
	PasswordEnv  string `yaml:"password_env"`
	// TLS are files for valkeys:// and rediss://: the authorities of the server's certificate (default: those of the
	// machine), and a certificate and key of our own if the server asks for one. ServerName replaces the host in the
	// server's certificate.
	TLS network.PeerTLS `yaml:"tls"`
	// Prefix is the beginning of all keys. Writers and routers of one shared index have the same prefix. Fleets that
	// share a server have different ones.
	Prefix string `yaml:"prefix"`
	// Database is the number of the server's database. A cluster has only 0.
	Database int `yaml:"database"`
	// Cluster says that the server is a cluster.
	Cluster bool `yaml:"cluster"`
	// Write makes this process a writer: it follows the events of its workers with an index of its own, decides by that
	// index, and mirrors it into the server for others. Without it, the process reads the shared index, and has no index
	// of its own.
	Write bool `yaml:"write"`
	// TTL is how long an entry lives at the server unless its writer writes it again. A writer writes everything again
	// in half of this time, so a short TTL costs writes, and a long one leaves the blocks of lost writers at the server
	// for longer. They take memory there, and no router counts them.
	TTL time.Duration `yaml:"ttl"`
	// Lease is how long a writer counts without a sign of life. After that, routers do not use its entries any more. The
	// default of 5 s is some ten signs of life.
	Lease time.Duration `yaml:"lease"`
	// Timeout bounds how long a router waits for the server when it looks up a prompt; then load decides. The default is
	// some fifty times as long as a lookup takes beside the server.
	Timeout time.Duration `yaml:"lookup_timeout"`
	// Connections is how many connections a router has to each server; a power of two. Requests share them.
	Connections int `yaml:"connections"`
	// ClientCache bounds the memory, in bytes, in which a router keeps what it has read, until the server tells it that
	// it has changed. It helps where many requests have the same beginning. 0 turns it off.
	ClientCache int64 `yaml:"client_cache"`
	// Queue bounds the changes that wait in a writer until they are written. A change has up to 16 blocks and takes some
	// 160 bytes. When the queue is full, the writer drops a holder's changes, and writes the whole holder again.
	Queue int `yaml:"queue"`
}

// DefaultConfig has the defaults. The URL is missing.
func DefaultConfig() Config {
	return Config{
		Prefix: "warmpath:", TTL: time.Hour, Lease: 5 * time.Second, Timeout: 20 * time.Millisecond, Connections: 4,
		ClientCache: 16 << 20, Queue: 1 << 16,
	}
}

// schemes are the schemes of Config.URL, and whether they have TLS.
var schemes = map[string]bool{"valkey": false, "redis": false, "valkeys": true, "rediss": true, "unix": false}

// Validate returns all problems of the configuration.
func (c Config) Validate() error {
	var errs []error
	wrong := func(key, format string, args ...any) { errs = append(errs, fmt.Errorf(key+": "+format, args...)) }
	u, err := url.Parse(c.URL)
	encrypted, known := false, false
	if err == nil {
		encrypted, known = schemes[u.Scheme]
	}
	switch {
	case c.URL == "":
		wrong("url", "the address of the server is missing: write valkey://HOST:6379")
	case err != nil:
		wrong("url", "it is not a URL: write valkey://HOST:6379") // the error of Parse may contain the password
	case !known:
		wrong("url", "the scheme %q is not known: use valkey, redis, valkeys, rediss or unix", u.Scheme)
	case u.Scheme == "unix" && u.Path == "":
		wrong("url", "the path of the socket is missing: write unix:///run/valkey.sock")
	case u.Scheme != "unix" && u.Host == "":
		wrong("url", "the host is missing: write %s://HOST:6379", u.Scheme)
	case u.Scheme != "unix" && strings.Contains(u.Host, ",") && !c.Cluster:
		wrong("url", "several hosts are a cluster: set index.valkey.cluster: true, or keep one host")
	case u.Scheme != "unix" && strings.Trim(u.Path, "/") != "":
		wrong("url", "it has a path: the number of a database is a setting of its own (database)")
	case u.RawQuery != "" || u.Fragment != "":
		wrong("url", "it has a query: write the options as settings of their own")
	}
	if known && u.User != nil && (c.Username != "" || c.Password != "" || c.PasswordFile != "" || c.PasswordEnv != "") {
		wrong("url", "it has a user, and username or password is set, too: keep one")
	}
	if known && !encrypted && c.TLS != (network.PeerTLS{}) {
		wrong("tls", "%s:// has no TLS: use valkeys:// or rediss://", u.Scheme)
	}
	if err := c.TLS.Validate(); err != nil {
		wrong("tls", "%w", err)
	}
	if c.Prefix == "" || len(c.Prefix) > 64 || strings.ContainsAny(c.Prefix, "{}\n\r ") {
		wrong("prefix", "it must have 1 to 64 characters, without braces and spaces")
	}
	if c.Database < 0 || c.Database > 1<<20 {
		wrong("database", "%d is not the number of a database", c.Database)
	}
	if c.Cluster && c.Database != 0 {
		wrong("database", "a cluster has only the database 0")
	}
	if known && c.Cluster && u.Scheme == "unix" {
		wrong("cluster", "a cluster has no Unix socket")
	}
	for _, d := range []struct {
		key         string
		value       time.Duration
		least, most time.Duration
	}{
		{"ttl", c.TTL, time.Minute, 30 * 24 * time.Hour},
		{"lease", c.Lease, time.Second, time.Hour},
		{"lookup_timeout", c.Timeout, time.Millisecond, time.Minute},
	} {
		if d.value < d.least || d.value > d.most {
			wrong(d.key, "%v is outside %v..%v", d.value, d.least, d.most)
		}
	}
	if c.Connections < 1 || c.Connections > 256 || c.Connections&(c.Connections-1) != 0 {
		wrong("connections", "%d is not a power of two within 1..256", c.Connections)
	}
	if c.ClientCache < 0 {
		wrong("client_cache", "%d is below 0", c.ClientCache)
	}
	if c.Queue < 256 || c.Queue > 1<<24 {
		wrong("queue", "%d is outside 256..%d", c.Queue, 1<<24)
	}
	return errors.Join(errs...)
}

// Address returns the URL without user and password, for logs.
func (c Config) Address() string {
	u, err := url.Parse(c.URL)
	if err != nil {
		return "?"
	}
	u.User = nil
	return u.String()
}

// secrets returns what no log may show, although the server may repeat it.
func (c Config) secrets() []string {
	if u, err := url.Parse(c.URL); err == nil && u.User != nil {
		password, _ := u.User.Password()
		return []string{c.Password, password}
	}
	return []string{c.Password}
}

// options returns the options of a client of the server. TLS comes from the files that the configuration names.
func (c Config) options(n network.Network) (valkey.ClientOption, error) {
	u, err := url.Parse(c.URL)
	if err != nil {
		return valkey.ClientOption{}, errors.New("the address of the server is not a URL")
	}
	o := valkey.ClientOption{
		Username: c.Username, Password: c.Password, ClientName: "warmpath", SelectDB: c.Database, ForceSingleClient: !c.Cluster,
		PipelineMultiplex: c.multiplex(), DisableRetry: true, DisableCache: true,
		ConnWriteTimeout: max(time.Second, 2*c.Timeout),
		// The client reads all the time, so a reply to no command is seen before the next command could take it.
		AlwaysPipelining: true,
		// Servers that send each other's keys to and fro would keep the client busy for as long as it may wait.
		ClusterOption: valkey.ClusterOption{MaxMovedRedirections: mostRedirects},
	}
	if u.User != nil {
		o.Username = u.User.Username()
		o.Password, _ = u.User.Password()
	}
	if u.Scheme == "unix" {
		o.InitAddress = []string{u.Path}
		o.DialCtxFn = func(ctx context.Context, path string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := network.Of(n).Dial(ctx, "unix", path)
			if err != nil {
				return nil, err
			}
			return guarded(conn), nil
		}
		return o, nil
	}
	for host := range strings.SplitSeq(u.Host, ",") {
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), "6379")
		}
		o.InitAddress = append(o.InitAddress, host)
	}
	var secure *tls.Config
	if schemes[u.Scheme] {
		if secure, err = c.TLS.Client(); err != nil {
			return o, err
		}
	}
	o.TLSConfig = secure
	o.DialCtxFn = func(ctx context.Context, address string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		conn, err := network.Of(n).Dial(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		if secure == nil {
			return guarded(conn), nil
		}
		own := secure.Clone()
		if own.ServerName == "" {
			own.ServerName, _, _ = net.SplitHostPort(address)
		}
		client := tls.Client(conn, own)
		if err := client.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("begin TLS: %w", err)
		}
		return guarded(client), nil
	}
	return o, nil
}

// orderedClient returns a client that keeps the order of its commands: it has one connection to each server.
func (c Config) orderedClient(n network.Network) (valkey.Client, error) {
	o, err := c.options(n)
	if err != nil {
		return nil, err
	}
	o.PipelineMultiplex = -1
	if c.Cluster {
		o.PipelineMultiplex = 0
	}
	o.ConnWriteTimeout = writeTimeout
	return valkey.NewClient(o)
}

// multiplex returns Connections as the client takes it: the logarithm, and -1 for one connection.
func (c Config) multiplex() int {
	if c.Connections == 1 {
		return -1
	}
	return min(bits.Len(uint(c.Connections))-1, valkey.MaxPipelineMultiplex)
}

// mostRedirects is how often a server of a cluster may send a command to another server. One is usual.
const mostRedirects = 16

// dialTimeout bounds an attempt to connect.
const dialTimeout = 2 * time.Second
