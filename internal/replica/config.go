package replica

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/internal/network"
)

// Config says how routers tell each other of their requests.
type Config struct {
	// NATS is the URL of a NATS server, or several with commas between them: nats://host:4222, or tls://host:4222. List
	// all servers of a cluster: the router connects to no others. Empty means no given server. The router needs only core
	// subjects, no JetStream.
	NATS string `yaml:"nats"`
	// Embedded runs a NATS server in this process instead. The routers' servers form a cluster over routes, and no
	// further process is needed.
	Embedded bool `yaml:"embedded"`
	// Listen is the address, host:port, at which the embedded server expects the other routers' servers. The default is a
	// loopback address. Another address needs user and password, or ca_file and cert_file of tls.
	Listen string `yaml:"listen"`
	// Routes are the addresses of the other routers' embedded servers, as nats-route://host:4248. A list may have the
	// router's own address, so that all routers can have the same list. One router that all others can reach is enough:
	// the servers tell each other of the rest.
	Routes []string `yaml:"routes"`
	// ClientListen is an address, host:port, at which the embedded server also serves clients of NATS, for example the
	// nats command. Empty means that it serves only this router.
	ClientListen string `yaml:"client_listen"`
	// Group is the first part of all subjects. Routers with the same group share their requests, so two fleets of workers
	// that use one NATS need two groups.
	Group string `yaml:"group"`
	// Name names this router for people, in logs, metrics and GET /admin/replicas. Empty means the machine's name with the
	// port for clients.
	Name string `yaml:"name"`
	// Key is a secret of all routers of the group. With a key all messages are signed, and others are dropped. Prefer
	// KeyFile or the environment variable WARMPATH_SYNC_KEY, if other people can read the file.
	Key string `yaml:"key"`
	// KeyFile is a file with the key. White space around the key is removed.
	KeyFile string `yaml:"key_file"`
	// User and Password are for NATS servers that ask for them. An embedded server asks the other routers' servers and
	// its clients for them. WARMPATH_SYNC_PASSWORD overrides Password.
	User     string `yaml:"user"`
	Password string `yaml:"password"`
	// PasswordFile is a file with the password.
	PasswordFile string `yaml:"password_file"`
	// Token is for a given NATS server that asks for a token. WARMPATH_SYNC_TOKEN overrides it.
	Token string `yaml:"token"`
	// TokenFile is a file with the token.
	TokenFile string `yaml:"token_file"`
	// CredentialsFile is a file with a user's JWT and seed (.creds), for a given NATS server that asks for them.
	CredentialsFile string `yaml:"credentials_file"`
	// TLS has the files for TLS: ca_file, cert_file, key_file and server_name. A given server needs none of them if the
	// machine trusts its certificate. With an embedded server, cert_file and key_file turn TLS on between the
	// routers' servers; ca_file then also checks who connects.
	TLS network.PeerTLS `yaml:"tls"`
}

// DefaultConfig shares nothing.
func DefaultConfig() Config {
	return Config{Listen: "127.0.0.1:4248", Routes: []string{}, Group: "warmpath"}
}

// On reports whether requests are shared.
func (c *Config) On() bool { return c.NATS != "" || c.Embedded }

// Servers returns the URLs of NATS.
func (c *Config) Servers() []string {
	var all []string
	for one := range strings.SplitSeq(c.NATS, ",") {
		if one = strings.TrimSpace(one); one != "" {
			all = append(all, one)
		}
	}
	return all
}

const (
	// minKey is the least length of a key in bytes. A shorter key could be guessed from one recorded packet.
	minKey = 16
	// maxName bounds the length of a group and of a name.
	maxName = 64
	// maxRoutes bounds the routes: a cluster of NATS servers is a full mesh, which larger numbers slow down.
	maxRoutes = 64
)

var groupName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// Validate returns all problems of c. Each begins with the name of its field. Call Validate after the secrets were
// read. No problem has the value of a secret.
func (c *Config) Validate() error {
	var problems []error
	add := func(key, text string, args ...any) {
		problems = append(problems, fmt.Errorf(key+": "+text, args...))
	}
	if c.NATS != "" && c.Embedded {
		add("embedded", "sync.nats is set, too: keep one. A router has a NATS server of its own, or uses a given one")
	}
	for _, one := range c.Servers() {
		if why := wrongURL(one, "nats", "tls", "ws", "wss"); why != "" {
			add("nats", "%s. Write nats://host:4222", why)
		}
	}
	if c.NATS != "" && len(c.Servers()) == 0 {
		add("nats", "it has no URL. Write nats://host:4222")
	}
	c.validateEmbedded(add)
	if !c.On() {
		c.validateOff(add)
	}
	if !groupName.MatchString(c.Group) || len(c.Group) > maxName {
		add("group", "%.80q is not 1 to %d letters, digits, - and _", c.Group, maxName)
	}
	if len(c.Name) > maxName {
		add("name", "%d bytes are too many, use %d at most", len(c.Name), maxName)
	}
	if c.Key != "" && len(c.Key) < minKey {
		add("key", "%d characters are too few, use %d or more: openssl rand -hex 32 prints a key", len(c.Key), minKey)
	}
	c.validateCredentials(add)
	if err := c.TLS.Validate(); err != nil {
		add("tls", "%w", err)
	} else if c.Embedded && c.TLS.CertFile == "" && c.TLS != (network.PeerTLS{}) {
		// The server has no certificate to show, so its routes would be in clear text.
		add("tls", "an embedded server encrypts only with a certificate of its own: set cert_file and key_file, too, or none of sync.tls")
	}
	return errors.Join(problems...)
}

