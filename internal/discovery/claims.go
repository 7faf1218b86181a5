package discovery

import (
	"slices"
	"sync"
)

// claims decides which worker owns an endpoint of events: one worker or none. If the router followed the same publisher
// for two workers, the index would count the blocks of one worker for both. An endpoint belongs to the worker with the
// earliest claim among the workers that reported it. If no worker reported an endpoint, and the router guessed it for
// only one worker, the endpoint belongs to this worker. Methods may be called from any goroutine.
type claims struct {
	mu         sync.Mutex            // guards the fields below
	byEndpoint map[string][]claimant // by endpoint: its claimants, the earliest claim first
	moved      chan struct{}         // closed when claims change
}

type claimant struct {
	url     string
	guessed bool
}

func newClaims() *claims {
	return &claims{byEndpoint: map[string][]claimant{}, moved: make(chan struct{})}
}

// set replaces all claims of the worker at the address url. After that, the worker claims the given endpoints. guessed
// says that the worker itself did not report these endpoints.
func (c *claims) set(url string, guessed bool, endpoints []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := false
	for endpoint, list := range c.byEndpoint {
		i := slices.IndexFunc(list, func(x claimant) bool { return x.url == url })
		if i < 0 || slices.Contains(endpoints, endpoint) {
			continue
		}
		changed = true
		if list = slices.Delete(list, i, i+1); len(list) == 0 {
			delete(c.byEndpoint, endpoint)
		} else {
			c.byEndpoint[endpoint] = list
		}
	}
	for _, endpoint := range endpoints {
		list := c.byEndpoint[endpoint]
		i := slices.IndexFunc(list, func(x claimant) bool { return x.url == url })
		switch {
		case i < 0:
			c.byEndpoint[endpoint] = append(list, claimant{url, guessed})
			changed = true
		case list[i].guessed != guessed:
			list[i].guessed = guessed
			changed = true
		}
	}
	if changed {
		close(c.moved)
		c.moved = make(chan struct{})
	}
}

// owns reports whether the endpoint belongs to the worker at the address url. rival is the address of another worker
// that claims the endpoint, or "".
func (c *claims) owns(url, endpoint string) (own bool, rival string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.byEndpoint[endpoint]
	for _, x := range list {
		if x.url != url {
			rival = x.url
		}
	}
	if i := slices.IndexFunc(list, func(x claimant) bool { return !x.guessed }); i >= 0 {
		return list[i].url == url, rival
	}
	return len(list) == 1 && list[0].url == url, rival
}

// change returns a channel that is closed at the next change of claims.
func (c *claims) change() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.moved
}
