package zmq

import "context"

// Origin is what a topic `kv@<host:port>@<model>` says of a stream's engine.
type Origin struct {
	Topic   string // the topic as sent
	Address string // host:port of the engine's HTTP server, or its name
	Model   string
	Peer    string // the remote address of the connection
}

// ParseTopic reads `kv@<host:port>@<model>`; the model may itself contain "@".
func ParseTopic(topic string) (Origin, error) { return Origin{}, nil }

// Accept decides about a new stream. A stream is one topic of one connection, so every data-parallel rank has its own
// (their topics are equal; the rank is in the payload). A nil Handler refuses it. replay is the engine's replay endpoint,
// empty for none. After a disconnect the stream is over, and a reconnect is a new one. Accept may be called concurrently,
// and so may the handlers of different streams.
type Accept func(o Origin) (h Handler, replay string)

// Listener binds one SUB endpoint that many engines connect to.
type Listener struct{}

// NewListener returns a Listener. It starts nothing.
func NewListener(endpoint string, cfg Config, accept Accept) *Listener { return &Listener{} }

// Listen opens the endpoint, so that Endpoint is known before Run. Run does it when it was not done.
func (l *Listener) Listen() error { return nil }

// Endpoint returns the endpoint as opened: with its port when it was asked for with port 0 or *.
func (l *Listener) Endpoint() string { return "" }

// Run accepts engines until ctx ends, which is no error.
func (l *Listener) Run(ctx context.Context) error { <-ctx.Done(); return nil }
