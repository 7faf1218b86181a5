package discovery

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/zmtp"
)

// None is a value for Events and Replay of a Target: the worker has no such endpoint, whatever the worker itself
// reports.
const None = "none"

// Target is a worker with the operator's settings for it.
type Target struct {
	// URL is the base URL, http or https, without /v1; or unix:// and the path of a Unix socket.
	URL string `yaml:"url"`
	// Events is the ZMQ endpoint of the events of rank 0. Rank r uses port + r. The host "*" means the worker's host.
	// If Events is "", the router asks the worker; None means that the worker publishes no events.
	Events string `yaml:"events,omitempty"`
	// Replay is the ZMQ endpoint of the replay socket, in the same form as Events.
	Replay string `yaml:"replay,omitempty"`
	// Topic is the prefix of the events' topics to which the router subscribes. If it is "", the router asks the worker.
	Topic string `yaml:"topic,omitempty"`
	// Model is the name of the base model. If it is "", the router asks the worker.
	Model string `yaml:"model,omitempty"`
	// Ranks is the number of data-parallel ranks that are used, counted from the first rank. 0 means
	// fleet.DefaultRanks.
	Ranks int `yaml:"ranks,omitempty"`
	// APIKey is sent as a bearer token with every question; "" sends none. APIKeyFile is a file with the key, and
	// APIKeyEnv the name of an environment variable with the key; package config reads them into APIKey.
	APIKey     string `yaml:"api_key,omitempty"`
	APIKeyFile string `yaml:"api_key_file,omitempty"`
	APIKeyEnv  string `yaml:"api_key_env,omitempty"`
	// APIKeyUse says which requests carry the key: questions (the default), missing or always; see network.KeyUse.
	APIKeyUse string `yaml:"api_key_use,omitempty"`
	// Protocol is auto (the default), http1 or http2; see network.Protocol.
	Protocol string `yaml:"protocol,omitempty"`
	// TLS has the files for an https worker.
	TLS network.PeerTLS `yaml:"tls,omitempty"`
	// Labels are read by policies, for example node and zone by the locality filter.
	Labels map[string]string `yaml:"labels,omitempty"`
	// Role is prefill, decode or both, see fleet.Role. If it is "", the router asks the worker.
	Role string `yaml:"role,omitempty"`
	// Connector is the name of the engine's KV connector, one of connector.Names. If it is "", the router asks the
	// worker. None means that the worker exchanges no KV blocks, whatever the worker itself reports.
	Connector string `yaml:"connector,omitempty"`
	// TransferHost and TransferPort are where other engines find the worker, see fleet.Transfer. If they are "" and 0,
	// the router asks the worker; if it does not report a host, the host of URL is taken.
	TransferHost string `yaml:"transfer_host,omitempty"`
	TransferPort int    `yaml:"transfer_port,omitempty"`
	// EngineID is the id that the engine got in its kv_transfer_config. If it is "", the router asks the worker. If the
	// worker has several ranks, the id of rank 3 is EngineID with "_dp3" appended.
	EngineID string `yaml:"engine_id,omitempty"`
	// TensorParallel is the engine's tensor-parallel size. If it is 0, the router asks the worker.
	TensorParallel int `yaml:"tensor_parallel,omitempty"`
	// KVBytesPerToken is the size of the KV of one token in all layers, in bytes; 0 is unknown.
	KVBytesPerToken int `yaml:"kv_bytes_per_token,omitempty"`
}

