package snapshot

import (
	"context"
	"fmt"
	"io"
	"time"
)

// peerSilence is how long a peer may send nothing before it is left: a giver sends something each 500 ms. A peer that
// is frozen, or behind a broken network, costs this time and not index.peer_timeout, which large indexes need.
const peerSilence = 2 * time.Second

// attention ends the context of an exchange when the peer sends nothing for a time. The time counts only while this
// router waits for the peer.
type attention struct {
	io.Reader
	timer *time.Timer
	limit time.Duration
}

// attend returns a context that ends when the peer sends nothing for limit, from now on. After the peer has answered,
// the caller calls hear. end gives all resources back.
func attend(ctx context.Context, limit time.Duration) (_ context.Context, a *attention, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(limit, func() { cancel(fmt.Errorf("%w for %v", errSilent, limit)) })
	return ctx, &attention{timer: timer, limit: limit}, func() {
		timer.Stop()
		cancel(nil)
	}
}

// hear records that the peer has answered with body.
func (a *attention) hear(body io.Reader) {
	a.timer.Stop()
	a.Reader = body
}

// Read reads from the body of the peer's answer.
func (a *attention) Read(b []byte) (int, error) {
	a.timer.Reset(a.limit)
	defer a.timer.Stop()
	return a.Reader.Read(b)
}
