package sharedindex

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/warmpath/warmpath/internal/api"
)

// errNoServer means that the server of the shared index does not answer at present.
var errNoServer = errors.New("the server of the shared index does not answer")

// remedies are what to do about an error. The first one whose text is in the error counts.
var remedies = []struct{ text, remedy string }{
	{"CLUSTERDOWN", "the cluster serves no keys: look at CLUSTER INFO and CLUSTER NODES of a server"},
	{"WRONGTYPE", "another program uses this prefix: choose another one with index.valkey.prefix, or delete its keys"},
	{"NOAUTH", "it asks for a password: set index.valkey.password_file, password_env or password (and username, if it is not the user default)"},
	{"WRONGPASS", "it knows no such user, or the password is another one: correct index.valkey.username and password_file, password_env or password"},
	{"NOPERM", "give the user of index.valkey.username this right, for all keys with index.valkey.prefix"},
	{"DB index is out of range", "index.valkey.database is no database of this server"},
	{"MOVED", setCluster},
	{"CROSSSLOT", setCluster},
	{"SELECT is not allowed in cluster mode", "a cluster has only one database: remove index.valkey.database"},
	{"READONLY", "it is a replica: name the primary server in index.valkey.url"},
	{"unknown command 'HELLO'", "it is older than Redis 7.0"},
	{"begin TLS: context deadline exceeded", "its port may have no TLS: then write valkey:// or redis:// in index.valkey.url"},
	{"begin TLS: EOF", "its port may have no TLS: then write valkey:// or redis:// in index.valkey.url"},
	{"connection refused", "nothing listens there: start the server, or correct index.valkey.url"},
	{"no such host", "correct the host in index.valkey.url"},
	{"connect: no such file or directory", "there is no such socket: start the server, or correct index.valkey.url"},
	{"unknown message type: 21", "its port may have TLS: then write valkeys:// or rediss:// in index.valkey.url"}, // an alert of TLS
	{"unknown message type", "this is no Valkey or Redis server: correct index.valkey.url"},
	{"connection reset by peer", "its port may have TLS: then write valkeys:// or rediss:// in index.valkey.url"},
}

// setCluster is no remedy where it is done already.
const setCluster = "it belongs to a cluster: set index.valkey.cluster: true"

// problem logs what goes wrong at the server. A problem that goes on is logged once. All methods are safe for
// concurrent use.
type problem struct {
	log     *slog.Logger
	server  string // its address
	secrets []string
	cluster bool // the configuration says that it is a cluster

	mu   sync.Mutex // guards the field below; it is not held while the log is written
	last string     // the signature of the problem that goes on; "": none
}

func newProblem(log *slog.Logger, cfg Config) problem {
	return problem{log: log, server: cfg.Address(), secrets: cfg.secrets(), cluster: cfg.Cluster}
}

// tell logs err, unless it was logged last. what says what it means. Without an error it does nothing.
func (p *problem) tell(what string, err error) {
	if err == nil {
		return
	}
	if signature := p.signatureOf(err); p.become(signature) != signature {
		p.log.Warn(what, "server", p.server, "error", p.textOf(err))
	}
}

// textOf returns the text of an error for logs, on one line, not too long and without secrets, with what to do about
// it.
func (p *problem) textOf(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	if o := new(net.OpError); errors.As(err, &o) && o.Source != nil {
		text = strings.ReplaceAll(text, o.Source.String()+"->", "") // the port of our end says nothing
	}
	text = api.WithoutSecrets(strings.Join(strings.Fields(text), " "), p.secrets...)
	short := cmp.Or(text[:min(len(text), 300)], "unknown")
	if remedy := p.remedyOf(text); remedy != "" {
		return short + " (" + remedy + ")"
	}
	return short
}

func (p *problem) remedyOf(text string) string {
	for _, r := range remedies {
		if strings.Contains(text, r.text) && !(p.cluster && r.remedy == setCluster) {
			return r.remedy
		}
	}
	return ""
}

// signatureOf returns what stays the same while a problem goes on: the cause and the remedy. What was tried when it
// showed, and the port of our end, differ from attempt to attempt.
func (p *problem) signatureOf(err error) string {
	cause := err
	for next := errors.Unwrap(cause); next != nil; next = errors.Unwrap(cause) {
		cause = next
	}
	return cause.Error() + "\n" + p.remedyOf(err.Error())
}

// over says that the problem does not go on. It reports whether there was one.
func (p *problem) over() bool { return p.become("") != "" }

// become changes the problem that goes on, and returns the one before.
func (p *problem) become(text string) (last string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, p.last = p.last, text
	return last
}

// firstRetry and lastRetry bound the wait between two sessions.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// keepTrying calls session until ctx ends. After each session that fails it calls failed, and waits, longer each time.
// The context of failed ends with the wait.
func keepTrying(ctx context.Context, session func(context.Context) error, failed func(waiting context.Context, err error)) {
	for wait := firstRetry; ctx.Err() == nil; wait = min(2*wait, lastRetry) {
		began := time.Now()
		err := session(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > lastRetry {
			wait = firstRetry
		}
		waiting, stop := context.WithTimeout(ctx, wait)
		failed(waiting, err)
		<-waiting.Done()
		stop()
	}
}

// reasonOf returns why the shared index is not read, for people who look at the trust of a holder.
func (p *problem) reasonOf(err error) string {
	if answer := new(valkey.ValkeyError); errors.As(err, &answer) {
		return "the server of the shared index answers: " + p.textOf(err)
	}
	return errNoServer.Error()
}