// ParseTarget parses URL[,OPTION=VALUE …]. The options are the settings of a Target, with tls.NAME and label.NAME, but
// without api_key. Errors quote the URL without user and password. They quote the values of events and replay, and a
// number of ranks, and no other value.
func ParseTarget(s string) (Target, error) {
	base, rest, more := strings.Cut(s, ",")
	t := Target{URL: base}
	given := map[string]bool{}
	for more {
		var option string
		option, rest, more = strings.Cut(rest, ",")
		name, value, ok := strings.Cut(option, "=")
		if !ok {
			return t, fmt.Errorf("parse worker %q: an option is not NAME=VALUE", shown(base))
		}
		if value == "" {
			return t, fmt.Errorf("parse worker %q: option %q has no value", shown(base), name)
		}
		if given[name] {
			return t, fmt.Errorf("parse worker %q: option %q is given twice", shown(base), name)
		}
		given[name] = true
		switch name {
		case "events":
			t.Events = value
		case "replay":
			t.Replay = value
		case "topic":
			t.Topic = value
		case "model":
			t.Model = value
		case "ranks":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 {
				return t, fmt.Errorf("parse worker %q: ranks is not a number within 1..%d", shown(base), fleet.MaxRanks)
			}
			t.Ranks = n
		case "api_key":
			return t, fmt.Errorf("parse worker %q: others can see command lines: give api_key_file=FILE or api_key_env=VARIABLE, or write its key into the file (workers: [{url: …, api_key: …}])", shown(base))
		case "api_key_file":
			t.APIKeyFile = value
		case "api_key_env":
			t.APIKeyEnv = value
		case "api_key_use":
			t.APIKeyUse = value
		case "protocol":
			t.Protocol = value
		case "tls.ca_file":
			t.TLS.CAFile = value
		case "tls.cert_file":
			t.TLS.CertFile = value
		case "tls.key_file":
			t.TLS.KeyFile = value
		case "tls.server_name":
			t.TLS.ServerName = value
		case "role":
			t.Role = value
		case "connector":
			t.Connector = value
		case "transfer_host":
			t.TransferHost = value
		case "transfer_port":
			n, err := strconv.ParseUint(value, 10, 16)
			if err != nil || n < 1 {
				return t, fmt.Errorf("parse worker %q: transfer_port is not a number within 1..65535", shown(base))
			}
			t.TransferPort = int(n)
		case "engine_id":
			t.EngineID = value
		case "tensor_parallel":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 {
				return t, fmt.Errorf("parse worker %q: tensor_parallel is not a number above 0", shown(base))
			}
			t.TensorParallel = n
		case "kv_bytes_per_token":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 {
				return t, fmt.Errorf("parse worker %q: kv_bytes_per_token is not a number of bytes above 0", shown(base))
			}
			t.KVBytesPerToken = n
		default:
			label, ok := strings.CutPrefix(name, "label.")
			if !ok || label == "" {
				return t, fmt.Errorf("parse worker %q: option %q is none of events, replay, topic, model, ranks, api_key_file, api_key_env, api_key_use, protocol, tls.ca_file, tls.cert_file, tls.key_file, tls.server_name, role, connector, transfer_host, transfer_port, engine_id, tensor_parallel, kv_bytes_per_token, label.NAME%s",
					shown(base), name, labelHint(name))
			}
			if t.Labels == nil {
				t.Labels = map[string]string{}
			}
			t.Labels[label] = value
		}
	}
	t, err := t.normalize()
	if err != nil {
		return t, fmt.Errorf("parse worker %q: %w", shown(base), err)
	}
	return t, nil
}

// knownLabels are the labels that the router itself looks at.
var knownLabels = [...]string{fleet.LabelHardware, fleet.LabelNode, fleet.LabelNVLink, fleet.LabelZone}

// labelHint returns a hint for an error text if an unknown option is the name of a known label, else "".
func labelHint(option string) string {
	if slices.Contains(knownLabels[:], option) {
		return "; did you mean label." + option + "?"
	}
	return ""
}

// shown returns a URL for messages, without user, password and query. text may be an invalid URL.
func shown(text string) string {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		scheme, rest = "", text
	} else {
		scheme += "://"
	}
	rest = rest[strings.LastIndexByte(rest, '@')+1:]
	if i := strings.IndexAny(rest, "?#"); i >= 0 {
		rest = rest[:i]
	}
	return scheme + rest
}