// open reports whether anybody who reaches an address may use it: it is no loopback address, and asks neither for a
// password nor for a certificate.
func (c *Config) open(address string) bool {
	_, _, err := net.SplitHostPort(address)
	return err == nil && !network.Loopback(address) && c.User == "" && (c.TLS.CAFile == "" || c.TLS.CertFile == "")
}

// hidden reports whether routers of other machines are named, and cannot connect to this one.
func (c *Config) hidden() bool {
	return c.Embedded && network.Loopback(c.Listen) && slices.ContainsFunc(c.Routes, func(route string) bool {
		u, err := url.Parse(route)
		return err == nil && !network.LoopbackHost(u.Hostname())
	})
}

func (c *Config) validateEmbedded(add func(key, text string, args ...any)) {
	for _, one := range []struct{ key, address string }{{"listen", c.Listen}, {"client_listen", c.ClientListen}} {
		if c.Embedded && c.open(one.address) {
			add(one.key, "%s is open to anybody on the network: set sync.user and sync.password_file, or ca_file, cert_file and key_file of sync.tls", one.address)
		}
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		add("listen", "%.80q is not host:port", c.Listen)
	}
	if c.ClientListen != "" {
		if _, _, err := net.SplitHostPort(c.ClientListen); err != nil {
			add("client_listen", "%.80q is not host:port", c.ClientListen)
		}
	}
	for i, one := range c.Routes {
		switch why := wrongURL(one, "nats-route", "nats", "tls"); {
		case why != "":
			add(fmt.Sprintf("routes[%d]", i), "%s. Write nats-route://host:4248", why)
		case strings.HasPrefix(one, "tls:") && c.TLS.CertFile == "":
			add(fmt.Sprintf("routes[%d]", i), "the scheme alone does not encrypt a route: set cert_file and key_file of sync.tls, at all routers")
		}
	}
	if len(c.Routes) > maxRoutes {
		add("routes", "%d are too many, use %d at most: one router that all others reach is enough", len(c.Routes), maxRoutes)
	}
	if c.Embedded {
		return
	}
	const embed = "set embedded: true (--sync-embedded)"
	if len(c.Routes) > 0 {
		add("routes", "only an embedded server has routes: "+embed)
	}
	if c.ClientListen != "" {
		add("client_listen", "only an embedded server has clients: "+embed)
	}
	if c.Listen != DefaultConfig().Listen {
		add("listen", "only an embedded server listens: "+embed)
	}
}

// validateOff finds settings that have no effect, because nothing is shared. Those of an embedded server are found
// elsewhere.
func (c *Config) validateOff(add func(key, text string, args ...any)) {
	for _, one := range []struct {
		key string
		set bool
	}{
		{"group", c.Group != DefaultConfig().Group},
		{"name", c.Name != ""},
		{"key_file", c.KeyFile != ""},
		{"key", c.KeyFile == "" && c.Key != ""},
		{"user", c.User != ""},
		{"password_file", c.PasswordFile != ""},
		{"password", c.PasswordFile == "" && c.Password != ""},
		{"token_file", c.TokenFile != ""},
		{"token", c.TokenFile == "" && c.Token != ""},
		{"credentials_file", c.CredentialsFile != ""},
		{"tls", c.TLS != (network.PeerTLS{})},
	} {
		if one.set {
			add(one.key, "it has no effect, because no requests are shared: set sync.nats (--sync-nats nats://host:4222) or sync.embedded (--sync-embedded), too")
		}
	}
}

func (c *Config) validateCredentials(add func(key, text string, args ...any)) {
	if (c.User == "") != (c.Password == "") {
		add("user", "user and password belong together: set both or none")
	}
	ways := 0
	for _, set := range []bool{c.User != "", c.Token != "", c.CredentialsFile != ""} {
		if set {
			ways++
		}
	}
	if ways > 1 {
		add("user", "keep one of user with password, token, and credentials_file")
	}
	if !c.Embedded {
		return
	}
	if c.Token != "" {
		add("token", "an embedded server asks for user and password: set these")
	}
	if c.CredentialsFile != "" {
		add("credentials_file", "an embedded server asks for user and password: set these")
	}
}

// wrongURL returns what is wrong with a URL of a server, or "". It quotes no part of the URL that may be a password.
func wrongURL(text string, schemes ...string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return "it is not a URL"
	case !slices.Contains(schemes, u.Scheme):
		return fmt.Sprintf("the scheme %.20q is not one of %s", u.Scheme, strings.Join(schemes, ", "))
	case u.Hostname() == "":
		return "the URL names no host"
	case u.Port() == "" && slices.Contains(schemes, "nats-route"):
		return "the URL names no port"
	case u.Path != "" && u.Path != "/" || u.RawQuery != "":
		return "the URL has a path or a query"
	}
	return ""
}