// Equal reports whether all fields are equal, except the places from which the key was read.
func (t Target) Equal(o Target) bool {
	return t.URL == o.URL && t.Events == o.Events && t.Replay == o.Replay && t.Topic == o.Topic && t.Model == o.Model && t.APIKey == o.APIKey &&
		t.APIKeyUse == o.APIKeyUse && t.Protocol == o.Protocol && t.TLS == o.TLS && t.Ranks == o.Ranks && maps.Equal(t.Labels, o.Labels) &&
		t.Role == o.Role && t.Connector == o.Connector && t.TransferHost == o.TransferHost && t.TransferPort == o.TransferPort && t.EngineID == o.EngineID && t.TensorParallel == o.TensorParallel &&
		t.KVBytesPerToken == o.KVBytesPerToken
}

// Validate returns all problems of the target. It reads the files of TLS.
func (t Target) Validate() error {
	_, err := t.normalize()
	if tlsErr := t.TLS.Validate(); tlsErr != nil {
		err = errors.Join(err, fmt.Errorf("tls: %w", tlsErr))
	}
	return err
}

// peer returns how a normal target is reached.
func (t Target) peer() (*network.Peer, error) {
	return network.ParsePeer(t.URL, network.PeerConfig{TLS: t.TLS, Key: t.APIKey, KeyUse: network.KeyUse(t.APIKeyUse), Protocol: network.Protocol(t.Protocol)})
}

// Peers returns a table with the worker as its only peer; an empty table if the target is not valid.
func (t Target) Peers() *network.Peers {
	peers := new(network.Peers)
	if n, err := t.normalize(); err == nil {
		if p, err := n.peer(); err == nil {
			peers.Replace([]*network.Peer{p})
		}
	}
	return peers
}

// overUnix reports whether the URL names a Unix socket. Such a worker has no host.
func (t Target) overUnix() bool { return strings.HasPrefix(t.URL, "unix:") }

// maxSocketPath is the greatest length of the path of a Unix socket on Linux, in bytes (sun_path in unix(7)).
const maxSocketPath = 107

// normalize returns the target with its URL in the form in which the fleet stores URLs.
func (t Target) normalize() (Target, error) {
	var errs []error
	u, err := url.Parse(t.URL)
	switch {
	case strings.Contains(t.URL, "@"): // this case comes first, because the other cases quote the URL
		errs = append(errs, fmt.Errorf("URL %q must not contain a user or password: a worker's key goes into api_key", shown(t.URL)))
	case t.lacksScheme():
		errs = append(errs, fmt.Errorf("URL %q does not begin with http:// or https://: write http://%s", shown(t.URL), shown(t.URL)))
	case err != nil:
		var bad *url.Error
		if errors.As(err, &bad) {
			err = bad.Err // the error without the URL
		}
		errs = append(errs, fmt.Errorf("read URL %q: %w", shown(t.URL), err))
	case u.Scheme == "unix" && (u.Host != "" || !strings.HasPrefix(u.Path, "/") || u.RawQuery != "" || u.Fragment != ""):
		errs = append(errs, fmt.Errorf("URL %q: write unix:// and the absolute path of the socket, such as unix:///run/vllm.sock", shown(t.URL)))
	case u.Scheme == "unix" && len(u.Path) > maxSocketPath:
		errs = append(errs, fmt.Errorf("URL %q: the path of a Unix socket has at most %d bytes", shown(t.URL), maxSocketPath))
	case u.Scheme == "unix":
		t.URL = (&url.URL{Scheme: "unix", Path: path.Clean(u.Path)}).String()
	case u.Scheme == "grpc" || u.Scheme == "grpcs":
		errs = append(errs, fmt.Errorf("URL %q: the router speaks HTTP with engines: write the address of the engine's HTTP API, http://HOST:PORT", shown(t.URL)))
	case u.Scheme != "http" && u.Scheme != "https":
		errs = append(errs, fmt.Errorf("URL %q does not begin with http://, https:// or unix://", shown(t.URL)))
	case u.Host == "" || u.Hostname() == "":
		errs = append(errs, fmt.Errorf("URL %q names no host", shown(t.URL)))
	case u.RawQuery != "" || u.Fragment != "":
		errs = append(errs, fmt.Errorf("URL %q must be scheme, host, port and path only", shown(t.URL)))
	case CheckPort(u) != nil:
		errs = append(errs, CheckPort(u))
	default:
		// Users often copy a client's base URL with /v1. The router adds /v1 itself.
		u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1")
		t.URL = u.String()
	}
	for _, e := range []struct{ name, endpoint string }{{"events", t.Events}, {"replay", t.Replay}} {
		if e.endpoint == "" || e.endpoint == None {
			continue
		}
		parsed, err := parseEndpoint(e.endpoint)
		if err == nil && t.overUnix() {
			_, err = endpointAt(parsed, "", 0)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s endpoint: %w", e.name, err))
		}
	}
	if t.TLS != (network.PeerTLS{}) && u != nil && (u.Scheme == "http" || u.Scheme == "unix") {
		errs = append(errs, fmt.Errorf("tls: URL %q does not use TLS: write https://", shown(t.URL)))
	}
	switch network.KeyUse(t.APIKeyUse) {
	case "", network.KeyForQuestions:
	case network.KeyIfMissing, network.KeyAlways:
		if t.APIKey == "" && t.APIKeyFile == "" && t.APIKeyEnv == "" {
			errs = append(errs, fmt.Errorf("api_key_use: %s needs a key: set api_key, api_key_file or api_key_env", t.APIKeyUse))
		}
	default:
		errs = append(errs, errors.New("api_key_use is none of questions, missing, always"))
	}
	switch network.Protocol(t.Protocol) {
	case "", network.ProtocolAuto, network.ProtocolHTTP1, network.ProtocolHTTP2:
	default:
		errs = append(errs, errors.New("protocol is none of auto, http1, http2"))
	}
	if t.Ranks < 0 || t.Ranks > fleet.MaxRanks {
		errs = append(errs, fmt.Errorf("ranks: %d is outside 1..%d", t.Ranks, fleet.MaxRanks))
	}
	errs = append(errs, t.checkTransfer()...)
	return t, errors.Join(errs...)
}

// lacksScheme reports whether the URL has no scheme and would be valid with http:// before it.
func (t Target) lacksScheme() bool {
	if t.URL == "" || strings.Contains(t.URL, "://") || strings.HasPrefix(t.URL, "unix:") {
		return false
	}
	_, err := Target{URL: "http://" + t.URL}.normalize()
	return err == nil
}

// CheckPort returns an error if u has a port that is not within 1..65535.
func CheckPort(u *url.URL) error {
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return fmt.Errorf("URL %q: port %s is not within 1..65535", shown(u.String()), port)
		}
	}
	return nil
}

// Canonical returns the URL of a valid target in a form that is the same for all spellings of the address.
func (t Target) Canonical() string {
	n, err := t.normalize()
	if err != nil {
		return ""
	}
	u, err := url.Parse(n.URL)
	if err != nil {
		return ""
	}
	if n.overUnix() {
		return n.URL
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	u.Host = net.JoinHostPort(zmtp.CanonicalHost(u.Hostname()), port)
	return u.String()
}

// Endpoints returns the configured endpoints of events and replay of rank 0, for a valid target. All spellings of an
// endpoint give the same form. "" means that the endpoint is not configured, or is None.
func (t Target) Endpoints() (events, replay string) {
	dial := func(text string) string {
		if text == "" || text == None {
			return ""
		}
		e, err := parseEndpoint(text)
		if err != nil {
			return ""
		}
		at, err := endpointAt(e, t.host(), 0)
		if err != nil {
			return ""
		}
		return at.Canonical().String()
	}
	return dial(t.Events), dial(t.Replay)
}

// host returns the worker's host name or address, without brackets; "" for a worker behind a Unix socket.
func (t Target) host() string {
	u, err := url.Parse(t.URL)
	if err != nil {
		return ""
	}
	return u.Hostname()
}
